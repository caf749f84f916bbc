"""The worker processes of one run, as the training loop sees them: events in the order in which they come.

Workers write to one pipe, which keeps the order of arrival. The end of a process is noticed in the same wait; what it
wrote before its end is read first, so that whatever was handed in counts. Nothing that is no longer asked for is
believed: a ticket that was halted may still come in, and is passed over.
"""

import heapq
import logging
import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from paceline.core.codec import real, whole
from paceline.core.errors import TooFewWorkers, WorkerFailed
from paceline.core.messages import Arrived, Event, Joined, Left, Rang, Ticket
from paceline.core.stateful import State
from paceline.fleets.processes.channel import FAILED, READY, RECORD, Order
from paceline.fleets.processes.supervisor import ATTEMPTS, Orders, Supervisor, WorkerHandle
from paceline.learning.arena.arena import Brought
from paceline.learning.generators import piece_seed
from paceline.learning.gradients.shared import Promise
from paceline.trace.format import Computed

LOOK_FOR_SILENCE = 0.25  # seconds between looks at deadlines
READ_AT_ONCE = 256 * RECORD.size
LISTENED_AT_ONCE = 1.0  # seconds of silence that count at most, if the server itself was busy or stopped

log = logging.getLogger("paceline")


class Rows(Protocol):
    """Contributions that are handed in as rows: gradients, or models."""

    def promised(self, ticket: Ticket, /) -> Promise: ...

    def hand_in(self, ticket: Ticket, brought: Brought, /) -> None: ...

    def halt(self, ticket: Ticket, /) -> None: ...

    def forget_worker(self, worker: int, /) -> None:
        """It has another process."""
        ...

    def detach(self) -> None:
        """The run is over."""
        ...


