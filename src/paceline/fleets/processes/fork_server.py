"""Starts worker processes through a fork server: a process that has loaded torch and forks on request.

Starting Python and loading torch takes seconds; forking a process that has done so takes milliseconds, and the forked
process shares its memory. The fork server is started with the first fleet and ends with this process.

Whichever process is killed or stopped, none is left behind, and a run continues where it can:

- The training process watches each worker itself, by a pidfd that the worker sends when it starts. The fork server only
  adds how a worker ended.
- Workers die with the fork server (the kernel kills them), and the training process has others started by a new one,
  which loads what the last one had loaded. One that starts no worker for ``START_WITHIN`` seconds is killed.
- When the training process dies, the kernel wakes the fork server if it was stopped; it then ends all workers and
  itself.
- Each worker has a session of its own. Processes that its code starts are killed with it; those that left the session
  are killed when the last worker has ended.

A process that is spawned is forked as well, and then loads Python and torch anew: for libraries that cannot be forked,
such as a driver that was initialised. The fork server itself initialises none.

(The fork server of the standard library would run the user's main script again in every worker, and stays alive for as
long as any worker does.)
"""

import atexit
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from paceline.fleets.processes.fork_loop import ENDED_WITHIN, MODULES, NUMBER, OPTIMIZERS, PARALLEL, SPAWN

START_WITHIN = 10.0  # seconds that a fork may take, once torch is loaded
REQUEST_WITHIN = 60.0  # seconds until a request must have fit into the socket
CAUSE_WITHIN = 1.0  # seconds that the fork server may take to tell how a worker ended
SOCKET_FULL = (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS)
PIDFD_SIGNAL_PROCESS_GROUP = 4  # since Linux 6.9
# Freed memory is kept for the next mini-batch: giving it back and asking again makes large models 1.5 times slower.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**24)}
START = (
    "import sys; sys.path[:] = {path!r}; from paceline.fleets.processes import fork_loop; "
    "fork_loop.serve({socket}, {parent})"
)


class ForkServer:
    """The fork server of this process; when it has died, it is started again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _ServerProcess | None = None
        self._owner = 0
        self._loads: list[int] = []  # what is loaded besides torch

    @property
    def pid(self) -> int:
        """0 if it is not running."""
        return 0 if self._process is None else self._process.pid

    def fork(self, worker: int, descriptors: Sequence[int], *, spawn: bool = False) -> "ForkedProcess":
        """A new process that runs ``worker.main(worker, descriptors)``; with ``spawn`` it loads Python anew before."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, self._lock:
                number = worker + SPAWN if spawn else worker
                return ForkedProcess(ours, self._request(number, [theirs.fileno(), *descriptors]))
        except BaseException:
            ours.close()
            raise

    def load_optimizers(self) -> None:
        """Load what torch imports with its first optimizer: it takes seconds, and so is done once for all workers."""
        self._load(OPTIMIZERS)

    def load_parallel(self) -> None:
        """Load what torch imports with its first ``DeviceMesh`` and sharded model, in the same way."""
        self._load(PARALLEL)

    def _load(self, what: int) -> None:
        with self._lock:
            wanted = what not in self._loads
            if wanted:
                self._loads.append(what)
            if not self._is_ours():
                self._running()  # a new one loads it anyway
            elif wanted:
                self._request(what, [])

    def start(self) -> None:
        """Begin to load torch, which takes seconds, while this process does something else."""
        with self._lock:
            self._running()

    def _request(self, number: int, descriptors: Sequence[int]) -> "_ServerProcess":
        try:
            process = self._running()
            process.request(number, descriptors)
        except OSError as error:  # it is gone, or stopped: start another one
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.EBADF):
                raise
            self._discard()
            process = self._running()
            if number not in MODULES:
                process.request(number, descriptors)
        return process

    def _is_ours(self) -> bool:
        return self._process is not None and self._owner == os.getpid()  # a fork of this process starts its own

    def _running(self) -> "_ServerProcess":
        if not self._is_ours():
            self._process, self._owner = _ServerProcess(), os.getpid()
            for each in self._loads:
                self._process.request(each, [])
        assert self._process is not None
        return self._process

    def _discard(self) -> None:
        if self._process is not None and self._is_ours():
            self._process.kill()
            self._process.close()
        self._process = None

    def close(self) -> None:
        """End it, and with it everything that it has started."""
        if self._process is not None and self._is_ours():
            self._process.close()
        self._process = None


