"""GSGD with groups by measured speed, formed anew when speeds change."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Drop, Groups, Regroup, Within
from paceline.strategies.aggregation import Aggregation
from paceline.strategies.grouped import check_complete, disjoint, groups_by_speed
from paceline.strategies.inner import Inner, check_with_inner
from paceline.strategies.synchronous import Synchronous
from paceline.strategies.traits import check_inside

EVERYBODY: Groups = ((),)  # a worker that no group names belongs to the last one


@dataclass(frozen=True)
class Regrouped(Strategy):
    r"""``Grouped``, with groups by measured speed, which are formed anew when speeds change (GSGD, adaptive).

    The speed of a worker is $s_i$, the median of what its last ``window`` pieces of work took. Groups stay as they are
    until one of these holds, with the ``tolerance`` $\theta$ and the ``margin`` $\mu < \theta$:

    $$\frac{\max_{i \in G} s_i}{\min_{i \in G} s_i} > (1 + \theta)(1 + \mu) \;\text{ for a group } G, \qquad
    \frac{\max_{i \in G \cup H} s_i}{\min_{i \in G \cup H} s_i} \le \frac{1 + \theta}{1 + \mu} \;\text{ for two.}$$

    Then they are formed by ``groups_by_speed`` with the tolerance $\theta$, for which neither holds. So as long as no
    ratio of two speeds changes by more than the factor $1 + \mu$, nothing changes. Speeds are looked at whenever as
    many pieces as there are workers were handed in. Workers with fewer than ``window`` pieces stay where they are.

    A worker that changes its group hands in what it runs, which counts in the old one; then it begins with the model of
    the new one. ``groups`` are those to begin with; by default one of all.
    """

    groups: Sequence[Sequence[int]] = ()
    tolerance: float = 0.5
    margin: float = 0.2
    window: int = 9
    inside: Inner = Synchronous()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_with_inner(self, "inside")
        check_inside(self.inside, "Regrouped")
        object.__setattr__(self, "groups", disjoint(self.groups))
        if not 0 <= self.margin < self.tolerance:
            raise ConfigError(
                f"a margin of {self.margin} does not fit a tolerance of {self.tolerance}: from 0 to less than that, or "
                "groups would never be put together again"
            )
        if self.window < 1:
            raise ConfigError(f"a window of {self.window} measures nothing: at least 1 piece of work")

    @property
    def aggregation(self) -> Aggregation | None:
        """What becomes of models, if the rule inside hands them in."""
        return getattr(self.inside, "aggregation", None)

    def check(self, workers: int, batch_size: int | None) -> None:
        if self.groups:
            check_complete(self.groups, workers)
        check_fits(self.inside, workers, batch_size)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        assert isinstance(self.groups, tuple)
        parts = ledger.split(ledger.groups or self.groups or EVERYBODY, window=self.window)
        decisions: list[Decision] = [
            Within(number, decision) for number, part in parts for decision in self._inside(part)
        ]
        if (seconds := ledger.seconds) and (regroup := self._regroup(ledger, seconds)) is not None:
            decisions.append(regroup)
        return decisions

    def _inside(self, part: Ledger) -> Sequence[Decision]:
        """Where nobody is left, nobody will ever use what is still held."""
        decisions = self.inside.decide(part)
        return decisions or ([] if part.workers else [Drop(each) for each in (*part.fresh, *part.late, *part.kept)])

    def _regroup(self, ledger: Ledger, seconds: Mapping[int, float]) -> Regroup | None:
        members = [tuple(part.workers) for part in ledger.parts()]
        measured = [[worker for worker in part if worker in seconds] for part in members]
        why = self._too_unlike(measured, seconds) or self._too_like(measured, seconds)
        if not why:
            return None
        workers = sorted(worker for part in measured for worker in part)
        found = groups_by_speed([seconds[worker] for worker in workers], self.tolerance)
        wanted = [[workers[place] for place in group] for group in found]
        unknown = [[worker for worker in part if worker not in seconds] for part in members]
        return Regroup(_as_parts(wanted, measured, unknown), why)

    def _too_unlike(self, groups: Iterable[Sequence[int]], seconds: Mapping[int, float]) -> str:
        limit = (1 + self.tolerance) * (1 + self.margin)
        for group in filter(None, groups):
            fastest, slowest = min(group, key=seconds.__getitem__), max(group, key=seconds.__getitem__)
            if seconds[slowest] > limit * seconds[fastest]:
                return (
                    f"worker {slowest} takes {seconds[slowest]:.4g} s and worker {fastest} of its group "
                    f"{seconds[fastest]:.4g} s: {seconds[slowest] / seconds[fastest]:.2f} times, more than {limit:.4g}"
                )
        return ""

    def _too_like(self, groups: Iterable[Sequence[int]], seconds: Mapping[int, float]) -> str:
        limit = (1 + self.tolerance) / (1 + self.margin)
        bounds = [(min(own), max(own)) for own in ([seconds[worker] for worker in group] for group in groups) if own]
        least = math.inf  # the slowest of another group, none of which is faster
        for fastest, slowest in sorted(bounds, reverse=True):
            together = max(slowest, least)
            if together <= limit * fastest:
                return (
                    f"two groups take {fastest:.4g} to {together:.4g} s: within {together / fastest:.2f} times, not "
                    f"more than {limit:.4g}"
                )
            least = min(least, slowest)
        return ""


def _as_parts(wanted: Sequence[Sequence[int]], now: Sequence[Sequence[int]], stay: Sequence[Sequence[int]]) -> Groups:
    """The wanted groups, each with the number of the part that it has the most workers in common with."""
    common = sorted(
        (-len({*group}.intersection(part)), number, place)
        for place, group in enumerate(wanted)
        for number, part in enumerate(now)
    )
    number_of: dict[int, int] = {}
    for shared, number, place in common:
        if shared and place not in number_of and number not in number_of.values():
            number_of[place] = number
    unused = (number for number in range(len(now) + len(wanted)) if number not in number_of.values())
    for place in range(len(wanted)):
        number_of.setdefault(place, -1)
        if number_of[place] < 0:
            number_of[place] = next(unused)
    groups = [[*own] for own in stay] + [[] for _ in range(max(number_of.values(), default=0) + 1 - len(stay))]
    for place, group in enumerate(wanted):
        groups[number_of[place]] += group
    return tuple(tuple(sorted(group)) for group in groups)
