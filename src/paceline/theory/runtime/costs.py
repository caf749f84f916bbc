r"""Speed, wasted work and staleness of a strategy on a fleet, from formulas where they are known.

Time comes from order statistics, staleness from renewal theory. A simulation without a model is used, and named as the
source, if late workers keep computing into the next round, so that rounds depend on each other, or if workers wait for
the server. On machines that share links, rounds of all workers together have a formula, and where the server saturates
(``saturation``); else they are simulated:

| strategy | time of an update | staleness |
|---|---|---|
| ``Synchronous`` | $E X_{(N)} + 2c$ | 0 |
| ``FastestK`` | $E X_{(K)} + 2c$; simulation if late workers are not stopped | 0 |
| ``Asynchronous`` | $1 / \sum_i (E X_i + 2c)^{-1}$ | $P-1$ in the mean; distribution by ``renewal`` |
| ``LiveCompensation`` | $E X_{(K)} + 2c$ if late workers answer a recall at once; else simulation | 1 for the late |
| ``Grouped`` | $1 / \sum_g T_g^{-1}$ over the groups' rounds | groups minus one in the mean; likewise |
| ``UnequalBatches`` | simulation, sizes changing on the way | as of the rule inside |
| others | ``closed_forms`` | likewise |

$X_{(K)}$ is the $K$-th order statistic of the workers' durations and $c$ the transfer of one message. All are
means in the long run, without warm-up rounds and without workers that leave or join.

Xu, *Live Gradient Compensation*, Sec. III-B; Gao & Chen, *Group SGD*, Sec. 3.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.core.coordinator import Strategy
from paceline.data.sizes import BatchSizes
from paceline.engine.arguments import simulated_sizes
from paceline.engine.loop import Stepped
from paceline.engine.measured import CountedWork, MeasuredSimulation
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.ringmaster import Ringmaster
from paceline.theory.estimate import Estimate, Source, weakest
from paceline.theory.runtime.closed_forms import (
    BUFFERS,
    NEVER_STALE,
    NOTHING_LOST,
    WEIGHED,
    buffer_staleness,
    constant_seconds,
    gradients_an_update,
)
from paceline.theory.runtime.renewal import Clock, clocks_of, exponential_staleness, renewal_staleness
from paceline.theory.runtime.saturation import Saturation, saturation
from paceline.theory.stability.net_weights import NetWeights
from paceline.trace.staleness import Staleness

PIECES_OF_WORK = 16_000  # about half a second
PIECES_OF_A_WORKER = 20  # at least
FEWEST_UPDATES = 400
BATCHES = 20  # of updates, for the standard error of the mean
SETTLING = 0.1  # share of the updates at the start that is left out


@dataclass(frozen=True)
class Simulated:
    """Means over a long simulation of so many ``updates``."""

    updates: int
    seconds_per_update: Estimate
    wasted_share: Estimate
    mean_staleness: Estimate
    staleness: Mapping[int, float]
    weights: NetWeights


def simulated(
    strategy: Strategy, fleet: SimulatedFleet, message_bytes: int = 0, seed: int = 0, sizes: BatchSizes | None = None
) -> Simulated:
    """Simulate until mean times are known to about one percent. No worker leaves or joins."""
    fleet = replace(fleet, changes=())
    work = CountedWork()
    simulation = MeasuredSimulation(strategy, fleet, work, message_bytes=message_bytes, sizes=sizes, seed=seed)
    ages, enough = _Ages(), max(PIECES_OF_WORK, PIECES_OF_A_WORKER * fleet.workers)
    for update in simulation:
        ages.count(update)
        if work.assigned >= enough and len(ages.times) >= FEWEST_UPDATES:
            break
    begin = int(SETTLING * len(ages.times))
    gaps, means = np.diff(ages.times)[begin:], np.array(ages.means)[begin:]
    measures = simulation.measures()
    return Simulated(
        updates=len(ages.times),
        seconds_per_update=_mean(gaps),
        wasted_share=Estimate(measures.wasted_share, "simulation"),
        mean_staleness=_mean(means),
        staleness=ages.shares(),
        weights=NetWeights(measures.weight_by_age, measures.weight_by_gap),
    )


def _mean(values: NDArray[np.float64]) -> Estimate:
    """The mean, and its standard error from the means of consecutive batches, because values are correlated."""
    batches = [batch.mean() for batch in np.array_split(values, BATCHES)]
    return Estimate(float(values.mean()), "simulation", float(np.std(batches, ddof=1)) / math.sqrt(BATCHES))


class _Ages:
    """The time of each update, and the age of what it used for the first time."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.means: list[float] = []
        self._first: defaultdict[int, float] = defaultdict(float)
        self._staleness = Staleness()

    def count(self, update: Stepped) -> None:
        new = self._staleness.count(update.version, update.step, update.dropped)
        for age in new:
            self._first[age] += 1 / len(new)
        self.means.append(sum(new) / len(new))
        self.times.append(update.at)

    def shares(self) -> Mapping[int, float]:
        return {age: self._first[age] / len(self.times) for age in sorted(self._first)}


