"""What a strategy may look at: who is here, who computes what, and what was handed in.

Every reading is kept up to date as things happen, so that a rule never has to loop over the fleet: reading costs the
same with 16 workers as with 10,000, and each ticket moves from one index to the next at most once.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from paceline.core.codec import plain_ticket, real, ticket_from, whole
from paceline.core.errors import IllegalDecision
from paceline.core.messages import Groups, Ticket
from paceline.core.pace import Pace


class Ledger:
    """The state of a training run, or of one part of it, as its strategy sees it. Read only.

    workers     who is here
    idle        who is here, computes nothing, and has handed in nothing for the current round
    running     worker -> the ticket it computes
    behind      running tickets given out before the last update of this ledger
    recalled    running tickets that were asked to hand in what they have
    fresh       ticket -> units done; handed in, unused, given out since the last update
    late        ticket -> units done; handed in, unused, given out before the last update
    handed_in   fresh and late together, in the order of arrival
    kept        ticket -> units done; used, and kept for a later step
    round       how many updates this ledger has made
    now         the time of the last event
    updated_at  the time of the last update
    alarms      the times that the strategy asked to be woken at and that have not come yet
    memory      what the strategy asked to remember
    groups      the workers of each part, if it is split

    A part offers its ``round``, never the global version, so that nothing it sees changes behind its back.
    """

    __slots__ = (
        "_alarms", "_behind", "_current", "_fresh", "_groups", "_handed_in", "_holding", "_idle", "_kept", "_late",
        "_memory", "_moving", "_pace", "_part_of", "_parts", "_recalled", "_running", "_touched", "_workers", "alarms",
        "behind", "fresh", "handed_in", "idle", "kept", "late", "memory", "now", "recalled", "round", "running",
        "updated_at", "workers",
    )  # fmt: skip

    def __init__(self) -> None:
        self._workers: dict[int, None] = {}
        self._idle: dict[int, None] = {}
        self._running: dict[int, Ticket] = {}
        self._current: dict[Ticket, None] = {}  # running, given out since the last update: the others are behind
        self._behind: dict[Ticket, None] = {}
        self._recalled: dict[Ticket, None] = {}
        self._fresh: dict[Ticket, int] = {}
        self._late: dict[Ticket, int] = {}
        self._handed_in: dict[Ticket, None] = {}
        self._kept: dict[Ticket, int] = {}
        self._holding: dict[int, int] = {}  # worker -> how many of the fresh tickets are its own
        self._alarms: dict[float, None] = {}
        self._memory: dict[str, float] = {}

        self.workers: Collection[int] = self._workers.keys()
        self.idle: Collection[int] = self._idle.keys()
        self.running: Mapping[int, Ticket] = MappingProxyType(self._running)
        self.behind: Collection[Ticket] = self._behind.keys()
        self.recalled: Collection[Ticket] = self._recalled.keys()
        self.fresh: Mapping[Ticket, int] = MappingProxyType(self._fresh)
        self.late: Mapping[Ticket, int] = MappingProxyType(self._late)
        self.handed_in: Collection[Ticket] = self._handed_in.keys()
        self.kept: Mapping[Ticket, int] = MappingProxyType(self._kept)
        self.alarms: Collection[float] = self._alarms.keys()
        self.memory: Mapping[str, float] = MappingProxyType(self._memory)
        self.round = 0
        self.now = 0.0
        self.updated_at = 0.0

        self._groups: Groups = ()
        self._parts: list[Ledger] = []
        self._part_of: dict[int, int] = {}
        self._touched: dict[int, None] = {}
        self._moving: dict[int, int] = {}  # worker -> the part that it joins when what it runs has ended
        self._pace: Pace | None = None

    # Parts: a part of a ledger is a ledger.

    def split(self, groups: Groups, *, window: int = 0) -> Sequence[tuple[int, "Ledger"]]:
        """One part for each group; returns (number, part) of those that something happened to since they were asked.

        They come in the order in which it happened, so that those who arrive together are served as they arrived; at
        first in the order of the groups. A worker that no group names belongs to the last one. The split is made once,
        before any work is given out; from then on ``Regroup`` changes it. With a ``window``, ``seconds`` are measured.
        """
        if groups is not self._groups and groups != self._groups:
            self._make_parts(groups, window)
        parts = self._parts
        return [(number, parts[number]) for number in self._touched]

    @property
    def groups(self) -> Groups:
        return self._groups

    @property
    def seconds(self) -> Mapping[int, float]:
        """Worker -> the median of what its last ``window`` pieces of work took, of those who did so many.

        Empty unless as many pieces as there are workers came in since the strategy was shown it last.
        """
        pace = self._pace
        return pace.seconds() if pace is not None and pace.news >= len(self._workers) else {}

    def _new_part(self) -> "Ledger":
        return Ledger() if self._pace is None else _TimedPart(self._pace)

    def _make_parts(self, groups: Groups, window: int) -> None:
        if self._parts:
            raise IllegalDecision(f"cannot split by {groups}: this ledger is already split by {self._groups}")
        if self._running or self._fresh or self._late or self._kept:
            raise IllegalDecision(f"cannot split into {len(groups)} groups: split once, before any work is given out")
        self._groups = groups
        self._pace = Pace(window) if window else None
        self._parts = [self._new_part() for _ in groups]
        self._part_of = {worker: number for number, group in enumerate(groups) for worker in group}
        for number in sorted({self._part_number(worker) for worker in self._workers}):
            self._touched[number] = None
        for worker in self._workers:
            part = self._parts[self._part_number(worker)]
            part.now = self.now
            part._join(worker)

    def _part_number(self, worker: int) -> int:
        return self._part_of.get(worker, len(self._parts) - 1)

    def _path(self, worker: int) -> tuple["Ledger", ...]:
        """This ledger and every part, from the outermost to the innermost, that the worker belongs to."""
        ledger = self
        path = [ledger]
        while ledger._parts:
            ledger = ledger._parts[ledger._part_number(worker)]
            path.append(ledger)
        return tuple(path)

    def parts(self) -> Sequence["Ledger"]:
        return tuple(self._parts)

    # What follows is for the coordinator. It has checked everything; here the indices only follow.

    def _join(self, worker: int) -> None:
        self._workers[worker] = None
        if worker not in self._holding:
            self._idle[worker] = None

    def _leave(self, worker: int) -> None:
        del self._workers[worker]
        self._idle.pop(worker, None)

    def _start(self, ticket: Ticket) -> None:
        self._idle.pop(ticket.worker, None)
        self._running[ticket.worker] = ticket
        self._current[ticket] = None

    def _arrive(self, ticket: Ticket, done: int) -> None:
        worker = ticket.worker
        del self._running[worker]
        if self._recalled:
            self._recalled.pop(ticket, None)
        if ticket in self._current:
            del self._current[ticket]
            self._fresh[ticket] = done
            self._holding[worker] = self._holding.get(worker, 0) + 1
        else:
            del self._behind[ticket]
            self._late[ticket] = done
            self._free(worker)
        self._handed_in[ticket] = None

    def _halt(self, ticket: Ticket) -> None:
        del self._running[ticket.worker]
        self._recalled.pop(ticket, None)
        if ticket in self._current:
            del self._current[ticket]
        else:
            del self._behind[ticket]
        self._free(ticket.worker)

    def _free(self, worker: int) -> None:
        if worker in self._workers and worker not in self._running and worker not in self._holding:
            self._idle[worker] = None

    def _drop(self, ticket: Ticket) -> None:
        self._handed_in.pop(ticket, None)
        if ticket in self._fresh:
            del self._fresh[ticket]
            self._holding[ticket.worker] -= 1
            if not self._holding[ticket.worker]:
                del self._holding[ticket.worker]
                self._free(ticket.worker)
        else:
            self._late.pop(ticket, None)
            self._kept.pop(ticket, None)

    def _step(self, weights: Mapping[Ticket, object], keep: Collection[Ticket]) -> None:
        fresh, late, kept = self._fresh, self._late, self._kept
        keep = keep if len(keep) < 2 else frozenset(keep)
        handed_in = self._handed_in
        for ticket in weights:
            handed_in.pop(ticket, None)  # what was kept is not there
            done = fresh.pop(ticket, None)
            if done is None:
                done = late.pop(ticket, None)
            if done is None:
                done = kept.pop(ticket)
            if ticket in keep:
                kept[ticket] = done
        if fresh:  # what the step left unused
            late.update(fresh)
            fresh.clear()
        if self._current:
            self._behind.update(self._current)
            self._current.clear()
        running, workers, idle = self._running, self._workers, self._idle
        for worker in self._holding:
            if worker not in running and worker in workers:
                idle[worker] = None
        self._holding.clear()
        self.round += 1
        self.updated_at = self.now

    def _ring(self, at: float) -> None:
        self.now = at
        for alarm in [alarm for alarm in self._alarms if alarm <= at]:
            del self._alarms[alarm]
        for number, part in enumerate(self._parts):
            self._touched[number] = None
            part._ring(at)

    def _quiet(self) -> None:
        """Every touched part was asked."""
        parts = self._parts
        for number in self._touched:
            if parts[number]._touched:
                parts[number]._quiet()
        self._touched.clear()
        if self._pace is not None and self._pace.news >= len(self._workers):
            self._pace.news = 0

    # Between two events the whole ledger can be put aside as plain values, and taken up again.

    def state(self) -> dict[str, Any]:
        return {
            **{name: list(getattr(self, name)) for name in ("_workers", "_idle", "_alarms")},
            **{name: [plain_ticket(each) for each in getattr(self, name)] for name in _TICKETS},
            **{name: [[plain_ticket(t), done] for t, done in getattr(self, name).items()] for name in _UNITS},
            "handed_in": [plain_ticket(each) for each in self._handed_in],
            "_holding": [[worker, count] for worker, count in self._holding.items()],
            "_memory": [[name, value] for name, value in self._memory.items()],
            "numbers": [self.round, self.now, self.updated_at],
            "_groups": [list(group) for group in self._groups],
            "moving": [[worker, self._part_number(worker), part] for worker, part in self._moving.items()],
            "pace": None if self._pace is None else self._pace.state(),
            "parts": [part.state() for part in self._parts],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the ledger whose state that was. For a new ledger only; the order of every index is kept."""
        self._workers.update((whole(worker), None) for worker in state["_workers"])
        self._idle.update((whole(worker), None) for worker in state["_idle"])
        self._alarms.update((real(at), None) for at in state["_alarms"])
        for name in _TICKETS:
            getattr(self, name).update((ticket_from(each), None) for each in state[name])
        for name in _UNITS:
            getattr(self, name).update((ticket_from(each), whole(done)) for each, done in state[name])
        unused = {**self._late, **self._fresh}
        arrived = [ticket_from(each) for each in state["handed_in"]] if "handed_in" in state else unused
        if {*arrived} != unused.keys():
            raise ValueError("what was handed in is neither all that is late nor all that is fresh")
        self._handed_in.update(dict.fromkeys(arrived))
        self._running.update((ticket.worker, ticket) for ticket in (*self._behind, *self._current))
        self._holding.update((whole(worker), whole(count)) for worker, count in state["_holding"])
        self._memory.update((str(name), value) for name, value in state["_memory"] if isinstance(value, int | float))
        self.round = whole(state["numbers"][0])
        self.now, self.updated_at = map(real, state["numbers"][1:])
        self._groups = tuple(tuple(whole(worker) for worker in group) for group in state["_groups"])
        self._part_of = {worker: number for number, group in enumerate(self._groups) for worker in group}
        for worker, now, then in state.get("moving", ()):
            self._part_of[whole(worker)], self._moving[worker] = whole(now), whole(then)
        self._pace = Pace.from_state(state["pace"]) if state.get("pace") else None
        self._parts = [self._new_part() for _ in self._groups]
        for part, each in zip(self._parts, state["parts"], strict=True):
            part.restore(each)


class _TimedPart(Ledger):
    """A part whose workers are timed: a class of its own, so that all others need not even ask whether they are."""

    __slots__ = ("_timing",)

    def __init__(self, timing: Pace) -> None:
        super().__init__()
        self._timing = timing

    def _start(self, ticket: Ticket) -> None:
        super()._start(ticket)
        self._timing.begin(ticket.worker, self.now)

    def _arrive(self, ticket: Ticket, done: int) -> None:
        super()._arrive(ticket, done)
        self._timing.end(ticket, self.now, done)

    def _halt(self, ticket: Ticket) -> None:
        super()._halt(ticket)
        self._timing.cut(ticket.worker)


_TICKETS = ("_current", "_behind", "_recalled")
_UNITS = ("_fresh", "_late", "_kept")
