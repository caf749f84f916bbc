"""From a trace to the timeline of its workers: what each of them did at every moment that it was there.

    compute   work that the next update of its group used
    late      work that its group made an update without, and used in a later one
    dropped   work that was thrown away: halted, dropped, not finite, or a block that a recall broke off
    relabel   passing samples through other workers' models, for labels
    transfer  models on their way to the worker, or the contribution on its way back
    wait      nothing to do
    pending   the trace ends before it says what became of the work

A group is made of the workers whose work goes into common updates. The spans of one worker come in order, do not
overlap, and leave no gap while it is there. How far a block had come that a recall broke off, a trace does not tell:
half of it is assumed, as in ``measure``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from paceline.core.messages import Arrived, Drop, Event, Halt, Joined, Left, Rang, Recall, Start, Step, Ticket
from paceline.trace.measure import INSTANT, Piece
from paceline.trace.record import Billed, Fact, Spoiled, Trace

KINDS = ("compute", "late", "dropped", "relabel", "transfer", "wait", "pending")


class Span(NamedTuple):
    """What one worker did from ``start`` to ``end``, in seconds."""

    worker: int
    start: float
    end: float
    kind: str  # one of KINDS
    ticket: int | None = None  # serial number of the work
    staleness: int | None = None  # of work that was used: updates between its download of the model and its use


class Updated(NamedTuple):
    """An instant at which the model changed."""

    at: float
    number: int
    workers: tuple[int, ...]  # whose contributions it used for the first time
    staleness: tuple[int, ...]  # of each of these
    waited_for: int | None  # the worker that came last, of several
    held_up: float  # seconds between the last but one and the last


class Recalled(NamedTuple):
    """An instant at which a worker was asked to hand in what it had."""

    at: float
    worker: int
    ticket: int


Mark = Span | Updated | Recalled


def timeline(trace: Trace, *, end: float = 0.0) -> Iterator[Mark]:
    """Go through a trace once; what is kept in mind grows with the workers and the work not yet settled only.

    A run that was stopped by the clock may have gone on after its last event, with workers that computed or waited:
    ``end`` is when it was stopped.
    """
    reader = _Reader(float(trace.about.get("transfer_seconds", 0.0)))
    for fact in trace:
        yield from reader.follow(fact)
    yield from reader.end(end)


class _Piece:
    """A span whose kind may not be known yet."""

    __slots__ = ("end", "kind", "staleness", "start", "ticket")

    def __init__(self, start: float, end: float, kind: str | None, ticket: int | None = None) -> None:
        self.start, self.end, self.kind, self.ticket = start, end, kind, ticket
        self.staleness: int | None = None


class _HandedIn(NamedTuple):
    at: float
    piece: _Piece


class _Groups:
    """Workers whose work goes into common updates, and the last update of each such group."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}
        self._updated: dict[int, int] = {}

    def join(self, workers: Iterable[int]) -> int:
        """Make one group of all groups that these workers belong to; it is called by the number returned."""
        roots = {self._root(worker) for worker in workers}
        top = min(roots)
        last = max(self._updated.pop(root, -1) for root in roots)
        for root in roots:
            self._above[root] = top
        self._updated[top] = last
        return top

    def updated(self, group: int, number: int) -> int:
        """Note an update; the number of the one before it, or -1."""
        before, self._updated[group] = self._updated[group], number
        return before

    def _root(self, worker: int) -> int:
        root = worker
        while (above := self._above.setdefault(root, root)) != root:
            root = above
        while worker != root:
            self._above[worker], worker = root, self._above[worker]
        return root


