"""GSGD: synchronous inside groups of like speed, asynchronous between them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.core.ledger import Ledger
from paceline.core.messages import Decision, Groups, Within
from paceline.strategies.aggregation import Aggregation
from paceline.strategies.inner import Inner, check_with_inner
from paceline.strategies.synchronous import Synchronous
from paceline.strategies.traits import check_inside

MOST_NAMED = 16  # workers in a message


@dataclass(frozen=True)
class Grouped(Strategy):
    r"""Let every group follow the rule ``inside`` on its own; the groups do not wait for each other (GSGD).

    $$w_{t+1} = w_t - \eta_t\, g_{k(t)}, \qquad
    g_{k(t)} = \frac{1}{|\mathcal G_{k(t)}|} \sum_{i \in \mathcal G_{k(t)}} g(w_{t-\tau_t}; \xi_{t,i}),$$

    where $k(t)$ is the group that is ready and $\tau_t$ the updates the others made since it downloaded the model: on
    average the number of ``groups`` less one. After its step only that group downloads the new model. ``inside`` may be
    any strategy, or its name, as in ``inside="lgc:quorum=3,blocks=4"``; the paper has ``Synchronous``.

    Gao & Chen, *Group SGD: a tradeoff between straggler and staleness*, Eqs. (4), (5), Alg. 3.1.
    """

    groups: Sequence[Sequence[int]]
    inside: Inner = Synchronous()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        check_with_inner(self, "inside")
        check_inside(self.inside, "Grouped")
        object.__setattr__(self, "groups", disjoint(self.groups))
        if not self.groups:
            raise ConfigError(f"groups need at least one worker each: {self.groups}")

    @property
    def aggregation(self) -> Aggregation | None:
        """What becomes of models, if the rule inside hands them in."""
        return getattr(self.inside, "aggregation", None)

    def check(self, workers: int, batch_size: int | None) -> None:
        check_complete(self.groups, workers)
        check_inside = getattr(self.inside, "check", None)
        for group in self.groups:
            try:
                if check_inside is not None:
                    check_inside(len(group), batch_size)
            except ConfigError as error:
                raise ConfigError(f"in the group {list(group)}: {error}") from None

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        assert isinstance(self.groups, tuple)
        return [
            Within(number, decision)
            for number, part in ledger.split(self.groups)
            for decision in self.inside.decide(part)
        ]


def groups_by_speed(durations: Sequence[float], tolerance: float = 0.25) -> Groups:
    """Group workers of like speed.

    The rule: go through the workers from the fastest to the slowest; a worker whose typical duration is more than
    ``1 + tolerance`` times that of the fastest in the current group begins a new one.
    """
    if not tolerance >= 0:
        raise ConfigError(f"a tolerance of {tolerance} makes no groups: at least 0")
    groups: list[list[int]] = []
    longest = 0.0
    for worker in sorted(range(len(durations)), key=lambda worker: (durations[worker], worker)):
        if not groups or durations[worker] > longest:
            groups.append([])
            longest = durations[worker] * (1 + tolerance)
        groups[-1].append(worker)
    return tuple(tuple(sorted(group)) for group in groups)


def groups_by_label(labels: Sequence[str]) -> Groups:
    """One group for the workers of each label, such as the kind of node that they are on."""
    return tuple(tuple(worker for worker, own in enumerate(labels) if own == label) for label in dict.fromkeys(labels))


def disjoint(groups: Sequence[Sequence[int]]) -> Groups:
    """The groups as tuples; raises ``ConfigError`` if one is empty, or a worker is in two."""
    try:
        found: Groups = tuple(tuple(map(index, group)) for group in groups)
    except TypeError:
        example = "lists of worker numbers, as in [[0, 1], [2, 3]]"
        raise ConfigError(f"groups={shown(groups)} are no groups: give {example}") from None
    if not all(found):
        raise ConfigError(f"groups need at least one worker each: {found}")
    times = Counter(worker for group in found for worker in group)
    if twice := sorted(worker for worker, count in times.items() if count > 1):
        raise ConfigError(f"groups overlap: {_workers(twice)} named more than once; put each worker in one group")
    return found


def check_complete(groups: Sequence[Sequence[int]], workers: int) -> None:
    """Raise ``ConfigError`` unless the groups name each of the workers, and nobody else."""
    named = {worker for group in groups for worker in group}
    if missed := sorted(set(range(workers)) - named):
        raise ConfigError(f"groups miss {_workers(missed)}: put each of the {workers} workers in one group")
    if unknown := sorted(named - set(range(workers))):
        raise ConfigError(f"groups name {_workers(unknown)}: the fleet has workers 0 to {workers - 1}")


def _workers(numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    more = f" and {len(numbers) - MOST_NAMED:,} more" if len(numbers) > MOST_NAMED else ""
    return f"worker{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:MOST_NAMED]))}{more}"
