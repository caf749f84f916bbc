r"""Staleness of workers or groups with independent rounds: how often the others update during a round.

A *clock* is a part of the fleet that makes updates by itself. It downloads the model when its round starts. Since the
clocks are independent, the others are then in their stationary state, and their numbers of updates in a time $d$ are
distributed as

$$P(N_j(d) \ge n) = (F_j^e * F_j^{*(n-1)})(d), \qquad F_j^e(t) = \frac{1}{m_j}\int_0^t (1 - F_j(s))\,ds,$$

where $F_j$ is the distribution of its rounds, $m_j$ their mean and $*$ convolution (Cox, *Renewal Theory*, 1962). The
staleness is $\sum_{j \ne i} N_j(D_i)$, where $D_i$ is the length of the round. Its mean over all updates is the number
of clocks minus one, for any distributions.

The workers of a clock start a round together, and it ends with the $K$-th of them. So rounds are independent, and each
takes the order statistic $X_{(K)}$ and two transfers. ``Synchronous`` has one clock, ``Asynchronous`` one per worker,
``Grouped`` one per group. If late workers keep computing into the next round, rounds depend on each other, and there is
no such clock.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from paceline.core.coordinator import Strategy
from paceline.delays import Constant, Delay, Distribution, Empirical, PerSample, ShiftedExponential, Stretched
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.quorum_grace import QuorumGrace
from paceline.strategies.ringmaster import Ringmaster
from paceline.strategies.synchronous import Synchronous
from paceline.theory.estimate import Estimate
from paceline.theory.runtime.closed_forms import BUFFERS, ONE_BY_ONE
from paceline.theory.runtime.order_statistics import order_statistic_mean, order_statistic_means, round_cdf

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """Rounds of workers that start together and end with the ``rank``-th; a message takes ``transfer`` seconds."""

    delays: tuple[Distribution, ...]
    rank: int
    transfer: float

    @cached_property
    def seconds(self) -> Estimate:
        r"""The mean length of a round, $E X_{(K)} + 2c$ with the transfer $c$."""
        computing = order_statistic_mean(self.delays, self.rank)
        return replace(computing, value=computing.value + 2 * self.transfer)

    @cached_property
    def used(self) -> float:
        """Worker-seconds of computation in a round that are used in its update."""
        return float(order_statistic_means(self.delays, self.rank).means.sum())

    @property
    def stopped(self) -> float:
        """Worker-seconds of computation in a round by workers that are stopped at its end, without downloads."""
        return (len(self.delays) - self.rank) * (self.seconds.value - self.transfer)

    def cdf(self, seconds: Floats) -> Floats:
        """The probability that a round takes at most so long."""
        return round_cdf(self.delays, self.rank, np.maximum(seconds - 2 * self.transfer, 0.0))

    @property
    def independent_rounds(self) -> bool:
        """Is every duration drawn again in each round?"""
        return not any(isinstance(delay, ShiftedExponential) and delay.h > 1 for delay in self.delays)

    @property
    def may_tick_in_step(self) -> bool:
        """Can only certain lengths of a round occur? Two such clocks may stay in lockstep."""
        return any(isinstance(delay, Constant | Empirical) for delay in self.delays)


def clocks_of(strategy: Strategy, fleet: SimulatedFleet, transfer: float) -> list[Clock] | None:
    """The clocks of a strategy on a fleet, or None if rounds depend on each other or delays are unknown."""
    if fleet.server_seconds:
        return None  # all workers wait for the same server
    delays: list[Distribution] = []
    for delay in fleet.worker_delays:
        if not _is_drawn(delay):
            return None
        delays.append(delay)
    if type(strategy) is not Grouped:
        return _clocks(strategy, delays, fleet.recall, transfer)
    clocks: list[Clock] = []
    if type(strategy.inside) in BUFFERS:
        return None  # each group has a buffer of its own
    for group in strategy.groups:
        own = _clocks(strategy.inside, [delays[worker] for worker in group], fleet.recall, transfer)
        if own is None:
            return None
        clocks += own
    return clocks


def _is_drawn(delay: Delay) -> TypeGuard[Distribution]:
    if isinstance(delay, Stretched):
        return _is_drawn(delay.delay)
    if isinstance(delay, PerSample):
        return False  # of how many samples is not known
    return isinstance(delay, Distribution) and not (isinstance(delay, Empirical) and delay.in_order)


def _clocks(strategy: Strategy, delays: Sequence[Distribution], recall: str, transfer: float) -> list[Clock] | None:
    if type(strategy) in (*ONE_BY_ONE, *BUFFERS):
        return [Clock((delay,), 1, transfer) for delay in delays]
    rank = _rank(strategy, len(delays), recall, transfer)
    ordered = tuple(sorted(delays, key=repr))  # so that clocks with the same delays are equal
    return None if rank is None else [Clock(ordered, rank, transfer)]


def _rank(strategy: Strategy, workers: int, recall: str, transfer: float) -> int | None:
    """How many workers a round waits for, or None if workers do not start the next round together."""
    if type(strategy) is Synchronous:
        return workers
    if type(strategy) is FastestK:
        return strategy.quorum if strategy.stop_late or strategy.quorum == workers else None
    if type(strategy) is Ringmaster:
        return 1 if strategy.threshold == 1 and strategy.stop else None
    if type(strategy) is QuorumGrace:
        return workers if strategy.quorum == workers else None
    if type(strategy) is LiveCompensation:
        at_once = recall == "complete" or (recall == "abandon" and not transfer)
        return strategy.quorum if strategy.quorum == workers or (strategy.recall and at_once) else None
    return None


PARTS_OF_A_QUARTILE = 10  # grid cells between the quartiles of the steadiest clock
NEGLIGIBLE = 2e-6  # the probability of a round that is longer than the grid
LARGEST_GRID = 2e7  # cells times ticks: some seconds
MOST_KINDS = 12  # of clocks: the cost grows with the square


def exponential_staleness(clocks: Sequence[Clock]) -> Floats | None:
    r"""Distribution of staleness if every clock is one worker with exponential durations and no transfer. Exact.

    With the rates $r_i$ and their sum $R$ the next update is from worker $i$ with probability $p_i = r_i / R$:

    $$P(\tau = n) = \sum_i p_i \cdot p_i (1 - p_i)^n.$$
    """
    means = []
    for clock in clocks:
        match clock:
            case Clock(delays=(ShiftedExponential(shift=0.0, mean=mean, h=1),), transfer=0.0):
                means.append(mean)
            case _:
                return None
    rates = np.array(means) ** -1.0
    shares = rates / rates.sum()
    if len(shares) == 1:
        return np.array([1.0])
    longest = math.ceil(-30 / math.log1p(-shares.min()))
    ages = np.arange(longest + 1)
    return trimmed(sum(count * p**2 * (1 - p) ** ages for p, count in Counter(shares.tolist()).items()))


def renewal_staleness(clocks: Sequence[Clock]) -> Floats | None:
    """Distribution of staleness by convolutions on a grid, or None if the grid would be too large."""
    counts = Counter(clocks)
    if len(counts) > MOST_KINDS:
        return None
    longest = {clock: _longest(clock) for clock in counts}
    spreads = [spread for clock in counts if (spread := _quartiles(clock, longest[clock])) > 0]
    means = {clock: clock.seconds.value for clock in counts}
    cell = min([*(spread / PARTS_OF_A_QUARTILE for spread in spreads), *(mean / 50 for mean in means.values())])
    cells = math.ceil(max(longest.values()) / cell) + 1
    if cells * max(longest.values()) / min(means.values()) > LARGEST_GRID:
        return None
    grids = {clock: _round_grid(clock, cell, cells) for clock in counts}
    ticks = {clock: _tick_counts(clock, grids[clock], cell) for clock in counts}
    rate = sum(count / means[clock] for clock, count in counts.items())
    expected = rate * max(longest.values())
    length = 1 << math.ceil(math.log2(expected + 12 * math.sqrt(expected) + 64))
    found = np.zeros(length)
    for clock, count in counts.items():
        others = {other: number - (other == clock) for other, number in counts.items()}
        found += count / means[clock] / rate * _ticks_in(grids[clock], ticks, others, length)
    return trimmed(found)


def trimmed(shares: Floats, negligible: float = 1e-9) -> Floats:
    """Cut off a negligible tail, and normalize the sum to 1."""
    shares = shares.clip(0.0)
    shares /= shares.sum()
    last = int(np.searchsorted(np.cumsum(shares), 1 - negligible))
    kept = shares[: last + 1]
    return np.asarray(kept / kept.sum())


def _longest(clock: Clock) -> float:
    seconds = clock.seconds.value
    while float(clock.cdf(np.array([seconds]))[0]) < 1 - NEGLIGIBLE:
        seconds *= 1.25
    return seconds


def _quartiles(clock: Clock, longest: float) -> float:
    """The interquartile range of the length of a round."""
    places = np.linspace(0.0, longest, 20_001)
    first, third = np.searchsorted(clock.cdf(places), [0.25, 0.75])
    return float(places[third] - places[first])


def _round_grid(clock: Clock, cell: float, cells: int) -> Floats:
    """The probability that a round's length is nearest to each point of the grid."""
    return np.diff(clock.cdf(cell * (np.arange(cells + 1, dtype=np.float64) - 0.5)))


