"""Starts, replaces and ends the worker processes of one run, and knows the state of each."""

import os
import time
from collections.abc import Iterator
from typing import Protocol

from paceline.core.messages import Ticket
from paceline.fleets.processes.channel import Channel, ChannelLayout, Order
from paceline.fleets.processes.fork_server import FORK_SERVER
from paceline.fleets.processes.memory import SharedRegions
from paceline.fleets.processes.timeouts import DurationHistory, SilenceTimeout
from paceline.learning.arena.arena import Report

MAX_FAILURES = 5  # a worker that ends this often in a row without handing anything in is not replaced any more
QUIT_WITHIN = 0.5  # seconds that workers have to quit by themselves when the run is over


class WorkerProcess(Protocol):
    """The process of a worker, on this machine or another.

    ``sentinel`` is a descriptor that becomes readable when the process has ended. It may also become readable before
    that, once, when it is to be replaced by another descriptor: ask ``has_ended`` and read ``sentinel`` again.
    """

    sentinel: int
    pid: int

    @property
    def start_timeout(self) -> float | None:
        """Seconds that it may take to start; ``None`` for as long as a worker's first ticket may take."""
        ...

    @property
    def expected_for(self) -> float:
        """Seconds for which a worker that is not ready counts as on its way."""
        ...

    def has_ended(self) -> bool:
        """Whether it has ended. Returns at once."""
        ...

    def kill(self) -> None: ...

    def wait(self, until: float, /) -> bool:
        """Wait for the end, until a time of ``time.monotonic``. Returns whether it has ended."""
        ...

    def reap(self) -> str:
        """Wait for the end, free what the process held, and return how it ended, for a message."""
        ...


class ServerChannel(Protocol):
    """The server's side of the channel to a worker, on this machine or another."""

    @property
    def last_received(self) -> int: ...

    @property
    def last_heartbeat(self) -> int: ...

    @property
    def reported(self) -> Report: ...

    @property
    def seconds(self) -> float: ...

    @property
    def error(self) -> str: ...

    def send(self, order: Order, /) -> None: ...

    def notify(self) -> None: ...

    def halt(self, ticket: Ticket, /) -> None: ...

    def recall(self, ticket: Ticket, /) -> None: ...

    def quit(self) -> None: ...

    def reset(self) -> None: ...


class WorkerHandle:
    """One worker: a number that stays, and a process that may be replaced.

    Times are seconds of the clock of ``ProcessWorkers``, which counts only the time that the server spends waiting.
    """

    def __init__(self, number: int, channel: Channel, timeout: SilenceTimeout) -> None:
        self.number = number
        self.shared_channel = channel
        self.channel: ServerChannel = channel  # another one where the process shares no memory with the server
        self.history = DurationHistory(timeout)
        self._at_first = timeout.at_first
        self.process: WorkerProcess | None = None
        self.ready = False
        self.ticket: Ticket | None = None
        self.assigned_at = 0.0  # when it got the ticket that it has to answer, or was started
        self.heard_at = 0.0  # when it last gave a sign of life
        self.last_heartbeat = 0
        self.last_received = 0
        self.owes_answer = False  # it was sent an order, and has handed nothing in since
        self.kill_reason = ""  # why the server killed it, if it did
        self.error = ""  # the traceback of what it raised
        self.failures = 0  # how often in a row it ended without handing anything in

    @property
    def overdue_at(self) -> float:
        """When it will have been silent for too long; never for a worker without a ticket."""
        if self.process is None or (self.ready and self.ticket is None):
            return float("inf")
        if self.ready:
            return self.heard_at + self.history.limit
        limit = self.process.start_timeout  # loading data and modules may take longer than a mini-batch ever did
        return self.heard_at + (self._at_first if limit is None else limit)

    def kill_silent(self, now: float) -> None:
        """Kill it because it was silent for too long."""
        silent = f"{now - self.heard_at:.3g} s"
        if self.ready:
            self.kill_reason = f"was silent for {silent} ({self.history.reason()}), and was killed"
        else:
            self.kill_reason = f"was not ready after {silent}, and was killed"
        if self.process is not None:
            self.process.kill()

    def assign(self, ticket: Ticket, now: float) -> None:
        """It has a ticket from now on. If it never received the last order, its silence began with that one."""
        if not self.owes_answer or self.channel.last_received != self.last_received:
            self.assigned_at = self.heard_at = now
        self.last_heartbeat = self.channel.last_heartbeat
        self.ticket, self.last_received, self.owes_answer = ticket, self.channel.last_received, True

    def check_heartbeat(self, now: float) -> None:
        """Another block or mini-batch since the last look is a sign of life."""
        if self.ticket is not None and self.channel.last_heartbeat != self.last_heartbeat:
            self.last_heartbeat, self.heard_at = self.channel.last_heartbeat, now

    def complete(self, now: float) -> None:
        """It has handed in its ticket."""
        mini_batches = 1 if self.ticket is None else self.ticket.work.mini_batches
        self.history.add((now - self.assigned_at) / mini_batches)
        self.ticket, self.owes_answer, self.failures = None, False, 0

    def activity(self) -> str:
        """What it was doing, for a message."""
        if not self.ready:
            return "while it started"
        return "while it had nothing to do" if self.ticket is None else f"while it ran {self.ticket}"


