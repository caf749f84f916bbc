"""Starts the actors of one run, and prepares each of them until it is ready."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from paceline.data.samples import TensorSamples
from paceline.fleets.processes.channel import READY, RECORD
from paceline.fleets.processes.group import WorkerHandle
from paceline.fleets.processes.launch import SharedContext
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.ray.actor import ActorInfo, versions
from paceline.fleets.ray.connection import ALIVE, ActorGone, ActorHandle, kill_on
from paceline.fleets.ray.fleet import RayFleet
from paceline.fleets.ray.local import machine_id
from paceline.fleets.ray.remote import RemoteChannel, WeightSender
from paceline.fleets.ray.session import ClusterSession

EXPECTED_FOR = 60.0  # seconds for which an actor that finds no free resources counts as on its way
ENDED_WITHIN = 5.0  # seconds that an actor may take to end once it is killed
UNKNOWN_PID = -1


class ActorLauncher:
    """Starts actors as the processes of one run."""

    def __init__(self, fleet: RayFleet, session: ClusterSession, context: SharedContext) -> None:
        self._timeout = fleet.deadline
        self._session = session
        self._run = session.next_run()
        self._machine = machine_id()
        self._serialized = context.regions.config, context.regions.payload
        self._stored: list[object] = []  # the same in the object store, once a remote worker needs it
        # the weights of a version are sent once to each node; where workers hand in models, each has its own
        once = not context.workload.hands_in_models
        self._weights = WeightSender(context.arena, session.connection, once_per_version=once)
        self._context = context
        # Workers of one node may read the same tensors; a data set's own code might write to what it holds.
        self._share_samples = isinstance(context.workload.samples, TensorSamples)

    def start(self, worker: WorkerHandle, descriptors: list[int]) -> "ActorProcess":
        """An actor for a worker. Its sentinel tells when it has ended, the pipe of all workers when it is ready."""
        session, number = self._session, worker.number
        process = ActorProcess(
            session.start(number), self._timeout.at_first,
            has_capacity=session.connection.has_capacity, keep=partial(session.keep, number),
        )  # fmt: skip
        name, key = "", b""
        if session.local is not None:
            name, key = session.local.name, session.local.expect(descriptors, lambda: process.ended("ended"))
        process.actor.call(partial(self._handle_info, worker, process), "connect", number, self._machine, name, key)
        return process

    def close(self) -> None:
        """Call it when all actors have ended."""
        if self._session.persistent:
            self._session.callbacks.drain()
        else:
            self._session.close()

    # On the callback thread.

    def _handle_info(self, worker: WorkerHandle, process: "ActorProcess", results: list[ActorInfo] | ActorGone) -> None:
        if isinstance(results, ActorGone):
            process.ended(results.reason)
            return
        (info,) = results
        process.placed(info)
        if info.versions != versions():
            ours, theirs = (", ".join(f"{k} {v}" for k, v in each.items()) for each in (versions(), info.versions))
            self._refuse(worker, process, f"{info.host} has {theirs}, and the server {ours}: install the same")
        elif info.local:
            process.actor.call(lambda code: process.finished() if code == [0] else process.ended("ended"), "run_local")
        else:
            process.actor.call(
                lambda gone: process.ended(gone.reason if isinstance(gone, ActorGone) else "ended"),
                "block_forever", group=ALIVE,
            )  # fmt: skip
            self._stored = self._stored or [self._session.connection.put(_array(each)) for each in self._serialized]
            process.actor.call(
                partial(self._handle_prepared, worker, process), "prepare",
                self._run, *self._stored, self._share_samples,
            )  # fmt: skip

    def _handle_prepared(self, worker: WorkerHandle, process: "ActorProcess", results: list[str] | ActorGone) -> None:
        if isinstance(results, ActorGone):
            process.ended(results.reason)
        elif results[0]:
            self._refuse(worker, process, results[0])
        elif not process.released:
            worker.channel = RemoteChannel(worker, process, self._run, self._context, self._weights)
            os.write(self._context.results, RECORD.pack(worker.number, READY, 0))

    def _refuse(self, worker: WorkerHandle, process: "ActorProcess", error: str) -> None:
        worker.error = error
        process.ended("ended")


class ActorProcess:
    """An actor as the supervisor sees a worker process, from the moment when it is started."""

    def __init__(
        self, actor: ActorHandle, at_first: float, *, has_capacity: Callable[[], bool],
        keep: Callable[[ActorHandle], bool],
    ) -> None:  # fmt: skip
        self.actor = actor
        self._has_capacity = has_capacity
        self._keep = keep
        self._reusable = False  # by the next run
        self.sentinel = os.eventfd(0)
        self.pid = 0
        self._pidfd = -1  # of a process on this machine
        self.released = False  # the supervisor has reaped it
        self._info: ActorInfo | None = None
        self._at_first = at_first
        self._requested_at = time.monotonic()
        self._placed_at: float | None = None
        self._reason = ""  # how it ended
        self._lock = threading.Lock()  # the sentinel is not closed while another thread writes to it

    def placed(self, info: ActorInfo) -> None:
        """It runs on a node, and has told on which."""
        if info.local:
            with suppress(OSError):  # it has ended already
                self._pidfd = os.pidfd_open(info.pid)
        self._info, self._placed_at, self.pid = info, time.monotonic(), info.pid

    def ended(self, reason: str) -> None:
        """It has ended, or must be assumed to have."""
        with self._lock:
            if not self.released and not self._reason:
                self._reason = reason
                self.pid = self.pid or UNKNOWN_PID
                os.eventfd_write(self.sentinel, 1)

    def has_ended(self) -> bool:
        return bool(self._reason)

    def finished(self) -> None:
        """It has done all its work for this run."""
        self._reusable = True
        self.ended("ended")

    @property
    def start_timeout(self) -> float:
        """Unlimited while it waits for resources; then as long as a worker's first ticket may take."""
        if self._placed_at is None and self._has_capacity():
            self._placed_at = time.monotonic()
        return float("inf") if self._placed_at is None else self._placed_at - self._requested_at + self._at_first

    @property
    def expected_for(self) -> float:
        """Limited while it waits for resources. It may still join later."""
        return EXPECTED_FOR if self._info is None and not self._has_capacity() else float("inf")

    def kill(self) -> None:
        """Kill it, even if it is stopped."""
        self._reusable = False
        self.actor.kill()
        if self._info is None:
            return
        if self._info.local:
            self._kill_local()
        else:
            kill_on(self._info.node, self.pid)
            self.ended("was killed")

    def _kill_local(self) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, until: float) -> bool:
        """Wait for the end, until a time of ``time.monotonic``."""
        return bool(select.select([self.sentinel], [], [], max(0.0, until - time.monotonic()))[0])

    def reap(self) -> str:
        """Wait for the end, free its resources unless it stays for the next run, and return how it ended."""
        if not self._reason:
            self.wait(time.monotonic() + ENDED_WITHIN)
        with self._lock:
            self.released = True
            os.close(self.sentinel)
        if not (self._reusable and self._keep(self.actor)):
            self.actor.kill()  # only then are its resources free
            self._kill_local()  # a process that has closed its descriptors does not hear of Ray's kill
        if self._pidfd >= 0:
            os.close(self._pidfd)
        where = f" on {self._info.host}" if self._info is not None else ""
        return f"{self._reason or 'was lost'}{where}"


def _array(memory: SharedMemory) -> object:
    return memory.tensor().numpy()
