"""From a trace to numbers: how stale the updates were, what the workers' time went into, and who was waited for.

Reads the trace once, from front to end; what it keeps in mind grows with the workers and their open tickets only.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from paceline.core.messages import Arrived, Drop, Halt, Joined, Left, Rang, Recall, Start, Step, Ticket
from paceline.trace.record import Billed, Fact, Spoiled, Trace

INSTANT = 1e-9  # seconds; two times that differ by less are one


@dataclass(slots=True)
class WorkerTime:
    """What became of one worker's time, in (virtual) seconds. Work that still ran at the end is left out."""

    worker: int
    busy: float = 0.0  # computing
    relabelling: float = 0.0  # the part of it that went into labels by other workers' models
    wasted: float = 0.0  # the part of it that no update used
    transfer: float = 0.0  # messages on their way
    idle: float = 0.0  # waiting for something to do
    contributions: int = 0  # handed in and used
    influence: float = 0.0  # the sum of the weights that its gradients had in all updates
    waited_for: int = 0  # updates of several workers that its arrival, the last one, made possible
    spoiled: int = 0  # contributions that were not finite


@dataclass(frozen=True)
class Measures:
    """A run in numbers.

    staleness  how many updates were made between a contribution's download of the model and its first use: of an
               update the mean over the contributions it uses for the first time, of the run the mean over its updates
    wasted     computing time of work that was halted, dropped, or not finite, and of blocks that a recall broke off. A
               trace does not tell how far such a block had come: half of it is assumed
    weight_by_age  the net weight on contributions of each staleness, those used again too: mean over the updates
    weight_by_gap  the products of the weights on two stalenesses in one update that differ by so much: likewise
    """

    seconds: float
    updates: int
    mean_staleness: float
    max_staleness: int
    workers: tuple[WorkerTime, ...]
    weight_by_age: Mapping[int, float]
    weight_by_gap: Mapping[int, float]
    hands_in_models: bool = False

    @property
    def compute(self) -> float:
        """What went into training."""
        return self.busy - self.relabelling

    @property
    def relabelling(self) -> float:
        return sum(each.relabelling for each in self.workers)

    @property
    def transfer(self) -> float:
        return sum(each.transfer for each in self.workers)

    @property
    def busy(self) -> float:
        return sum(each.busy for each in self.workers)

    @property
    def wasted(self) -> float:
        return sum(each.wasted for each in self.workers)

    @property
    def idle(self) -> float:
        return sum(each.idle for each in self.workers)

    @property
    def wasted_share(self) -> float:
        """Of the computing time, what no update used."""
        return self.wasted / self.busy if self.busy else 0.0

    @property
    def idle_share(self) -> float:
        """Of the workers' time, transfers left aside, what they spent waiting."""
        whole = self.busy + self.idle
        return self.idle / whole if whole else 0.0

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        shares = {"wasted_share": self.wasted_share, "idle_share": self.idle_share}
        return asdict(self) | shares


def measure(trace: Trace) -> Measures:
    """Go through a trace once."""
    reader = MeasureReader(trace.about)
    for fact in trace:
        if (follow := reader.follow.get(type(fact))) is not None:
            follow(fact)
    return reader.measures()


@dataclass(frozen=True)
class _Watched(Trace):
    """A trace whose facts a reader follows too, before whoever goes through it."""

    reader: "MeasureReader | None" = None

    def __iter__(self) -> Iterator[Fact]:
        assert self.reader is not None
        follow = self.reader.follow
        for fact in super().__iter__():
            if (measuring := follow.get(type(fact))) is not None:
                measuring(fact)
            yield fact


class Piece(NamedTuple):
    """A piece of work under way: when it was given out, and how many seconds go into what is not training."""

    started: float
    download: float
    upload: float
    relabelling: float = 0.0


