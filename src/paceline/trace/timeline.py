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
half of it is assumed, as in ``paceline.trace.history``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from paceline.core.messages import Step
from paceline.trace.history import History, Observer, TicketTimes
from paceline.trace.reading import Trace

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
    marks: list[Mark] = []
    reader = TimelineReader(marks.append)
    history = History(trace.about, [reader])
    for _ in trace.facts_of(history):
        if marks:
            yield from marks
            marks.clear()
    reader.end(history, end)
    yield from marks


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


class _Open:
    """A ticket that has ended, and what became of it; None as long as that is not known."""

    __slots__ = ("kind", "staleness", "times")

    def __init__(self, times: TicketTimes, kind: str | None) -> None:
        self.times, self.kind = times, kind
        self.staleness: int | None = None


class TimelineReader(Observer):
    """Tells of every span as soon as it is settled, of updates and of recalls, each as a ``Mark``."""

    def __init__(self, tell: Callable[[Mark], None]) -> None:
        self._tell = tell
        self._groups = _Groups()
        self._queues: dict[int, deque[_Open | Span]] = {}  # of each worker: its spans from the first unsettled one on
        self._open: dict[int, _Open] = {}  # by serial number: handed in, and no update has used it
        self._used: dict[int, _Open] = {}  # since the last event, for the first time
        self._touched: set[int] = set()  # workers of whose queue something may be settled
        self._last: TicketTimes | None = None

    def end(self, history: History, at: float) -> None:
        """Tell of what is left at the end of a history that this reader observed, and that went on until ``at``."""
        self.event()
        until = max(history.now, at)
        for worker, since in history.waiting():
            if until > since:
                self.waited(worker, since, until)
        for times in history.running():
            times.break_off(until)
            times.useful_until = until  # nobody knows
            self._add(times, "pending")
        for entry in self._open.values():
            entry.kind = "pending"
        self._touched.update(self._queues)
        self.event()

    def event(self) -> None:
        """Tell of the spans whose kind can no longer change, up to each worker's first that still can."""
        if self._used:
            self._used.clear()
        if not self._touched:
            return
        for worker in sorted(self._touched) if len(self._touched) > 1 else self._touched:
            queue = self._queues[worker]
            while queue:
                entry = queue[0]
                if isinstance(entry, Span):
                    self._tell(entry)
                elif entry.kind is not None:
                    self._tell_of(worker, entry.times, entry.kind, entry.staleness)
                else:
                    break
                queue.popleft()
        self._touched.clear()

    def _tell_of(self, worker: int, times: TicketTimes, kind: str, staleness: int | None) -> None:
        tell, serial = self._tell, times.ticket.serial
        started, downloaded, trained_from = times.started, times.downloaded, times.trained_from
        useful_until, sent, ended = times.useful_until, times.sent, times.ended
        if downloaded > started:
            tell(Span(worker, started, downloaded, "transfer", serial))
        if trained_from > downloaded:
            tell(Span(worker, downloaded, trained_from, "relabel", serial))
        if useful_until > trained_from:
            tell(Span(worker, trained_from, useful_until, kind, serial, staleness))
        if sent > useful_until:
            tell(Span(worker, useful_until, sent, "dropped", serial))
        if ended > sent:
            tell(Span(worker, sent, ended, "transfer", serial))

    def _add(self, times: TicketTimes, kind: str | None) -> _Open:
        worker, entry = times.ticket.worker, _Open(times, kind)
        if (queue := self._queues.get(worker)) is None:
            queue = self._queues[worker] = deque()
        queue.append(entry)
        self._touched.add(worker)
        return entry

    def waited(self, worker: int, since: float, until: float) -> None:
        if (queue := self._queues.get(worker)) is None:
            queue = self._queues[worker] = deque()
        queue.append(Span(worker, since, until, "wait"))
        self._touched.add(worker)

    def recalled(self, times: TicketTimes) -> None:
        assert times.recalled_at is not None
        self._tell(Recalled(times.recalled_at, times.ticket.worker, times.ticket.serial))

    def arrived(self, times: TicketTimes) -> None:
        self._open[times.ticket.serial] = self._add(times, None)
        self._last = times

    def halted(self, times: TicketTimes) -> None:
        self._add(times, "dropped")

    def dropped(self, times: TicketTimes) -> None:
        self._settle(self._open.pop(times.ticket.serial), "dropped")

    def non_finite(self, times: TicketTimes) -> None:
        self._settle(self._used.pop(times.ticket.serial), "dropped")

    def _settle(self, entry: _Open, kind: str) -> None:
        entry.kind = kind
        self._touched.add(entry.times.ticket.worker)

    def stepped(self, at: float, version: int, step: Step, first: Sequence[TicketTimes]) -> None:
        group = self._groups.join({ticket.worker for ticket in step.weights})
        before = self._groups.updated(group, version)
        ages = []
        for times in first:
            serial, age = times.ticket.serial, times.age(version)
            entry = self._used[serial] = self._open.pop(serial)
            entry.staleness = age
            self._settle(entry, "late" if before >= times.ticket.version else "compute")
            ages.append(age)
        waited_for, held_up = None, 0.0
        if len(first) > 1 and self._last is not None and self._last in first:
            waited_for = self._last.ticket.worker
            held_up = self._last.ended - max(times.ended for times in first if times is not self._last)
        workers = tuple(times.ticket.worker for times in first)
        self._tell(Updated(at, version + 1, workers, tuple(ages), waited_for, held_up))
