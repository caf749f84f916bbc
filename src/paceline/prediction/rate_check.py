"""One line of warning, after a run, if its step was beyond what its own staleness allows.

The curvature behind it is found after the run and with little effort, so that no run is slowed noticeably: few samples,
few products, and a small share of the time that the run took.
"""

import math
from typing import TYPE_CHECKING

from paceline.comparison.jobs import Comparison, aside
from paceline.config.file import Config
from paceline.core.errors import ConfigError
from paceline.prediction.descent import descent_of
from paceline.theory.stability.net_weights import NetWeights
from paceline.trace.measure import Measures

if TYPE_CHECKING:
    from paceline.learning.curvature import Curvature

SAMPLES, PRODUCTS, TOLERANCE = 256, 20, 0.05
SHARE_OF_THE_RUN = 0.05  # of its time, for the curvature; but so many seconds in any case
SECONDS = 0.25


def warnings_after(config: Config, seed: int, measures: Measures, seconds: float) -> list[str]:
    """One if the step of a run was beyond its limit; ``seconds``: what the run took."""
    found = quick_curvature(config, seed, seconds)
    warning = step_warning(config.strategies[0].short, config, None, measures, found)
    return [] if warning is None else [warning]


def warnings_of(comparison: Comparison, processes: int, seconds: float) -> list[str]:
    """One for each strategy that is shown with a step beyond its limit; ``seconds``: what the comparison took.

    The curvature is found where the runs were, so that this process need not import torch.
    """
    config = comparison.config
    found = aside(processes, quick_curvature, config, config.seeds[0], seconds)
    warnings = []
    for entry in comparison.entries:
        middle = sorted(entry.outcomes, key=lambda each: each.measures.mean_staleness)[len(entry.outcomes) // 2]
        warnings.append(step_warning(entry.label, config, entry.lr, middle.measures, found))
    return [warning for warning in warnings if warning is not None]


def quick_curvature(config: Config, seed: int, run_seconds: float) -> "Curvature | None":
    """The largest curvature at a run's initial weights, roughly; None if it cannot be told, or is not wanted."""
    if descent_of(config.optimizer.name, config.optimizer.options) is None:
        return None
    from paceline.config.experiment import make_task
    from paceline.learning.curvature import Effort, curvature

    seconds = max(SECONDS, SHARE_OF_THE_RUN * run_seconds)
    try:
        return curvature(make_task(config.task, seed), Effort(SAMPLES, PRODUCTS, TOLERANCE, seconds))
    except ConfigError:
        return None


def step_warning(
    label: str, config: Config, lr: float | None, measures: Measures, found: "Curvature | None"
) -> str | None:
    """What to say of the step ``lr`` (by default the optimizer's), if anything.

    The limit is that of stability in mean square, near an optimum with this curvature, for ages drawn independently
    with the weights that they had in the run. Where the curvature was not found to the end, it is a little larger.
    """
    descent = descent_of(config.optimizer.name, config.optimizer.options)
    step = config.optimizer.options.get("lr") if lr is None else lr
    if descent is None or step is None or found is None or not found.value > 0 or not measures.updates:
        return None
    if not math.fsum(measures.weight_by_age.values()) > 0:
        return None
    limit = descent.limit(NetWeights(measures.weight_by_age, measures.weight_by_gap))
    sharpness = descent.sharpness(found.value)
    if not step > limit / sharpness:
        return None
    momentum = f" and momentum {descent.momentum:g}" if descent.momentum else ""
    return (
        f"warning: {label}: the step {step:g} is beyond {limit / sharpness:.3g}, the largest that is stable (in mean "
        f"square) at the measured staleness (mean {measures.mean_staleness:.1f}){momentum}: step x curvature must stay "
        f"below {limit:.3g}, and the curvature at the initial weights is {sharpness:.3g} ({found.samples} samples); "
        "the run diverges, or is driven to where the loss is flatter"
    )