class ProcessWorkers:
    """The workers of one run, at work."""

    def __init__(
        self, roster: Supervisor, contributions: Rows, post: int, seed: int, *, minimum: int, replace: bool,
        delays: Mapping[int, Iterator[float]],
    ) -> None:  # fmt: skip
        self.about: Mapping[str, object] = {"clock": "real", "workers": len(roster.members), "transfer_seconds": 0.0}
        self.announce: Callable[[Computed], None] | None = None
        self._roster = roster
        self._contributions = contributions
        self._post = post
        self._seed = seed
        self._minimum = minimum
        self._replace = replace
        self._delays = delays
        self._ends_at = math.inf
        self._asked_to_end: Callable[[], bool] = bool
        self._events: deque[Event] = deque()
        self._alarms: list[float] = []
        self._to_ring: list[Orders] = []
        self._listened = 0.0  # what of the time was spent listening: deadlines are of this clock
        self._at_listening = self._zero = time.monotonic()
        self._before = 0.0  # what the clock showed when the run that is resumed was put aside
        self._told_of: set[int] = set()  # who is here, as far as the loop knows
        self._looked_for_silence = 0.0
        self._too_few = ""  # why there are, once there are
        self._begun = False  # is everybody here who was at the start?
        self._fruitful = False  # has anything been handed in?
        self._reasons: list[str] = []
        self._poll = select.epoll()
        os.set_blocking(post, False)
        self._poll.register(post, select.EPOLLIN)
        self._by_sentinel: dict[int, WorkerHandle] = {}

    # What the loop asks for.

    def wait(self) -> Sequence[Event]:
        if not self._begun:
            return self._begin()
        for mailbox in self._to_ring:  # only now, so that nobody takes the processor from those not yet told
            mailbox.ring()
        self._to_ring.clear()
        while not (over := self._asked_to_end() or self.now >= self._ends_at) and not self._events:
            self._listen()
        if over:
            return ()
        event = self._events.popleft()
        if isinstance(event, Joined | Left):
            (self._told_of.add if isinstance(event, Joined) else self._told_of.discard)(event.worker)
        return (event,)

    def start(self, ticket: Ticket) -> None:
        if not self._begun:
            return  # left over from before the run was resumed: its worker will be told to have left
        member = self._roster.members[ticket.worker]
        promise = self._contributions.promised(ticket)
        delay = self._delays.get(ticket.worker)
        member.give(ticket, self._listened)
        member.mailbox.post(
            Order(
                ticket.serial, ticket.work.units, promise.row, promise.source, promise.indices,
                piece_seed(self._seed, ticket.worker, promise.number),
                0.0 if delay is None else sum(islice(delay, ticket.work.mini_batches)),
            )
        )  # fmt: skip
        self._to_ring.append(member.mailbox)

    def halt(self, ticket: Ticket) -> None:
        self._contributions.halt(ticket)
        member = self._roster.members[ticket.worker]
        if member.ticket == ticket:
            member.ticket = None
            member.mailbox.halt(ticket)
        else:  # it came in already, and was not told of yet
            self._events = deque(e for e in self._events if not (isinstance(e, Arrived) and e.ticket == ticket))

    def recall(self, ticket: Ticket) -> None:
        if not self._begun:
            return
        self._roster.members[ticket.worker].mailbox.recall(ticket)

    def end_waiting(self, at: float, asked: Callable[[], bool]) -> None:
        self._ends_at, self._asked_to_end = at, asked

    def wake_at(self, at: float) -> None:
        heapq.heappush(self._alarms, at)

    def close(self) -> None:
        self._roster.end()
        self._contributions.detach()
        self._poll.close()
        os.close(self._post)
        self._asked_to_end = bool  # it knows the loop, which knows this: their memory would wait for the collector

    @property
    def pids(self) -> dict[int, int]:
        """The process of each worker that has one."""
        processes = [(member.number, member.process) for member in self._roster]
        return {number: process.pid for number, process in processes if process is not None and process.pid}

    @property
    def present(self) -> set[int]:
        """Who is here, and not only on its way."""
        return {member.number for member in self._roster if member.here}

    def gather(self) -> None:
        """Have everybody start; the run begins, and its clock, when all are ready."""
        for member in self._roster:
            self._start(member)

    def _begin(self) -> Sequence[Event]:
        while self._roster.awaited(self._listened) or not self.present:
            if self._asked_to_end():
                return ()
            self._listen()
        for member in self._roster:
            if member.process is not None and not member.here:
                log.warning("worker %d has found no place: the run begins without it", member.number)
        self._begun = True
        self._events.clear()
        self._zero = time.monotonic() - self._before
        gone = [Left(self._before, worker) for worker in sorted(self._told_of)]  # those of before it was resumed
        self._told_of = {member.number for member in self._roster if member.here}
        return [*gone, *(Joined(self._before, worker) for worker in sorted(self._told_of))]

    # A run is resumed with other processes: to the strategy all workers leave and come back at one instant. So what
    # they were at is put back, and what they had handed in still counts.

    def state(self) -> State:
        return {"now": self.now, "told of": sorted(self._told_of), "alarms": sorted(self._alarms)}

    def restore(self, state: State) -> None:
        self._before = real(state["now"])
        self._told_of.update(whole(worker) for worker in state["told of"])
        self._alarms = [real(at) for at in state["alarms"]]

    # Listening.

    @property
    def now(self) -> float:
        """Seconds of the run; the clock stands still until all workers are ready."""
        return time.monotonic() - self._zero if self._begun else self._before

    def _listen(self) -> None:
        """Come back with news, or when something is due: post, the end of a process, a deadline, an alarm."""
        if self._too_few:
            raise TooFewWorkers(self._too_few)
        seconds = LOOK_FOR_SILENCE
        if (due := min(self._ends_at, self._alarms[0]) if self._alarms else self._ends_at) < math.inf and self._begun:
            seconds = max(0.0, min(seconds, due - self.now))
        ready = self._poll.poll(seconds)
        now = time.monotonic()
        self._listened += min(now - self._at_listening, LISTENED_AT_ONCE)
        self._at_listening = now
        if ready:
            ended = [m for each, _ in ready if each != self._post and self._has_ended(m := self._by_sentinel[each])]
            self._read_post()  # what somebody wrote before its end comes before its end
            for member in ended:
                self._miss(member)
        if now - self._looked_for_silence >= LOOK_FOR_SILENCE:
            self._looked_for_silence = now
            self._condemn_the_overdue()
        if self._alarms and self._alarms[0] <= (at := self.now):
            while self._alarms and self._alarms[0] <= at:
                heapq.heappop(self._alarms)
            self._events.append(Rang(at))

    def _read_post(self) -> None:
        """Read all that is there."""
        members = self._roster.members
        while True:
            try:
                records = os.read(self._post, READ_AT_ONCE)
            except BlockingIOError:
                return
            for number, done, serial in RECORD.iter_unpack(records):
                member = members[number]
                if done == READY:
                    self._welcome(member)
                elif done == FAILED:
                    member.complaint = member.mailbox.complaint
                elif member.ticket is not None and member.ticket.serial == serial:
                    self._receive(member, member.ticket, done)
            if len(records) < READ_AT_ONCE:
                return

    def _receive(self, member: WorkerHandle, ticket: Ticket, done: int) -> None:
        self._contributions.hand_in(ticket, member.mailbox.brought)
        if self.announce is not None:
            self.announce(Computed(ticket, member.mailbox.spent))
        member.answer(self._listened)
        self._fruitful = True
        self._events.append(Arrived(self.now, ticket, done))

    def _welcome(self, member: WorkerHandle) -> None:
        self._has_ended(member)  # it may not be known yet that it has begun
        member.here = True
        self._contributions.forget_worker(member.number)
        self._events.append(Joined(self.now, member.number))

    # Those who come and go.

    def _start(self, member: WorkerHandle) -> None:
        self._roster.start(member, self._listened)
        assert member.process is not None
        self._watch(member.process.sentinel, member)

    def _condemn_the_overdue(self) -> None:
        for member in self._roster:
            member.listen(self._listened)
            if member.overdue_at <= self._listened and member.process is not None and not member.condemned:
                member.condemn(self._listened)
        self._check_enough()

    def _check_enough(self) -> None:
        """Of those who are here or on their way."""
        if not self._too_few and (expected := len(self._roster.expected(self._listened))) < self._minimum:
            left = f"{expected} of {len(self._roster.members)} workers are left, and min_workers={self._minimum}"
            self._too_few = f"{left}: {'; '.join(self._reasons[-3:])}"

    def _has_ended(self, member: WorkerHandle) -> bool:
        """What a sentinel tells: that a process has ended, or that there is another one to be watched from now on."""
        assert member.process is not None
        before, ended = member.process.sentinel, member.process.has_ended()
        if (after := member.process.sentinel) != before:
            self._watch(after, member, instead_of=before)
        return ended

    def _watch(self, sentinel: int, member: WorkerHandle, instead_of: int | None = None) -> None:
        if instead_of is not None:
            self._poll.unregister(instead_of)
            del self._by_sentinel[instead_of]
        self._by_sentinel[sentinel] = member
        self._poll.register(sentinel, select.EPOLLIN)

    def _miss(self, member: WorkerHandle) -> None:
        """A process has ended: tell of it, and have another one unless there is no hope."""
        assert member.process is not None
        del self._by_sentinel[member.process.sentinel]
        self._poll.unregister(member.process.sentinel)
        end = member.process.end()
        member.process = None
        if member.complaint:
            reason = f"raised an error {member.doing()}:\n{member.complaint}"
        else:
            reason = f"{member.condemned or end} {member.doing()}"
        if member.complaint and not self._fruitful:  # most likely nobody will ever get further
            raise WorkerFailed(f"worker {member.number} {reason}")
        self._reasons.append(f"worker {member.number} {reason}")
        member.fruitless += 1
        if member.here:
            member.here, member.ticket = False, None
            self._events.append(Left(self.now, member.number))
        following = "it is not replaced"
        if self._replace and member.fruitless < ATTEMPTS:
            try:
                self._start(member)
                following = "a replacement is on its way"
            except OSError as error:  # no descriptor or no memory is left for another one
                following = f"it cannot be replaced ({error})"
        log.error("worker %d %s; %s", member.number, reason, following)
        self._check_enough()