class MeasureReader:
    """Follows the facts of a trace, each at a cost that does not grow with the run."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._transfer = float(about.get("transfer_seconds", 0.0))
        self._now = 0.0
        self._updates = 0
        self._staleness_total = 0.0
        self._staleness_most = 0
        self._workers = {number: WorkerTime(number) for number in range(int(about.get("workers", 0)))}
        self._present: set[int] = set()
        self._idle_since: dict[int, float] = {}
        self._running: dict[Ticket, Piece] = {}
        self._hands_in_models = False
        self._recalled: dict[Ticket, float] = {}  # running: when it was recalled
        self._unused: dict[Ticket, float] = {}  # handed in: the computing time that a first use would justify
        self._last: Ticket | None = None
        self._weight: tuple[Fraction | None, float] = (None, 0.0)
        self._last_used: dict[Ticket, float] = {}
        self._weight_by_age: dict[int, float] = {}
        self._weight_by_gap: dict[int, float] = {}
        self.follow: dict[type, Callable[[Any], None]] = {
            Joined: self._joined,
            Left: self._left,
            Rang: self._rang,
            Start: self._start,
            Billed: self._billed,
            Arrived: self._arrived,
            Halt: self._halt,
            Recall: self._recall,
            Drop: self._drop,
            Step: self._step,
            Spoiled: self._spoiled,
        }

    def watching(self, trace: Trace) -> Trace:
        """The same trace, which is measured while somebody else goes through it."""
        return _Watched(trace.lines, trace.source, self)

    @property
    def now(self) -> float:
        """The time of the last event, of those that were followed."""
        return self._now

    def measures(self) -> Measures:
        for worker, since in self._idle_since.items():
            self._of(worker).idle += self._now - since
        self._idle_since.clear()
        mean = self._staleness_total / self._updates if self._updates else 0.0
        workers = tuple(self._workers[number] for number in sorted(self._workers))
        ages, gaps = (
            {age: summed[age] / self._updates for age in sorted(summed)}
            for summed in (self._weight_by_age, self._weight_by_gap)
        )
        return Measures(
            self._now, self._updates, mean, self._staleness_most, workers, ages, gaps, self._hands_in_models
        )

    def _of(self, worker: int) -> WorkerTime:
        if (found := self._workers.get(worker)) is None:
            found = self._workers[worker] = WorkerTime(worker)
        return found

    def _joined(self, fact: Joined) -> None:
        self._now = fact.at
        self._present.add(fact.worker)
        self._idle_since[fact.worker] = fact.at

    def _left(self, fact: Left) -> None:
        self._now = fact.at
        self._present.discard(fact.worker)
        self._idle_ends(fact.worker)

    def _rang(self, fact: Rang) -> None:
        self._now = fact.at

    def _idle_ends(self, worker: int) -> None:
        since = self._idle_since.pop(worker, None)
        if since is not None:
            self._of(worker).idle += self._now - since

    def _start(self, fact: Start) -> None:
        self._idle_ends(fact.ticket.worker)
        self._running[fact.ticket] = Piece(self._now, self._transfer, self._transfer)

    def _billed(self, fact: Billed) -> None:
        self._running[fact.ticket] = Piece(self._now, fact.download, fact.upload, fact.relabelling)
        self._hands_in_models = True

    def _recall(self, fact: Recall) -> None:
        self._recalled[fact.ticket] = self._now

    def _arrived(self, fact: Arrived) -> None:
        self._now, ticket, done = fact.at, fact.ticket, fact.done
        recalled_at = self._recalled.pop(ticket, None) if self._recalled else None
        at_once = recalled_at is not None and self._now - recalled_at < INSTANT  # nothing done, or completed by decree
        piece = self._running.pop(ticket)
        sent = self._now if at_once else self._now - piece.upload
        seconds = self._spend(ticket, piece, sent)
        useful = seconds
        if recalled_at is not None and done < ticket.work.units and sent - recalled_at < INSTANT:
            useful = seconds * done / (done + 0.5)  # broken off in the middle of a block
        worker = self._of(ticket.worker)
        worker.wasted += seconds - useful
        worker.transfer += self._now - sent
        self._unused[ticket] = useful
        self._last = ticket
        self._idle_since[ticket.worker] = self._now

    def _halt(self, fact: Halt) -> None:
        ticket = fact.ticket
        self._of(ticket.worker).wasted += self._spend(ticket, self._running.pop(ticket), self._now)
        self._recalled.pop(ticket, None)
        if ticket.worker in self._present:
            self._idle_since[ticket.worker] = self._now

    def _spend(self, ticket: Ticket, piece: Piece, until: float) -> float:
        """Count the download and the computing of a piece up to a time; the seconds of the latter."""
        worker = self._of(ticket.worker)
        seconds = max(0.0, until - (piece.started + piece.download))
        if piece.download:
            worker.transfer += max(0.0, min(piece.download, until - piece.started))
        worker.busy += seconds
        if piece.relabelling:
            worker.relabelling += min(seconds, piece.relabelling)
        return seconds

    def _drop(self, fact: Drop) -> None:
        self._of(fact.ticket.worker).wasted += self._unused.pop(fact.ticket, 0.0)  # a kept one was used already

    def _float(self, weight: Fraction) -> float:
        """A weight as a float. The next one is mostly the same object, and converting takes as long as all the rest."""
        if weight is not self._weight[0]:
            self._weight = weight, float(weight)
        return self._weight[1]

    def _step_of_one(self, ticket: Ticket, weight: Fraction) -> None:
        """The same as ``_step`` does, where nothing is to be added up."""
        share, age, worker = self._float(weight), self._updates - ticket.version, self._of(ticket.worker)
        worker.influence += share
        seconds = self._unused.pop(ticket, None)
        self._last_used = {}
        if seconds is not None:
            self._last_used[ticket] = seconds
            worker.contributions += 1
            self._staleness_total += age
            self._staleness_most = max(self._staleness_most, age)
        ages, gaps = self._weight_by_age, self._weight_by_gap
        ages[age] = ages.get(age, 0.0) + share
        gaps[0] = gaps.get(0, 0.0) + share * share
        self._updates += 1

    def _step(self, fact: Step) -> None:
        if len(fact.weights) == 1:
            for ticket, weight in fact.weights.items():
                self._step_of_one(ticket, weight)
            return
        used: dict[Ticket, float] = {}
        by_age: dict[int, float] = {}
        for ticket, weight in fact.weights.items():
            share, age = self._float(weight), self._updates - ticket.version
            worker = self._of(ticket.worker)
            worker.influence += share
            by_age[age] = by_age.get(age, 0.0) + share
            if (seconds := self._unused.pop(ticket, None)) is not None:
                used[ticket] = seconds
                worker.contributions += 1
        if used:
            ages = [self._updates - ticket.version for ticket in used]
            self._staleness_total += sum(ages) / len(ages)
            self._staleness_most = max(self._staleness_most, *ages)
        if len(used) > 1 and self._last in used:
            assert self._last is not None
            self._of(self._last.worker).waited_for += 1
        self._count_weights(by_age)
        self._last_used = used
        self._updates += 1

    def _count_weights(self, by_age: Mapping[int, float]) -> None:
        ages, gaps = self._weight_by_age, self._weight_by_gap
        for age, weight in by_age.items():
            ages[age] = ages.get(age, 0.0) + weight
            for other, another in by_age.items():
                gap = abs(age - other)
                gaps[gap] = gaps.get(gap, 0.0) + weight * another

    def _spoiled(self, fact: Spoiled) -> None:
        worker = self._of(fact.ticket.worker)
        if (seconds := self._last_used.pop(fact.ticket, None)) is not None:
            worker.contributions -= 1
            worker.spoiled += 1
            worker.wasted += seconds
