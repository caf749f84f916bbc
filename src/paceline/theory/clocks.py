r"""The parts of a fleet that make updates on their own clock.

Where the workers of a part begin a round together, and it ends with the $K$-th of them, its updates are a renewal
process: rounds are independent, each as long as the order statistic $X_{(K)}$ and two transfers. ``Synchronous`` is one
such clock, ``Asynchronous`` one for each worker, ``Grouped`` one for each group. Where late workers keep computing into
the next round, rounds depend on each other, and there is no such clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from paceline.core.coordinator import Strategy
from paceline.delays import Constant, Delay, Distribution, Empirical, ShiftedExponential
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.synchronous import Synchronous
from paceline.theory.estimate import Estimate
from paceline.theory.order_statistics import order_statistic_mean, order_statistic_means, round_cdf

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """Rounds of workers that begin together and end with the ``rank``-th; ``transfer`` is what one message takes."""

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
        """Seconds of computing in a round that end in its update, by all workers."""
        return float(order_statistic_means(self.delays, self.rank).means.sum())

    @property
    def stopped(self) -> float:
        """Seconds of computing in a round by those that are stopped when it ends: the download is not computing."""
        return (len(self.delays) - self.rank) * (self.seconds.value - self.transfer)

    def cdf(self, seconds: Floats) -> Floats:
        """The probability that a round takes at most so long."""
        return round_cdf(self.delays, self.rank, np.maximum(seconds - 2 * self.transfer, 0.0))

    @property
    def independent_rounds(self) -> bool:
        """No duration is held for several rounds."""
        return not any(isinstance(delay, ShiftedExponential) and delay.h > 1 for delay in self.delays)

    @property
    def may_tick_in_step(self) -> bool:
        """Its rounds have only certain lengths, so that it may keep pace with another such clock for ever."""
        return any(isinstance(delay, Constant | Empirical) for delay in self.delays)


def clocks_of(strategy: Strategy, fleet: SimulatedFleet, transfer: float) -> list[Clock] | None:
    """The clocks of a strategy on a fleet, or None if its rounds depend on each other or on what cannot be told."""
    if fleet.server_seconds:
        return None  # everybody waits for the same server
    delays: list[Distribution] = []
    for delay in fleet._delays:
        if not _is_drawn(delay):
            return None
        delays.append(delay)
    if type(strategy) is not Grouped:
        return _clocks(strategy, delays, fleet.recall, transfer)
    clocks: list[Clock] = []
    for group in strategy.groups:
        own = _clocks(strategy.inside, [delays[worker] for worker in group], fleet.recall, transfer)
        if own is None:
            return None
        clocks += own
    return clocks


def _is_drawn(delay: Delay) -> TypeGuard[Distribution]:
    return isinstance(delay, Distribution) and not (isinstance(delay, Empirical) and delay.in_order)


def _clocks(strategy: Strategy, delays: Sequence[Distribution], recall: str, transfer: float) -> list[Clock] | None:
    if type(strategy) is Asynchronous:
        return [Clock((delay,), 1, transfer) for delay in delays]
    rank = _rank(strategy, len(delays), recall, transfer)
    ordered = tuple(sorted(delays, key=repr))  # so that like clocks are equal
    return None if rank is None else [Clock(ordered, rank, transfer)]


def _rank(strategy: Strategy, workers: int, recall: str, transfer: float) -> int | None:
    """Whom a round waits for, if all workers begin the next one together."""
    if type(strategy) is Synchronous:
        return workers
    if type(strategy) is FastestK:
        return strategy.quorum if strategy.stop_late or strategy.quorum == workers else None
    if type(strategy) is LiveCompensation:
        at_once = recall == "complete" or (recall == "abandon" and not transfer)
        return strategy.quorum if strategy.quorum == workers or (strategy.recall and at_once) else None
    return None
