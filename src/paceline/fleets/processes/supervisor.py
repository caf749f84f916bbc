"""The worker processes of one run: who is here, who is starting, who is lost, and why."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from paceline.core.messages import Ticket
from paceline.fleets.processes.channel import Channel, Order, Shape
from paceline.fleets.processes.fork_server import NURSERY
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.timeouts import DurationHistory, SilenceTimeout
from paceline.learning.arena.arena import Brought

ATTEMPTS = 5  # so many times in a row a worker may end without handing anything in; then it is not replaced any more
PATIENCE = 0.5  # seconds that workers have to quit by themselves when the run is over


@dataclass(frozen=True)
class Memories:
    """All that the server shares with its workers."""

    mailboxes: SharedMemory
    arena: SharedMemory
    instructions: SharedMemory
    payload: SharedMemory
    blobs: int  # the descriptor

    @property
    def descriptors(self) -> list[int]:
        """In the order in which a worker expects them."""
        memories = (self.mailboxes, self.arena, self.instructions, self.payload)
        return [*(each.descriptor for each in memories), self.blobs]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class Process(Protocol):
    """What a worker runs in, wherever that is.

    Its ``sentinel`` becomes readable when it has ended; or before that when there is another one to be watched.
    """

    sentinel: int
    pid: int

    @property
    def start_limit(self) -> float | None:
        """Seconds that it may take to start, if not as long as any worker may."""
        ...

    @property
    def patience(self) -> float:
        """Seconds for which it can be expected to come, if it is not here."""
        ...

    def has_ended(self) -> bool:
        """Is it over? Never waits."""
        ...

    def kill(self) -> None: ...

    def ends_by(self, until: float, /) -> bool: ...

    def end(self) -> str:
        """Wait for the end, and tell of what kind it was."""
        ...


class Orders(Protocol):
    """The server's side of a mailbox, wherever the worker is."""

    @property
    def taken(self) -> int: ...

    @property
    def beaten(self) -> int: ...

    @property
    def brought(self) -> Brought: ...

    @property
    def spent(self) -> float: ...

    @property
    def complaint(self) -> str: ...

    def post(self, order: Order, /) -> None: ...

    def ring(self) -> None: ...

    def halt(self, ticket: Ticket, /) -> None: ...

    def recall(self, ticket: Ticket, /) -> None: ...

    def quit(self) -> None: ...

    def clear(self) -> None: ...


class WorkerHandle:
    """One worker: a number that stays, and a process that may be replaced."""

    def __init__(self, number: int, mailbox: Channel, deadline: SilenceTimeout) -> None:
        self.number = number
        self.shared_mailbox = mailbox
        self.mailbox: Orders = mailbox  # or another one, where its process shares no memory
        self.past = DurationHistory(deadline)
        self._at_first = deadline.at_first
        self.process: Process | None = None
        self.here = False
        self.ticket: Ticket | None = None
        self.since = 0.0  # when it was given what it has to answer, or started
        self.heard = 0.0  # when it last gave a sign of life: not before that
        self.beat = 0  # the last one
        self.taken = 0  # the last order that it was seen to have taken
        self.silent = False  # was it given something that it has not answered?
        self.condemned = ""  # why it was killed, if we did it
        self.complaint = ""  # the traceback of what it raised
        self.fruitless = 0  # ends in a row without anything handed in

    @property
    def overdue_at(self) -> float:
        """When it will have been silent for too long; never for one that owes nothing."""
        if self.process is None or (self.here and self.ticket is None):
            return float("inf")
        if self.here:
            return self.heard + self.past.limit
        limit = self.process.start_limit  # data and imports may take longer than a mini-batch ever did
        return self.heard + (self._at_first if limit is None else limit)

    def condemn(self, now: float) -> None:
        """It was silent for too long."""
        silent = f"{now - self.heard:.3g} s"
        if self.here:
            self.condemned = f"said nothing for {silent} ({self.past.reason()}), and was ended"
        else:
            self.condemned = f"was not ready after {silent}, and was ended"
        if self.process is not None:
            self.process.kill()

    def give(self, ticket: Ticket, now: float) -> None:
        """It has a ticket from now on; but one that did not even take its last one has been silent for longer."""
        if not self.silent or self.mailbox.taken != self.taken:
            self.since = self.heard = now
        self.beat = self.mailbox.beaten
        self.ticket, self.taken, self.silent = ticket, self.mailbox.taken, True

    def listen(self, now: float) -> None:
        """Is it at another mini-batch of its piece than it was?"""
        if self.ticket is not None and self.mailbox.beaten != self.beat:
            self.beat, self.heard = self.mailbox.beaten, now

    def answer(self, now: float) -> None:
        """It has handed something in."""
        mini_batches = 1 if self.ticket is None else self.ticket.work.mini_batches
        self.past.add((now - self.since) / mini_batches)
        self.ticket, self.silent, self.fruitless = None, False, 0

    def doing(self) -> str:
        if not self.here:
            return "while it started"
        return "while it had nothing to do" if self.ticket is None else f"while it ran {self.ticket}"


class Starter(Protocol):
    """Where the processes of a run come from."""

    def start(self, member: WorkerHandle, descriptors: list[int], /) -> Process: ...

    def close(self) -> None:
        """All have ended."""
        ...


class Forked:
    """Processes of this machine."""

    def start(self, member: WorkerHandle, descriptors: list[int]) -> Process:
        return NURSERY.fork(member.number, descriptors)

    def close(self) -> None:
        pass  # the nursery is for other runs too


class Supervisor:
    """Starts, replaces and ends the processes of a run."""

    def __init__(
        self, shape: Shape, deadline: SilenceTimeout, memories: Memories, post: int,
        starter: Starter = Forked(),
    ) -> None:  # fmt: skip
        self._memories = memories
        self._post = post
        self._starter = starter
        self.members: list[WorkerHandle] = []
        try:
            for number in range(shape.workers):
                mailbox = Channel(memories.mailboxes, shape, number, os.eventfd(0))
                self.members.append(WorkerHandle(number, mailbox, deadline))
        except BaseException:
            self.close_mailboxes()
            raise

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(self.members)

    def expected(self, now: float) -> list[WorkerHandle]:
        """Those who are here or on their way."""
        running = [(member, member.process) for member in self.members if member.process is not None]
        return [member for member, process in running if member.here or now - member.since < process.patience]

    def awaited(self, now: float) -> bool:
        """Is somebody on the way?"""
        return not all(member.here for member in self.expected(now))

    def start(self, member: WorkerHandle, now: float) -> None:
        """Have a process for a member that has none."""
        member.mailbox = member.shared_mailbox
        member.mailbox.clear()
        member.here, member.silent, member.condemned, member.complaint = False, False, "", ""
        member.since = member.heard = now
        descriptors = [self._post, member.shared_mailbox.wake, *self._memories.descriptors]
        member.process = self._starter.start(member, descriptors)

    def end(self) -> None:
        """Let everybody go: by themselves, or else at once."""
        running = [member for member in self.members if member.process is not None]
        for member in running:
            member.mailbox.quit()
        until = time.monotonic() + PATIENCE
        for member in running:
            assert member.process is not None
            if not member.process.ends_by(until):
                member.process.kill()
            member.process.end()
            member.process = None
        self._starter.close()
        self.close_mailboxes()
        self._memories.close()
        os.close(self._post)

    def close_mailboxes(self) -> None:
        for member in self.members:
            os.close(member.shared_mailbox.wake)
