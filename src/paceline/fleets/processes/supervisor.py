"""Starts, replaces and ends the worker processes of one run, and knows the state of each."""

import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from paceline.fleets.processes.channel import Order
from paceline.fleets.processes.fork_server import FORK_SERVER
from paceline.fleets.processes.memory import SharedRegions
from paceline.learning.arena.arena import Report

if TYPE_CHECKING:
    from paceline.fleets.processes.group import WorkerHandle

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

    def halt(self, serial: int, /) -> None: ...

    def recall(self, serial: int, /) -> None: ...

    def quit(self) -> None: ...

    def reset(self) -> None: ...


class ProcessLauncher(Protocol):
    """Starts the processes of one run. ``sends_later``: what is to be sent waits for ``flush``."""

    @property
    def sends_later(self) -> bool: ...

    def start(self, worker: "WorkerHandle", descriptors: list[int], /) -> WorkerProcess: ...

    def flush(self) -> None:
        """Send what is waiting to be sent."""
        ...

    def close(self) -> None:
        """All processes have ended."""
        ...


class ForkLauncher:
    """Forks processes on this machine; with ``spawn`` they load Python anew."""

    sends_later = False

    def __init__(self, *, spawn: bool = False) -> None:
        self._spawn = spawn

    def start(self, worker: "WorkerHandle", descriptors: list[int]) -> WorkerProcess:
        return FORK_SERVER.fork(worker.number, descriptors, spawn=self._spawn)

    def flush(self) -> None:
        pass  # orders are in shared memory already

    def close(self) -> None:
        pass  # other runs of this process use the fork server too


class Supervisor:
    """The workers of a run, and the processes that they have at the moment.

    results  the writing end of the pipe on which workers tell what they have done
    """

    def __init__(
        self, workers: "Sequence[WorkerHandle]", regions: SharedRegions, results: int, launcher: ProcessLauncher
    ) -> None:
        self.workers = workers
        self._regions = regions
        self._results = results
        self._launcher = launcher
        self.sends_later = launcher.sends_later
        self.flush = launcher.flush  # sends what is waiting to be sent to workers of other machines

    def __iter__(self) -> "Iterator[WorkerHandle]":
        return iter(self.workers)

    def expected(self, now: float) -> "list[WorkerHandle]":
        """Workers that are ready or on their way."""
        running = [(worker, worker.process) for worker in self.workers if worker.process is not None]
        return [
            worker for worker, process in running if worker.ready or now - worker.assigned_at < process.expected_for
        ]

    def is_starting(self, now: float) -> bool:
        """Whether a worker is on its way."""
        return not all(worker.ready for worker in self.expected(now))

    def start(self, worker: "WorkerHandle", now: float) -> None:
        """Start a process for a worker that has none."""
        worker.channel = worker.shared_channel
        worker.channel.reset()
        worker.ready, worker.owes_answer, worker.kill_reason, worker.error = False, False, "", ""
        worker.gone_by, worker.stays = None, False
        worker.assigned_at = worker.heard_at = now
        descriptors = [self._results, worker.shared_channel.eventfd, *self._regions.descriptors]
        worker.process = self._launcher.start(worker, descriptors)

    def shut_down(self) -> None:
        """Ask all workers to quit, kill those that do not, and close everything."""
        running = [worker for worker in self.workers if worker.process is not None]
        for worker in running:
            worker.channel.quit()
        self.flush()
        until = time.monotonic() + QUIT_WITHIN
        for worker in running:
            assert worker.process is not None
            if not worker.process.wait(until):
                worker.process.kill()
            worker.process.reap()
            worker.process = None
        self._launcher.close()
        for worker in self.workers:
            os.close(worker.shared_channel.eventfd)
        self._regions.close()
        os.close(self._results)
