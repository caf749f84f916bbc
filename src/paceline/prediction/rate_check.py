"""One line of warning, after a run, if its learning rate was beyond what its own staleness allows.

The curvature behind it is found after the run and with little effort, so that no run is slowed noticeably: few samples,
few products, and a small share of the time that the run took.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.config.file import Config
from paceline.core.errors import ConfigError
from paceline.prediction.predict import descent_of
from paceline.theory.stability.net_weights import NetWeights
from paceline.trace.measure import Measures

if TYPE_CHECKING:
    from paceline.learning.curvature import Curvature

SAMPLES, PRODUCTS, TOLERANCE = 256, 20, 0.05
SHARE_OF_THE_RUN = 0.05  # of its time, for the curvature; but so many seconds in any case
SECONDS = 0.25


def lr_warnings(
    config: Config, seed: int, runs: Sequence[tuple[str, float | None, Measures]], seconds: float
) -> list[str]:
    """One warning for each run whose learning rate is too large to be stable.

    runs     label, learning rate (None: that of the optimizer) and measures of each
    seconds  how long training took: the curvature is measured for a small share of it
    """
    found = quick_curvature(config, seed, seconds)
    warnings = (rate_warning(label, config, lr, measures, found) for label, lr, measures in runs)
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


def rate_warning(
    label: str, config: Config, lr: float | None, measures: Measures, found: "Curvature | None"
) -> str | None:
    """What to say of the learning rate ``lr`` (by default the optimizer's), if anything.

    The limit is that of stability in mean square, near an optimum with this curvature, for ages drawn independently
    with the weights that they had in the run. Where the curvature was not found to the end, it is a little larger.
    """
    descent = descent_of(config.optimizer.name, config.optimizer.options)
    rate = config.optimizer.options.get("lr") if lr is None else lr
    if descent is None or rate is None or found is None or not found.value > 0 or not measures.updates:
        return None
    if not math.fsum(measures.weight_by_age.values()) > 0:
        return None
    limit = descent.limit(NetWeights(measures.weight_by_age, measures.weight_by_gap))
    sharpness = descent.sharpness(found.value)
    if not rate > limit / sharpness:
        return None
    momentum = f" and momentum {descent.momentum:g}" if descent.momentum else ""
    return (
        f"warning: {label}: the learning rate {rate:g} is beyond {limit / sharpness:.3g}, the largest that is stable "
        f"(in mean square) at the measured staleness (mean {measures.mean_staleness:.1f}){momentum}: learning rate x "
        f"curvature must stay below {limit:.3g}, and the curvature at the initial weights is {sharpness:.3g} "
        f"({found.samples} samples); the run diverges, or is driven to where the loss is flatter"
    )
