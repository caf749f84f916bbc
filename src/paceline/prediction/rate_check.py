"""One line of warning, after a run, if a smaller learning rate would have been better.

Beyond the stable limit at the initial weights a run need not be worse: where the loss has flatter regions, it is driven
there. So a warning needs more than that limit: the loss itself rose and stayed high, or the learning rate is so far
beyond the limit that no run of ``benchmarks/rate_check.py`` came through unharmed. The curvature behind the limit is
found after the run and with little effort: few samples, few products, and a small share of the time that the run took.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paceline.config.file import Config
from paceline.core.errors import ConfigError
from paceline.prediction.predict import descent_of
from paceline.storage.metrics import Row
from paceline.theory.stability.net_weights import NetWeights
from paceline.trace.measure import Measures

if TYPE_CHECKING:
    from paceline.learning.curvature import Curvature

SAMPLES, PRODUCTS, TOLERANCE = 256, 20, 0.05
SHARE_OF_THE_RUN = 0.05  # of its time, for the curvature; but so many seconds in any case
SECONDS = 0.25

# From which on a run of the benchmark suite was worse than one with a smaller learning rate
FACTOR = 15.0  # times the limit at the initial weights
RISE, LEFT = 3.0, 0.5  # the loss rose to so many times its first value, and this share of that was left at the end
END = 0.25  # of a run's time, over which the loss at its end is the mean


class Finished(NamedTuple):
    """A run that has come to its end; ``lr`` None: the learning rate of the optimizer in the configuration."""

    label: str
    lr: float | None
    history: Sequence[Row]
    measures: Measures
    ended: str


class Evidence(NamedTuple):
    """What speaks against a learning rate; NaN where it is not known.

    beyond  learning rate by the largest that is stable at the initial weights
    rise    the highest loss of the run by its first one
    left    the mean loss over the last quarter of the run by its first one
    """

    beyond: float
    rise: float
    left: float

    @property
    def loss_stayed_high(self) -> bool:
        return self.rise > RISE and self.left > LEFT

    @property
    def too_large(self) -> bool:
        """Whether a smaller learning rate would have been better."""
        return self.loss_stayed_high or self.beyond > FACTOR


def lr_warnings(config: Config, seed: int, runs: Sequence[Finished], seconds: float) -> list[str]:
    """One warning for each run whose learning rate is too large.

    seconds  how long training took: the curvature is measured for a small share of it
    """
    found = quick_curvature(config, seed, seconds)
    warnings = (rate_warning(run, config, found) for run in runs)
    return [warning for warning in warnings if warning is not None]


def quick_curvature(config: Config, seed: int, run_seconds: float) -> "Curvature | None":
    """The largest curvature at a run's initial weights, roughly; None if it cannot be found, or is not wanted."""
    if descent_of(config.optimizer.name, config.optimizer.options) is None:
        return None
    from paceline.config.experiment import make_task
    from paceline.learning.curvature import Effort, curvature

    seconds = max(SECONDS, SHARE_OF_THE_RUN * run_seconds)
    try:
        return curvature(make_task(config.task, seed), Effort(SAMPLES, PRODUCTS, TOLERANCE, seconds))
    except ConfigError:
        return None


def rate_warning(run: Finished, config: Config, found: "Curvature | None") -> str | None:
    """What to say of a run's learning rate, if anything."""
    rate = config.optimizer.options.get("lr") if run.lr is None else run.lr
    limit = stable_limit(config, run.measures, found)
    evidence = evidence_of(run.history, run.ended, math.nan if rate is None or limit is None else rate / limit)
    if not evidence.too_large:
        return None
    said = "" if rate is None else f" {rate:g}"
    text = f"warning: {run.label}: a learning rate smaller than{said} would probably be better: {_why(run, evidence)}"
    if rate is None or limit is None or found is None:
        return text
    where = (
        f"at the initial weights (curvature {found.value:.3g} from {found.samples} samples) and the measured staleness "
        f"(mean {run.measures.mean_staleness:.1f})"
    )
    if evidence.beyond > 1:
        return f"{text}; {where} up to {limit:.3g} is stable in mean square"
    return f"{text}; {where} up to {limit:.3g} is stable, so the curvature has grown on the way"


def _why(run: Finished, evidence: Evidence) -> str:
    if run.ended == "diverged":
        return "the run diverged"
    if evidence.loss_stayed_high:
        if not math.isfinite(evidence.left):
            return "the loss overflowed"
        return f"the loss rose to {evidence.rise:.3g} times its first value, and ended at {evidence.left:.2g} times it"
    return f"it is {evidence.beyond:.3g} times the stable limit"


def stable_limit(config: Config, measures: Measures, found: "Curvature | None") -> float | None:
    """The largest learning rate that is stable in mean square at this curvature and the measured staleness.

    It holds near an optimum, for ages drawn independently with the weights that they had in the run. Where the
    curvature was not found to the end, it is a little larger. None if there is no such limit, or it is not known.
    """
    descent = descent_of(config.optimizer.name, config.optimizer.options)
    if descent is None or found is None or not found.value > 0 or not measures.updates:
        return None
    if not math.fsum(measures.weight_by_age.values()) > 0:
        return None
    limit = descent.limit(NetWeights(measures.weight_by_age, measures.weight_by_gap))
    return limit / descent.sharpness(found.value)


def evidence_of(history: Sequence[Row], ended: str, beyond: float) -> Evidence:
    """What a run's losses say of its learning rate; ``beyond`` is in terms of the limit."""
    if ended == "diverged":
        return Evidence(beyond, math.inf, math.inf)
    first = history[0].loss if history else math.nan
    losses = [row.loss for row in history if not math.isnan(row.loss)]
    if not first > 0 or not losses:
        return Evidence(beyond, math.nan, math.nan)
    since = (1 - END) * history[-1].seconds
    last = [row.loss for row in history if row.seconds >= since and not math.isnan(row.loss)] or losses[-1:]
    return Evidence(beyond, max(losses) / first, math.fsum(last) / len(last) / first)