@dataclass(frozen=True)
class Ages:
    """Distribution of the age of what an update uses: ages in updates, mapped to shares that add up to 1."""

    shares: Mapping[int, float]
    source: Source

    @property
    def mean(self) -> float:
        return sum(age * share for age, share in self.shares.items())

    def quantile(self, probability: float) -> int:
        """The smallest age such that at least this share is not older."""
        total = 0.0
        for age in sorted(self.shares):
            total += self.shares[age]
            if total >= probability - 1e-12:
                return age
        return max(self.shares)


FRESH = Ages({0: 1.0}, "exact")


@dataclass(frozen=True)
class Runtime:
    """Speed, waste and staleness of a strategy on a fleet in the long run.

    wasted_share    share of the computing time that no update uses
    mean_staleness  updates between the download of a model and the first use of its gradient, mean over the updates
    staleness       its distribution: every update counts once, shared among the contributions that it uses first
    weights         the net weights of gradients of each age in an update, on which the stable learning rate depends,
                    with ``weights_source``. They are ``staleness``, except where a rule uses a gradient again:
                    ``LiveCompensation`` subtracts from fast workers what it adds for late ones
    saturation      how many workers the server has time for; None where it takes none, or workers wait for each other
    """

    updates_per_second: Estimate
    wasted_share: Estimate
    mean_staleness: Estimate
    staleness: Ages
    weights: NetWeights
    weights_source: Source
    saturation: Saturation | None = None

    @property
    def seconds_per_update(self) -> Estimate:
        rate = self.updates_per_second
        if not rate.value:
            return Estimate(float("inf"), rate.source)
        return Estimate(1 / rate.value, rate.source, rate.error and rate.error / rate.value**2)


def runtime(
    strategy: Strategy,
    fleet: SimulatedFleet,
    *,
    batch_size: int | Sequence[int] | None = None,
    message_bytes: int = 0,
    seed: int = 0,
) -> Runtime:
    """Expected speed, waste and staleness of ``strategy`` on ``fleet``, each with its source.

    batch_size     of all workers, or of each: for ``PerSample`` delays, and where workers have sizes of their own
    message_bytes  size of the model; with the fleet's network it gives the transfer time of a message
    seed           random seed of the simulation, if one is needed
    """
    case = _case(strategy, fleet, batch_size, message_bytes, seed)
    as_sized = fleet if case.sizes is None else fleet.sized(case.sizes)
    found = case.rate(), case.waste(), case.mean_staleness(), case.staleness, *case.weights()
    return Runtime(*found, saturation(strategy, as_sized, message_bytes))


def formula_rate(
    strategy: Strategy, fleet: SimulatedFleet, batch_size: int | Sequence[int] | None = None, message_bytes: int = 0
) -> Estimate | None:
    """Updates a second of ``strategy`` on ``fleet`` by a formula alone; None where there is none."""
    case = _case(strategy, fleet, batch_size, message_bytes, seed=0)
    return case.rate() if case.has_formula else None


def _case(
    strategy: Strategy, fleet: SimulatedFleet, batch_size: int | Sequence[int] | None, message_bytes: int, seed: int
) -> "_Case":
    sizes = simulated_sizes(strategy, fleet.workers, batch_size)
    transfer = fleet.message_seconds(message_bytes)
    if (machines := fleet.machines) is not None:  # half of what a round of all of them takes besides computing
        size = machines.wire_bytes(message_bytes, fleet.wire)
        transfer = machines.round_seconds(machines.machine(fleet.workers - 1) + 1, size) / 2
    as_sized = fleet if sizes is None else fleet.sized(sizes)
    return _Case(strategy, fleet, clocks_of(strategy, as_sized, transfer), message_bytes, seed, sizes)