class _Reader:
    """Follows the facts of a trace and gives out spans as soon as they are settled."""

    def __init__(self, transfer: float) -> None:
        self._transfer = transfer
        self._now = 0.0
        self._updates = 0
        self._present: set[int] = set()
        self._waits_since: dict[int, float] = {}
        self._running: dict[Ticket, Piece] = {}
        self._recalled: dict[Ticket, float] = {}
        self._handed_in: dict[Ticket, _HandedIn] = {}
        self._used: dict[Ticket, _Piece] = {}  # since the last event: one of them may turn out not to be finite
        self._last: Ticket | None = None
        self._groups = _Groups()
        self._pieces: dict[int, deque[_Piece]] = {}
        self._touched: set[int] = set()
        self._follow: Mapping[type, Callable[[Any], Iterable[Mark] | None]] = {
            Arrived: self._arrives,
            Start: self._start,
            Step: self._stepped,
            Joined: self._joined,
            Left: self._left,
            Rang: self._event,
            Recall: self._recall,
            Halt: self._halt,
            Drop: self._drop,
            Billed: self._billed,
            Spoiled: self._spoiled,
        }

    def follow(self, fact: Fact) -> Iterable[Mark]:
        if (follow := self._follow.get(type(fact))) is None:
            return ()
        return follow(fact) or ()

    def _event(self, fact: Event) -> list[Mark]:
        settled: list[Mark] = self._settled()
        self._now = fact.at
        return settled

    def _arrives(self, fact: Arrived) -> list[Mark]:
        settled = self._event(fact)
        self._arrived(fact.ticket, fact.done)
        return settled

    def _joined(self, fact: Joined) -> list[Mark]:
        settled = self._event(fact)
        self._present.add(fact.worker)
        self._waits_since[fact.worker] = self._now
        return settled

    def _left(self, fact: Left) -> list[Mark]:
        settled = self._event(fact)
        self._present.discard(fact.worker)
        self._wait_ends(fact.worker)
        return settled

    def _start(self, fact: Start) -> None:
        self._wait_ends(fact.ticket.worker)
        self._running[fact.ticket] = Piece(self._now, self._transfer, self._transfer)

    def _billed(self, fact: Billed) -> None:
        self._running[fact.ticket] = Piece(self._now, fact.download, fact.upload, fact.relabelling)

    def _stepped(self, fact: Step) -> list[Mark]:
        return [self._step(list(fact.weights))]

    def _recall(self, fact: Recall) -> list[Mark]:
        self._recalled[fact.ticket] = self._now
        return [Recalled(self._now, fact.ticket.worker, fact.ticket.serial)]

    def _halt(self, fact: Halt) -> None:
        self._broken_off(fact.ticket, "dropped")
        if fact.ticket.worker in self._present:
            self._waits_since[fact.ticket.worker] = self._now

    def _drop(self, fact: Drop) -> None:
        if (handed_in := self._handed_in.pop(fact.ticket, None)) is not None:  # a kept one was used already
            self._settle(fact.ticket, handed_in.piece, "dropped")

    def _spoiled(self, fact: Spoiled) -> None:
        if (piece := self._used.pop(fact.ticket, None)) is not None:
            self._settle(fact.ticket, piece, "dropped")

    def end(self, at: float) -> Iterator[Mark]:
        yield from self._settled()
        self._now = max(self._now, at)
        for worker in list(self._waits_since):
            self._wait_ends(worker)
        for ticket in list(self._running):
            self._broken_off(ticket, "pending")
        for ticket, handed_in in self._handed_in.items():
            self._settle(ticket, handed_in.piece, "pending")
        yield from self._settled()

    def _arrived(self, ticket: Ticket, done: int) -> None:
        now, running = self._now, self._running.pop(ticket)
        recalled_at = self._recalled.pop(ticket, None)
        at_once = recalled_at is not None and now - recalled_at < INSTANT  # nothing done, or completed by decree
        there = self._prepared(ticket, running)
        sent = now if at_once else max(there, now - running.upload)
        useful_until = sent
        if recalled_at is not None and done < ticket.work.units and sent - recalled_at < INSTANT:
            useful_until = there + (sent - there) * done / (done + 0.5)  # broken off in the middle of a block
        piece = self._add(ticket.worker, there, useful_until, None, ticket)
        self._add(ticket.worker, useful_until, sent, "dropped", ticket)
        self._add(ticket.worker, sent, now, "transfer", ticket)
        self._handed_in[ticket] = _HandedIn(now, piece)
        self._last = ticket
        self._waits_since[ticket.worker] = now

    def _broken_off(self, ticket: Ticket, kind: str) -> None:
        there = self._prepared(ticket, self._running.pop(ticket))
        self._recalled.pop(ticket, None)
        self._add(ticket.worker, there, self._now, kind, ticket)

    def _prepared(self, ticket: Ticket, running: Piece) -> float:
        """When a worker had the model and the labels, and could train."""
        there = min(running.started + running.download, self._now)
        labelled = min(there + running.relabelling, self._now)
        self._add(ticket.worker, running.started, there, "transfer", ticket)
        self._add(ticket.worker, there, labelled, "relabel", ticket)
        return labelled

    def _step(self, tickets: list[Ticket]) -> Updated:
        number, self._updates = self._updates, self._updates + 1
        used = {ticket: self._handed_in.pop(ticket) for ticket in tickets if ticket in self._handed_in}
        before = -1
        if tickets:
            before = self._groups.updated(self._groups.join(ticket.worker for ticket in tickets), number)
        for ticket, handed_in in used.items():
            handed_in.piece.staleness = number - ticket.version
            self._settle(ticket, handed_in.piece, "late" if before >= ticket.version else "compute")
            self._used[ticket] = handed_in.piece
        waited_for, held_up = None, 0.0
        if len(used) > 1 and self._last is not None and self._last in used:
            waited_for = self._last.worker
            others = max(handed_in.at for ticket, handed_in in used.items() if ticket != self._last)
            held_up = used[self._last].at - others
        ages = tuple(number - ticket.version for ticket in used)
        return Updated(self._now, number + 1, tuple(ticket.worker for ticket in used), ages, waited_for, held_up)

    def _wait_ends(self, worker: int) -> None:
        since = self._waits_since.pop(worker, None)
        if since is not None:
            self._add(worker, since, self._now, "wait")

    def _add(self, worker: int, start: float, end: float, kind: str | None, ticket: Ticket | None = None) -> _Piece:
        piece = _Piece(start, end, kind, None if ticket is None else ticket.serial)
        if end > start or kind is None:
            self._pieces.setdefault(worker, deque()).append(piece)
            self._touched.add(worker)
        return piece

    def _settle(self, ticket: Ticket, piece: _Piece, kind: str) -> None:
        piece.kind = kind
        self._touched.add(ticket.worker)

    def _settled(self) -> list[Mark]:
        """The spans whose kind can no longer change, up to each worker's first that still can."""
        settled: list[Mark] = []
        if self._used:
            self._used.clear()
        for worker in sorted(self._touched) if len(self._touched) > 1 else self._touched:
            pieces = self._pieces[worker]
            while pieces and pieces[0].kind is not None:
                piece = pieces.popleft()
                if piece.end > piece.start:
                    settled.append(
                        Span(worker, piece.start, piece.end, piece.kind or "", piece.ticket, piece.staleness)
                    )
        self._touched.clear()
        return settled
