"""The indices of a ledger: each follows what happens, by one verb for each thing that a worker or a ticket can do.

A ticket moves from one index to the next at most once, so that following costs the same with 16 workers as with 10,000.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Set
from types import MappingProxyType
from typing import Any

from paceline.core.codec import plain_ticket, real, ticket_from, whole
from paceline.core.errors import IllegalDecision
from paceline.core.messages import Ticket
from paceline.core.speeds import Speeds


class LedgerIndices:
    """What is known of the workers and tickets of one ledger: the whole, or a part. The verbs check nothing.

    current     running tickets given out since the last update: the others are ``behind``
    holding     worker -> how many of the fresh tickets are its own
    timing      where this ledger notes when work begins and ends, if anywhere

    Of each ticket that is not settled, a part knows the round in which it was given out; the whole needs not, for there
    that is the ticket's version.
    """

    __slots__ = (
        "_alarms", "_behind", "_counts", "_current", "_even", "_free", "_fresh", "_given", "_handed_in", "_holding",
        "_idle", "_kept", "_late", "_least", "_leaving", "_memory", "_recalled", "_report", "_running", "_sizes",
        "_tally", "_workers", "alarms", "behind", "counts", "current", "free", "fresh", "handed_in", "holding", "idle",
        "kept", "late", "leaving", "memory", "now", "recalled", "report", "reports", "round", "running", "sizes",
        "timing", "updated_at", "workers",
    )  # fmt: skip

    def __init__(self, sizes: dict[int, int] | None = None, *, part: bool = False) -> None:
        self._sizes: dict[int, int] = {} if sizes is None else sizes  # one for the whole and all its parts
        self._given: dict[Ticket, int] | None = {} if part else None
        self._workers: dict[int, None] = {}
        self._idle: dict[int, None] = {}
        self._free: dict[int, None] = {}
        self._counts: dict[int, int] = {}
        self._even = True  # nothing was used yet: all have the least count
        self._least = 0
        self._tally: dict[int, int] | None = None  # count -> how many workers have it
        self._report: dict[str, float] = {}
        self._running: dict[int, Ticket] = {}
        self._current: dict[Ticket, None] = {}
        self._behind: dict[Ticket, None] = {}
        self._recalled: dict[Ticket, None] = {}
        self._fresh: dict[Ticket, int] = {}
        self._late: dict[Ticket, int] = {}
        self._handed_in: dict[Ticket, None] = {}
        self._kept: dict[Ticket, int] = {}
        self._holding: dict[int, int] = {}
        self._leaving: dict[int, float] = {}
        self._alarms: dict[float, None] = {}
        self._memory: dict[str, float] = {}

        self.workers: Set[int] = self._workers.keys()
        self.idle: Set[int] = self._idle.keys()
        self.free = self._free.keys()
        self.counts: Mapping[int, int] = MappingProxyType(self._counts)
        self.report: Mapping[str, float] = MappingProxyType(self._report)
        self.running: Mapping[int, Ticket] = MappingProxyType(self._running)
        self.current: Set[Ticket] = self._current.keys()
        self.behind: Set[Ticket] = self._behind.keys()
        self.recalled: Set[Ticket] = self._recalled.keys()
        self.fresh: Mapping[Ticket, int] = MappingProxyType(self._fresh)
        self.late: Mapping[Ticket, int] = MappingProxyType(self._late)
        self.handed_in = self._handed_in.keys()
        self.kept: Mapping[Ticket, int] = MappingProxyType(self._kept)
        self.holding: Mapping[int, int] = MappingProxyType(self._holding)
        self.leaving: Mapping[int, float] = MappingProxyType(self._leaving)
        self.alarms: Set[float] = self._alarms.keys()
        self.memory: Mapping[str, float] = MappingProxyType(self._memory)
        self.sizes: Mapping[int, int] = MappingProxyType(self._sizes)
        self.round = self.reports = 0
        self.now = self.updated_at = 0.0
        self.timing: Speeds | None = None

    # What a worker and its tickets do.

    def join(self, worker: int) -> None:
        self._workers[worker] = None
        self._free[worker] = None
        if worker not in self._holding:
            self._idle[worker] = None
        self._count(worker, self._least if self._even else self.least_count)

    def leave(self, worker: int) -> None:
        del self._workers[worker]
        self._idle.pop(worker, None)
        self._free.pop(worker, None)
        if self._leaving.pop(worker, None) is None:
            self._uncount(worker)

    def announce(self, worker: int, by: float) -> None:
        """It will be gone by then: it counts as idle and free no more, and nobody waits for its pieces."""
        if worker not in self._leaving:
            self._uncount(worker)
        self._leaving[worker] = by
        self._idle.pop(worker, None)
        self._free.pop(worker, None)

    def start(self, ticket: Ticket) -> None:
        worker = ticket.worker
        self._idle.pop(worker, None)
        self._free.pop(worker, None)
        self._running[worker] = ticket
        self._current[ticket] = None
        if self._given is not None:
            self._given[ticket] = self.round
        if self.timing is not None:
            self.timing.begin(worker, self.now)

    def recall(self, ticket: Ticket) -> None:
        self._recalled[ticket] = None

    def arrive(self, ticket: Ticket, done: int) -> None:
        worker = ticket.worker
        del self._running[worker]
        if self._recalled:
            self._recalled.pop(ticket, None)
        if worker not in self._leaving:
            self._free[worker] = None
        if ticket in self._current:
            del self._current[ticket]
            self._fresh[ticket] = done
            self._holding[worker] = self._holding.get(worker, 0) + 1
        else:
            del self._behind[ticket]
            self._late[ticket] = done
            self._rest(worker)
        self._handed_in[ticket] = None
        if self.timing is not None:
            self.timing.end(ticket, self.now, done)

    def halt(self, ticket: Ticket) -> None:
        """Forget a ticket that runs."""
        worker = ticket.worker
        del self._running[worker]
        self._recalled.pop(ticket, None)
        if ticket in self._current:
            del self._current[ticket]
        else:
            del self._behind[ticket]
        if worker in self._workers and worker not in self._leaving:
            self._free[worker] = None
        self._rest(worker)
        if self._given is not None:
            del self._given[ticket]
        if self.timing is not None:
            self.timing.cut(worker)

    def drop(self, ticket: Ticket) -> None:
        """Forget a ticket that was handed in."""
        self._handed_in.pop(ticket, None)
        if self._given is not None:
            del self._given[ticket]
        if ticket in self._fresh:
            del self._fresh[ticket]
            self._holding[ticket.worker] -= 1
            if not self._holding[ticket.worker]:
                del self._holding[ticket.worker]
                self._rest(ticket.worker)
        else:
            self._late.pop(ticket, None)
            self._kept.pop(ticket, None)

    def _rest(self, worker: int) -> None:
        busy = worker in self._running or worker in self._holding
        if not busy and worker in self._workers and worker not in self._leaving:
            self._idle[worker] = None

    # How many pieces of each worker were used. The tally of these numbers is kept from when somebody asks for it.

    @property
    def tally(self) -> Mapping[int, int]:
        return MappingProxyType(self._tallied())

    @property
    def least_count(self) -> int:
        self._tallied()
        return self._least

    def _tallied(self) -> dict[int, int]:
        if self._tally is None:
            self._tally = dict(Counter(self._counts.values()))
            self._least = min(self._tally, default=self._least)
        return self._tally

    def _count(self, worker: int, count: int) -> None:
        self._counts[worker] = count
        if self._tally is not None:
            self._tally[count] = self._tally.get(count, 0) + 1

    def _uncount(self, worker: int) -> int:
        tally, count = self._tally, self._counts.pop(worker)
        if tally is None:
            if not self._counts:
                self._least = count
        elif tally[count] > 1:
            tally[count] -= 1
        else:
            del tally[count]
            if count == self._least and tally:
                while self._least not in tally:  # it only rises, and no further than pieces were used
                    self._least += 1
        return count

    def _use(self, worker: int) -> None:
        count = self._counts[worker]
        self._counts[worker] = count + 1
        tally = self._tallied()
        tally[count + 1] = tally.get(count + 1, 0) + 1
        if tally[count] > 1:
            tally[count] -= 1
            return
        del tally[count]
        if count == self._least:
            self._least = count + 1

    def step(self, weights: Mapping[Ticket, object], keep: Collection[Ticket]) -> None:
        """Make an update: a new round begins."""
        fresh, late, kept = self._fresh, self._late, self._kept
        keep = keep if len(keep) < 2 else frozenset(keep)
        handed_in, given = self._handed_in, self._given
        counts, tallied = self._counts, self._tally is not None
        self._even = False
        for ticket in weights:
            done = kept.pop(ticket, None) if kept else None
            if done is None:
                del handed_in[ticket]
                done = fresh.pop(ticket, None) if fresh else None
                if done is None:
                    done = late.pop(ticket)
                worker = ticket.worker
                if worker in counts:  # else it has left
                    if tallied:
                        self._use(worker)
                    else:
                        counts[worker] += 1
            if ticket in keep:
                kept[ticket] = done
            elif given is not None:
                del given[ticket]
        if fresh:  # what the step left unused
            late.update(fresh)
            fresh.clear()
        if self._current:
            self._behind.update(self._current)
            self._current.clear()
        running, workers, idle, leaving = self._running, self._workers, self._idle, self._leaving
        for worker in self._holding:
            if worker not in running and worker in workers and worker not in leaving:
                idle[worker] = None
        self._holding.clear()
        self.round += 1
        self.updated_at = self.now

    def age(self, ticket: Ticket) -> int:
        return self.round - (ticket.version if self._given is None else self._given[ticket])

    def remember(self, name: str, value: float) -> None:
        self._memory[name] = value

    def take_report(self, numbers: Mapping[str, float]) -> None:
        """Learning tells numbers of the last update, instead of those of the one before."""
        self._report.clear()
        self._report.update(numbers)
        self.reports += 1

    def set_alarm(self, at: float) -> None:
        self._alarms[at] = None

    def timed(self, window: int) -> Mapping[int, float]:
        if self.timing is None:
            if self._running or self._fresh or self._late or self._kept:
                raise IllegalDecision("cannot time the workers of this ledger: ask before any work is given out")
            self.timing = Speeds(window, self._sizes)
        return self.timing

    # Between two events all of it can be saved as plain values, and restored.

    def state(self, *, own_timing: bool = True) -> dict[str, Any]:
        """``own_timing`` is false in a part whose work is timed by the ledger that it is a part of."""
        return {
            **{name: list(getattr(self, name)) for name in ("_workers", "_idle", "_alarms")},
            **{name: [plain_ticket(each) for each in getattr(self, name)] for name in _TICKETS},
            **{name: [[plain_ticket(t), done] for t, done in getattr(self, name).items()] for name in _UNITS},
            "handed_in": [plain_ticket(each) for each in self._handed_in],
            "_holding": [[worker, count] for worker, count in self._holding.items()],
            "_memory": [[name, value] for name, value in self._memory.items()],
            **({"leaving": [[worker, by] for worker, by in self._leaving.items()]} if self._leaving else {}),
            "numbers": [self.round, self.now, self.updated_at],
            "free": list(self._free),
            "counts": [[worker, count] for worker, count in self._counts.items()],
            "least_count": self.least_count,
            **({} if self._given is None else {"given": [[plain_ticket(t), n] for t, n in self._given.items()]}),
            **({"report": dict(self._report), "reports": self.reports} if self.reports else {}),
            **({"timing": self.timing.state()} if own_timing and self.timing is not None else {}),
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
        self._leaving.update((whole(worker), real(by)) for worker, by in state.get("leaving", ()))
        self.round = whole(state["numbers"][0])
        self.now, self.updated_at = map(real, state["numbers"][1:])
        self._restore_counts(state)
        if "timing" in state:
            self.timing = Speeds.from_state(state["timing"], self._sizes)

    def _restore_counts(self, state: Mapping[str, Any]) -> None:
        """What older checkpoints lack: no rule of theirs asks for it."""
        free = [worker for worker in self._workers if worker not in self._running]
        self._free.update((whole(worker), None) for worker in state.get("free", free))
        self._least, self._even = whole(state.get("least_count", 0)), False
        for worker, count in state.get("counts", [(worker, 0) for worker in self._workers]):
            self._count(whole(worker), whole(count))
        if "least_count" in state and self._least != min(self._counts.values(), default=self._least):
            raise ValueError("the least of the counts is another one")
        if self._given is not None:
            held = (*self._current, *self._behind, *self._fresh, *self._late, *self._kept)
            given = [(ticket_from(t), whole(n)) for t, n in state["given"]] if "given" in state else ()
            self._given.update(given or dict.fromkeys(held, self.round))
        self._report.update((str(name), real(value)) for name, value in state.get("report", {}).items())
        self.reports = whole(state.get("reports", 0))


_TICKETS = ("_current", "_behind", "_recalled")
_UNITS = ("_fresh", "_late", "_kept")