class ProcessLauncher(Protocol):
    """Starts the processes of one run."""

    def start(self, worker: WorkerHandle, descriptors: list[int], /) -> WorkerProcess: ...

    def close(self) -> None:
        """All processes have ended."""
        ...


class ForkLauncher:
    """Forks processes on this machine."""

    def start(self, worker: WorkerHandle, descriptors: list[int]) -> WorkerProcess:
        return FORK_SERVER.fork(worker.number, descriptors)

    def close(self) -> None:
        pass  # other runs of this process use the fork server too


class Supervisor:
    """The workers of a run, and the processes that they have at the moment.

    results  the writing end of the pipe on which workers tell what they have done
    """

    def __init__(
        self, layout: ChannelLayout, timeout: SilenceTimeout, regions: SharedRegions, results: int,
        launcher: ProcessLauncher = ForkLauncher(),
    ) -> None:  # fmt: skip
        self._regions = regions
        self._results = results
        self._launcher = launcher
        self.workers: list[WorkerHandle] = []
        try:
            for number in range(layout.workers):
                channel = Channel(regions.channels, layout, number, os.eventfd(0))
                self.workers.append(WorkerHandle(number, channel, timeout))
        except BaseException:
            self.close_channels()
            raise

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(self.workers)

    def expected(self, now: float) -> list[WorkerHandle]:
        """Workers that are ready or on their way."""
        running = [(worker, worker.process) for worker in self.workers if worker.process is not None]
        return [
            worker for worker, process in running if worker.ready or now - worker.assigned_at < process.expected_for
        ]

    def is_starting(self, now: float) -> bool:
        """Whether a worker is on its way."""
        return not all(worker.ready for worker in self.expected(now))

    def start(self, worker: WorkerHandle, now: float) -> None:
        """Start a process for a worker that has none."""
        worker.channel = worker.shared_channel
        worker.channel.reset()
        worker.ready, worker.owes_answer, worker.kill_reason, worker.error = False, False, "", ""
        worker.assigned_at = worker.heard_at = now
        descriptors = [self._results, worker.shared_channel.eventfd, *self._regions.descriptors]
        worker.process = self._launcher.start(worker, descriptors)

    def shut_down(self) -> None:
        """Ask all workers to quit, kill those that do not, and close everything."""
        running = [worker for worker in self.workers if worker.process is not None]
        for worker in running:
            worker.channel.quit()
        until = time.monotonic() + QUIT_WITHIN
        for worker in running:
            assert worker.process is not None
            if not worker.process.wait(until):
                worker.process.kill()
            worker.process.reap()
            worker.process = None
        self._launcher.close()
        self.close_channels()
        self._regions.close()
        os.close(self._results)

    def close_channels(self) -> None:
        for worker in self.workers:
            os.close(worker.shared_channel.eventfd)