class _ServerProcess:
    """One process that forks, as this process sees it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = START.format(path=sys.path, socket=theirs.fileno(), parent=os.getpid())
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", command], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                    env={**os.environ, **KEEP_MEMORY}, start_new_session=True,  # Ctrl-C does not reach it
                )  # fmt: skip
            except BaseException:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        self.is_unresponsive = False  # it was asked in vain how a worker ended
        self._loading = 1  # requests to load something that are not answered yet
        self._loaded_at = 0.0
        self._counting = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, number: int, descriptors: Sequence[int]) -> None:
        """Send a request; wait for a limited time while the socket is full."""
        if number in MODULES:
            with self._counting:
                self._loading += 1
        until = time.monotonic() + REQUEST_WITHIN
        while True:
            try:
                socket.send_fds(self._socket, [NUMBER.pack(number)], descriptors)
                return
            except OSError as error:
                if error.errno not in SOCKET_FULL or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def loaded_at(self) -> float | None:
        """When it had loaded everything; ``None`` while it is still loading."""
        with self._counting:
            with suppress(OSError):  # there is no message, or it is gone
                while self._loading and self._socket.recv(NUMBER.size):
                    self._loading -= 1
                    self._loaded_at = time.monotonic()
            return None if self._loading else self._loaded_at

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """End it, and with it everything that it has started."""
        self._socket.close()
        try:
            self._process.wait(ENDED_WITHIN)
        except subprocess.TimeoutExpired:  # it is stopped, or stuck
            self._process.kill()
            self._process.wait()


class ForkedProcess:
    """A worker process, from the moment when it was requested.

    Watch ``sentinel``: it becomes readable when the process has started or could not be started. From then on it is
    another descriptor, which becomes readable when the process has ended. ``has_ended`` tells them apart.
    """

    expected_for = float("inf")

    def __init__(self, status: socket.socket, server: _ServerProcess) -> None:
        self.pid = 0  # until it is known to have started
        self.sentinel = status.fileno()
        status.setblocking(False)
        self._status = status
        self._server = server
        self._requested_at = time.monotonic()
        self._pidfd = -1
        self._failure = ""  # why it was never started, if it was not

    @property
    def start_timeout(self) -> float | None:
        """A fork is quick once the fork server is ready; loading torch before, and the task after it, may be slow."""
        if self.pid or (loaded := self._server.loaded_at()) is None:
            return None
        return max(0.0, loaded - self._requested_at) + START_WITHIN

    def has_ended(self) -> bool:
        """Whether it has ended. Returns at once."""
        if not self.pid and not self._failure:
            self._read_start()
        return bool(self._failure) or (self.pid > 0 and _readable(self._pidfd, 0.0))

    def _read_start(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._status, NUMBER.size, 1)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if descriptors:
            self.pid, self.sentinel = NUMBER.unpack(message)[0], descriptors[0]
            self._pidfd = self.sentinel
        elif message:
            self._failure = f"could not be started ({os.strerror(-NUMBER.unpack(message)[0])})"
        else:
            self._failure = "could not be started, since the fork server ended,"

    def kill(self) -> None:
        """Kill it; if it has not started, kill the fork server that was to start it."""
        if self.has_ended():
            return
        if self.pid:
            self._signal(0)
        else:
            self._server.kill()

    def _signal(self, flags: int) -> None:
        with suppress(ProcessLookupError):  # it has ended already
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL, None, flags)

    def wait(self, until: float) -> bool:
        """Wait for the end, until a time of ``time.monotonic``."""
        while not self.has_ended():
            if (left := until - time.monotonic()) <= 0:
                return False
            _readable(self.sentinel, left)
        return True

    def reap(self) -> str:
        """Wait for the end, kill what its code has started, and return how it ended."""
        ended = self.wait(time.monotonic() + ENDED_WITHIN)
        try:
            if not self.pid:
                return self._failure or "could not be started"
            try:
                self._signal(PIDFD_SIGNAL_PROCESS_GROUP)
            except OSError:  # an older kernel; the group's number is not given to another while it has members
                with suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)
            return self._cause() if ended else "could not be ended"
        finally:
            self._status.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)

    def _cause(self) -> str:
        message = b""
        server = self._server
        server.is_unresponsive = not _readable(self._status.fileno(), 0.0 if server.is_unresponsive else CAUSE_WITHIN)
        if server.is_unresponsive:
            return "ended"  # the fork server is stopped
        with suppress(OSError):
            message = self._status.recv(NUMBER.size)
        if len(message) < NUMBER.size:
            return "ended with the fork server"
        code = NUMBER.unpack(message)[0]
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _readable(descriptor: int, seconds: float) -> bool:
    """Wait until a descriptor is readable; ``select`` would refuse descriptors above 1,023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000.0))


FORK_SERVER = ForkServer()
atexit.register(FORK_SERVER.close)