@dataclass(frozen=True)
class _Case:
    """A strategy on a fleet; simulated once, and only if a number needs it."""

    strategy: Strategy
    fleet: SimulatedFleet
    clocks: Sequence[Clock] | None
    message_bytes: int
    seed: int
    sizes: BatchSizes | None = None

    @cached_property
    def simulation(self) -> Simulated:
        return simulated(self.strategy, self.fleet, self.message_bytes, self.seed, self.sizes)

    @property
    def has_formula(self) -> bool:
        return self.clocks is not None or self._constant() is not None

    @property
    def inner(self) -> Strategy:
        return self.strategy.inside if isinstance(self.strategy, Grouped) else self.strategy

    @cached_property
    def transfers_take_time(self) -> bool:
        return self.fleet.machines is not None or self.fleet.message_seconds(self.message_bytes) > 0

    def rate(self) -> Estimate:
        if (constant := self._constant()) is not None:
            return Estimate(1 / constant, "exact")
        if self.clocks is None:
            gap = self.simulation.seconds_per_update
            return Estimate(1 / gap.value, "simulation", gap.error and gap.error / gap.value**2)
        rounds = [clock.seconds for clock in self.clocks]
        size = gradients_an_update(self.strategy)
        rate = sum(1 / each.value for each in rounds) / size
        error = sum(each.error / each.value**2 for each in rounds if each.error) / size
        return Estimate(rate, weakest(*(each.source for each in rounds)), error or None)

    def _constant(self) -> float | None:
        return constant_seconds(self.strategy, self.fleet, self.fleet.network.seconds(self.message_bytes))

    def waste(self) -> Estimate:
        if type(self.inner) in (FastestK, Ringmaster) and self.clocks is not None:
            rates = [1 / clock.seconds.value for clock in self.clocks]
            stopped = sum(rate * clock.stopped for rate, clock in zip(rates, self.clocks, strict=True))
            used = sum(rate * clock.used for rate, clock in zip(rates, self.clocks, strict=True))
            return Estimate(stopped / (stopped + used), self.rate().source)
        if self._all_is_used():
            return Estimate(0.0, "exact")
        return self.simulation.wasted_share

    def _all_is_used(self) -> bool:
        """Is no work ever stopped, dropped or interrupted?"""
        inner = self.inner
        if type(inner) is LiveCompensation:
            whole = not inner.recall or self.fleet.recall == "complete"
            return whole or (self.fleet.recall == "block" and not self.transfers_take_time)
        return type(inner) in NOTHING_LOST or (self.clocks is not None and type(inner) not in (FastestK, Ringmaster))

    def mean_staleness(self) -> Estimate:
        if (of_buffer := buffer_staleness(self.strategy, self.fleet)) is not None:
            return Estimate(of_buffer, "exact")
        if self.clocks is not None and self._counts_others() and not self._meet_for_sure():
            finite = all(clock.seconds.value < float("inf") for clock in self.clocks)
            if finite or len(self.clocks) == 1:
                return Estimate(float(len(self.clocks) - 1), "exact")
        ages = self.staleness
        return Estimate(ages.mean, "exact") if ages.source == "exact" else self.simulation.mean_staleness

    @cached_property
    def staleness(self) -> Ages:
        if not isinstance(self.strategy, Grouped) or len(self.strategy.groups) == 1:
            if type(self.inner) in (FastestK, *NEVER_STALE):
                return FRESH  # late work is dropped
            if type(self.inner) is LiveCompensation and self._all_is_used():
                late = 1 - self.inner.quorum / self.fleet.workers
                return Ages({0: 1 - late, 1: late}, "exact") if late else FRESH
        if self.clocks is not None and self._counts_others() and type(self.inner) not in BUFFERS:
            if len(self.clocks) == 1:
                return FRESH
            if (found := self._of_independent_clocks(self.clocks)) is not None:
                return found
        return Ages(self.simulation.staleness, "simulation")

    def _of_independent_clocks(self, clocks: Sequence[Clock]) -> Ages | None:
        in_step = sum(clock.may_tick_in_step for clock in clocks)
        finite = all(clock.seconds.value < float("inf") for clock in clocks)
        if in_step > 1 or not finite or not all(clock.independent_rounds for clock in clocks):
            return None
        if (closed := exponential_staleness(clocks)) is not None:
            return Ages(dict(enumerate(closed.tolist())), "exact")
        found = renewal_staleness(clocks)
        return None if found is None else Ages(dict(enumerate(found.tolist())), "quadrature")

    def _counts_others(self) -> bool:
        """Was everything that an update uses started right after the previous update of the same clock?"""
        inner = self.inner
        return type(inner) is not LiveCompensation or all(
            inner.quorum == len(group) for group in getattr(self.strategy, "groups", [range(self.fleet.workers)])
        )

    def _meet_for_sure(self) -> bool:
        """Do contributions that arrive at one instant form one event, and so not make each other stale?"""
        return self.fleet.ties == "batch" and sum(clock.may_tick_in_step for clock in self.clocks or ()) > 1

    def weights(self) -> tuple[NetWeights, Source]:
        inner = self.inner
        if type(inner) is LiveCompensation and not self._counts_others():
            alone = not isinstance(self.strategy, Grouped) or len(self.strategy.groups) == 1
            whole = not inner.recall or self.fleet.recall == "complete" or not inner.scale or inner.blocks == 1
            if alone and whole and self._all_is_used():
                # what is added for late workers is subtracted from the fast ones of the same round
                return NetWeights.of_delays(FRESH.shares), "exact"
            return self.simulation.weights, "simulation"
        if (
            self.staleness.source == "simulation" or type(inner) in WEIGHED
        ):  # for a rule without formulas: several ages in one update
            return self.simulation.weights, "simulation"
        return NetWeights.of_delays(self.staleness.shares), self.staleness.source
