r"""Stability of a periodic pattern of updates: how old the models are that each update of a strategy uses.

An update along contributions that are $j$ updates old, with the weights $w_j$, is

$$x_{k+1} = x_k + m\,(x_k - x_{k-1}) - h \sum_j w_j\, x_{k-j}, \qquad h = \eta\lambda.$$

On workers of constant speed SSGD, ASGD and GSGD repeat a fixed pattern of such updates. The linear map of the last
models over one period is the monodromy matrix. The pattern is stable in the mean (and with additive noise in mean
square) if and only if all its eigenvalues are inside the unit circle. This is exact; a histogram of delays is not,
because it ignores their order.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.messages import Step
from paceline.engine.loop import Loop, NoLearner
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.theory.stability.limits import check_momentum, check_step
from paceline.trace.reading import Trace, read_trace
from paceline.trace.writing import TraceWriter

Floats = NDArray[np.float64]
Weights = tuple[tuple[int, float], ...]
AT_ONCE = 64  # learning rates tried together
RESCALED = 32  # updates after which numbers are rescaled, against overflow


@dataclass(frozen=True)
class Schedule:
    """For each update of a period, the ages (in updates) of the contributions that it uses, with their weights."""

    updates: tuple[Weights, ...]

    def __post_init__(self) -> None:
        if not self.updates:
            raise ConfigError("a schedule without updates has no stability: give at least one update")
        youngest = min((age for used in self.updates for age, _ in used), default=0)
        if youngest < 0:
            raise ConfigError(f"a contribution cannot be {youngest} updates old: at least 0")

    @property
    def longest(self) -> int:
        """The largest age."""
        return max((age for used in self.updates for age, _ in used), default=0)

    @property
    def delays(self) -> dict[int, float]:
        """The share of each age in the weights: a histogram of delays, without their order."""
        total: defaultdict[int, float] = defaultdict(float)
        for used in self.updates:
            for age, weight in used:
                total[age] += weight
        whole = sum(total.values())
        return {age: weight / whole for age, weight in sorted(total.items())}


def recorded_schedule(trace: Trace | Path | str) -> Schedule:
    """All updates of a recorded run as one period."""
    recorded = trace if isinstance(trace, Trace) else read_trace(trace)
    steps = [fact for fact in recorded if isinstance(fact, Step)]
    if not steps:
        raise ConfigError("the trace has no updates, so it has no schedule: record a longer run")
    return Schedule(tuple(_ages(version, step) for version, step in enumerate(steps)))


def simulated_schedule(strategy: Strategy, fleet: SimulatedFleet, updates: int = 1000, seed: int = 0) -> Schedule:
    """The periodic schedule of a strategy on a fleet, from a simulation of so many ``updates``.

    Workers of random speed have no period: then the whole second half of the simulation is taken as one.
    """
    if updates < 2:
        raise ConfigError(f"{updates} updates show no pattern: simulate at least 2")
    check = getattr(strategy, "check", None)
    if check is not None:
        check(fleet.workers, None)
    found = list[Weights]()
    for update in Loop(strategy, fleet.open(seed), NoLearner(), TraceWriter(None, {})):
        found.append(_ages(update.version, update.step))
        if len(found) == updates:
            break
    if not found:
        raise ConfigError(f"{strategy} makes no updates on this fleet")
    return Schedule(tuple(settled(found)))


def settled(updates: Sequence[Weights]) -> Sequence[Weights]:
    """The shortest period of the second half of the updates, or that half if it has no period."""
    half = updates[len(updates) // 2 :]
    for period in range(1, len(half) // 2 + 1):
        if half[period:] == half[:-period]:
            return half[-period:]
    return half


def schedule_growth(schedule: Schedule, scaled_step: float, momentum: float = 0.0) -> float:
    r"""The factor by which an update changes the mean error in the long run; below 1 is stable.

    ``scaled_step`` is $h = \eta\lambda$, the learning rate times the curvature.
    """
    check_step(scaled_step)
    check_momentum(momentum)
    return float(_growth(schedule, np.array([scaled_step]), momentum)[0])


def schedule_critical_step(schedule: Schedule, momentum: float = 0.0) -> float:
    r"""The largest learning rate times curvature, $\eta\lambda$, that is stable in the mean under this schedule.

    Values are tried in ratios of 1.05 up to the first that is not stable, and then between the last two, to 12 digits.
    A narrower interval of instability below the limit would be missed.
    """
    check_momentum(momentum)
    low, ratio = (1 - momentum) * 0.01 / (schedule.longest + 1), 1.05
    while True:
        steps = low * ratio ** np.arange(AT_ONCE, dtype=np.float64)
        stable = _growth(schedule, steps, momentum) < 1
        if not stable[0]:
            raise ConfigError(f"nothing above {low:.3g} is stable under this schedule: its weights do not descend")
        if stable.all():
            low = float(steps[-1])
            continue
        low = float(steps[np.argmin(stable) - 1])
        if ratio - 1 < 1e-12:
            return low
        ratio = 1 + max((ratio - 1) / (AT_ONCE - 1), 1e-13)


def _growth(schedule: Schedule, steps: Floats, momentum: float) -> Floats:
    """The spectral radius of the monodromy matrix per update, for each learning rate times curvature in ``steps``."""
    size = max(schedule.longest, 1) + 1
    # rows[i] is x_{k-i} as a combination of the models before the period, for each of ``steps``
    rows = [np.broadcast_to(row, (len(steps), size)).copy() for row in np.eye(size)]
    logarithm = np.zeros(len(steps))
    for number, used in enumerate(schedule.updates, start=1):
        new = (1 + momentum) * rows[0] - momentum * rows[1]
        for age, weight in used:
            new -= (weight * steps)[:, None] * rows[age]
        rows = [new, *rows[:-1]]
        if number % RESCALED == 0:
            largest = np.max([np.abs(row).max(axis=1) for row in rows], axis=0)
            logarithm += np.log(largest)
            rows = [row / largest[:, None] for row in rows]
    radius = np.abs(np.linalg.eigvals(np.stack(rows, axis=1))).max(axis=1)
    return np.asarray(np.exp((np.log(np.maximum(radius, 1e-300)) + logarithm) / len(schedule.updates)))


def _ages(version: int, step: Step) -> Weights:
    ages: defaultdict[int, float] = defaultdict(float)
    for ticket, weight in step.weights.items():
        ages[version - ticket.version] += float(weight)
    return tuple(sorted(ages.items()))
