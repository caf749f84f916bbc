r"""How many workers a server has time for, from the busy times of its parts: exact, as far as means go.

Workers or groups $i$ that do not wait for each other make an update every $R_i$ seconds, if each has server and links
for itself. An update of $i$ keeps part $r$ of the server busy for $D_{i,r}$: its core, or a link in one direction. So
part $r$ is asked for the share

$$\rho_r = \sum_i \frac{D_{i,r}}{R_i}$$

of its time. More than all of it cannot be had: with the same mix of workers the busiest part saturates at
$N / \max_r \rho_r$ workers, and there are at most $\sum_i R_i^{-1} / \max_r \rho_r$ updates a second. Queueing before
that point, and several parts that are busy at once, make it less: the simulator tells. (The asymptotic bounds of
operational analysis; Denning & Buzen, *The Operational Analysis of Queueing Network Models*, 1978.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.core.coordinator import Strategy
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.grouped import Grouped
from paceline.theory.estimate import Estimate, weakest
from paceline.theory.runtime.renewal import Clock, clocks_of


@dataclass(frozen=True)
class Saturation:
    """Where a server has no more time: with so many ``workers``, and at most so many ``updates_per_second``.

    busiest  the part of it that is busy all the time then
    """

    workers: Estimate
    updates_per_second: Estimate
    busiest: str


@dataclass(frozen=True)
class _Round:
    """What an update takes alone, and the seconds for which it keeps each part of the server busy."""

    seconds: float
    busy: dict[str, float]


def saturation(strategy: Strategy, fleet: SimulatedFleet, message_bytes: int = 0) -> Saturation | None:
    """Where the server of ``fleet`` saturates; None if workers or groups wait for each other, or nothing takes time."""
    if fleet.machines is None and not fleet.server_seconds:
        return None
    clocks = clocks_of(strategy, replace(fleet, machines=None, server_seconds=0.0), 0.0)
    groups = _groups(strategy, fleet)
    if clocks is None or groups is None or any(clock.rank != len(clock.delays) for clock in clocks):
        return None
    rounds = [_round(clock, group, fleet, message_bytes) for clock, group in zip(clocks, groups, strict=True)]
    asked = {part: sum(each.busy[part] / each.seconds for each in rounds) for part in rounds[0].busy}
    busiest = max(asked, key=asked.__getitem__)
    if not asked[busiest]:
        return None
    source = weakest(*(clock.seconds.source for clock in clocks))
    rate = sum(1 / each.seconds for each in rounds)
    return Saturation(
        Estimate(fleet.workers / asked[busiest], source), Estimate(rate / asked[busiest], source), busiest
    )


def _groups(strategy: Strategy, fleet: SimulatedFleet) -> Sequence[Sequence[int]] | None:
    """The workers of each part of the fleet that makes updates by itself."""
    if type(strategy) is Asynchronous:
        return [[worker] for worker in range(fleet.workers)]
    if type(strategy) is Grouped and fleet.machines is not None and len(strategy.groups) > 1:
        return strategy.groups
    return None


def _round(clock: Clock, group: Sequence[int], fleet: SimulatedFleet, message_bytes: int) -> _Round:
    computing, machines = clock.seconds.value, fleet.machines
    if machines is None:
        server = fleet.server_seconds
        return _Round(computing + 2 * fleet.message_seconds(message_bytes) + server, {"the server": server})
    own = len({machines.machine(worker) for worker in group})
    size = machines.wire_bytes(message_bytes, fleet.wire)
    link = own * machines.alone(size)[1]
    return _Round(
        computing + machines.round_seconds(own, size),
        {
            "the server": machines.server_seconds(own),
            "the server's link for sums": link,
            "the server's link for weights": link,
        },
    )
