"""What a strategy does on a fleet in the long run, by running it without a model: for where no formula is known."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.core.coordinator import Strategy
from paceline.core.messages import Ticket
from paceline.engine.loop import Loop, NoLearner, Update, seldom_collecting
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.theory.estimate import Estimate
from paceline.theory.net_weights import NetWeights
from paceline.trace.measure import measure
from paceline.trace.record import TraceWriter

PIECES_OF_WORK = 16_000  # half a second, more or less
PIECES_OF_A_WORKER = 20  # at least
FEWEST_UPDATES = 400
BATCHES = 20  # of updates, whose means tell how sure the mean of all is
SETTLING = 0.1  # the share of the updates at the beginning that is left out


@dataclass(frozen=True)
class Simulated:
    """Means over a long simulation; ``updates`` says how long."""

    updates: int
    seconds_per_update: Estimate
    wasted_share: Estimate
    mean_staleness: Estimate
    staleness: Mapping[int, float]
    weights: NetWeights


def simulated(strategy: Strategy, fleet: SimulatedFleet, message_bytes: int = 0, seed: int = 0) -> Simulated:
    """Run until enough was computed to tell the mean times to about a percent. Nobody leaves or joins."""
    fleet = replace(fleet, changes=())
    hands, enough = _Counting(), max(PIECES_OF_WORK, PIECES_OF_A_WORKER * fleet.workers)
    about = {"workers": fleet.workers, "transfer_seconds": fleet.network.seconds(message_bytes)}
    writer = TraceWriter(None, about)
    ages = _Ages()
    with seldom_collecting():
        for update in Loop(strategy, fleet.open(seed, message_bytes), hands, writer):
            ages.count(update)
            if hands.started >= enough and len(ages.times) >= FEWEST_UPDATES:
                break
    begin = int(SETTLING * len(ages.times))
    gaps, means = np.diff(ages.times)[begin:], np.array(ages.means)[begin:]
    measures = measure(writer.close())
    return Simulated(
        updates=len(ages.times),
        seconds_per_update=_mean(gaps),
        wasted_share=Estimate(measures.wasted_share, "simulation"),
        mean_staleness=_mean(means),
        staleness=ages.shares(),
        weights=NetWeights(measures.weight_by_age, measures.weight_by_gap),
    )


def _mean(values: NDArray[np.float64]) -> Estimate:
    """The mean, and its standard error from the means of consecutive batches, since neighbours depend on each other."""
    batches = [batch.mean() for batch in np.array_split(values, BATCHES)]
    return Estimate(float(values.mean()), "simulation", float(np.std(batches, ddof=1)) / math.sqrt(BATCHES))


class _Counting(NoLearner):
    """Counts what was given out."""

    started = 0

    def start(self, ticket: Ticket) -> None:
        self.started += 1


class _Ages:
    """When updates were made, and how old what each used for the first time was."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.means: list[float] = []
        self._first: defaultdict[int, float] = defaultdict(float)
        self._kept: frozenset[Ticket] = frozenset()

    def count(self, update: Update) -> None:
        step, kept = update.step, self._kept
        new = [update.version - ticket.version for ticket in step.weights if ticket not in kept]
        for age in new:
            self._first[age] += 1 / len(new)
        self.means.append(sum(new) / len(new))
        self.times.append(update.at)
        if step.keep or kept:
            self._kept = (kept - step.weights.keys()) | frozenset(step.keep)

    def shares(self) -> Mapping[int, float]:
        return {age: self._first[age] / len(self.times) for age in sorted(self._first)}