def _tick_counts(clock: Clock, rounds: Floats, cell: float) -> Floats:
    """The probability of 0, 1, ... updates (rows) from a random moment up to each point of the grid (columns)."""
    size = len(rounds)
    length = 1 << (2 * size - 1).bit_length()
    ahead = (
        (1 - clock.cdf(cell * np.arange(size, dtype=np.float64))) * cell / clock.seconds.value
    )  # when the next tick comes
    ahead[0] /= 2
    transform = np.fft.rfft(rounds, length)
    at_least = [np.ones(size)]
    while at_least[-1][-1] > 1e-9:
        at_least.append(np.cumsum(ahead) - ahead / 2)
        ahead = np.fft.irfft(np.fft.rfft(ahead, length) * transform, length)[:size]
    return -np.diff(np.array([*at_least, np.zeros(size)]), axis=0).clip(max=0.0)


def _ticks_in(rounds: Floats, ticks: Mapping[Clock, Floats], others: Mapping[Clock, int], length: int) -> Floats:
    """The distribution of the number of updates of all other clocks during a round."""
    weights, places = _representatives(rounds)
    product = np.ones((length // 2 + 1, len(places)), dtype=complex)
    below = np.floor(places).astype(int)
    above, part = np.minimum(below + 1, len(rounds) - 1), places - below
    for clock, number in others.items():
        if number:
            counts = ticks[clock][:length]
            product *= np.fft.rfft(counts[:, below] * (1 - part) + counts[:, above] * part, length, axis=0) ** number
    return np.asarray(np.fft.irfft(product, length, axis=0) @ weights)


def _representatives(rounds: Floats, number: int = 100) -> tuple[Floats, Floats]:
    """Weights and positions of about 200 bins for the length of a round, narrow in probability and in length."""
    total = np.cumsum(rounds)
    used = int(np.searchsorted(total, total[-1] * (1 - 1e-9))) + 1
    by_share = np.searchsorted(total, total[-1] * np.arange(number) / number)
    edges = np.unique([0, *by_share, *np.linspace(0, used, number).astype(int), used])
    edges = edges[edges <= used]
    weights = np.add.reduceat(rounds[:used], edges[:-1])
    places = np.add.reduceat(rounds[:used] * np.arange(used), edges[:-1])
    filled = weights > 0
    return weights[filled] / weights[filled].sum(), places[filled] / weights[filled]
