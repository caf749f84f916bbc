"""Starts worker processes through a fork server: a process that has loaded torch and forks on request.

Starting Python and loading torch takes seconds; forking a process that has done so takes milliseconds, and the forked
process shares its memory. The fork server is started with the first fleet and ends with this process.

Whichever process is killed or stopped, none is left behind, and a run continues where it can:

- The training process watches each worker itself, by a pidfd that the worker sends when it starts. The fork server only
  adds how a worker ended.
- Workers die with the fork server (the kernel kills them), and the training process has others started by a new one,
  which loads what the last one had loaded. One that starts no worker for ``START_WITHIN`` seconds is killed.
- Nobody waits for a fork server that reads no requests: what does not fit into its socket is sent later.
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
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait

from paceline.fleets.processes.fork_loop import ENDED_WITHIN, MODULES, NUMBER, OPTIMIZERS, PARALLEL, SPAWN

START_WITHIN = 10.0  # seconds that a fork may take, once torch is loaded and those before it are made
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
        request = _Request(worker + SPAWN if spawn else worker, theirs, descriptors)
        try:
            with self._lock:
                return ForkedProcess(ours, self._request(request), request)
        except BaseException:
            ours.close()
            theirs.close()
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
                self._request(_Request(what))

    def start(self) -> None:
        """Begin to load torch, which takes seconds, while this process does something else."""
        with self._lock:
            self._running()

    def _request(self, request: "_Request") -> "_ServerProcess":
        try:
            process = self._running()
            process.send(request)
        except OSError as error:  # it is gone: start another one
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.EBADF):
                raise
            self._discard()
            process = self._running()
            if request.number not in MODULES:
                process.send(request)
        return process

    def _is_ours(self) -> bool:
        return self._process is not None and self._owner == os.getpid()  # a fork of this process starts its own

    def _running(self) -> "_ServerProcess":
        if not self._is_ours():
            self._process, self._owner = _ServerProcess(), os.getpid()
            for each in self._loads:
                self._process.send(_Request(each))
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


class _Request:
    """What the fork server is asked for: a process with these descriptors, the first of which is a socket for it."""

    def __init__(self, number: int, status: socket.socket | None = None, descriptors: Sequence[int] = ()) -> None:
        self.number = number
        self._status = status  # until the fork server has it
        self._descriptors = descriptors

    @property
    def waits(self) -> bool:
        """Is it still to be sent?"""
        return self._status is not None

    @property
    def descriptors(self) -> list[int]:
        return [] if self._status is None else [self._status.fileno(), *self._descriptors]

    def close(self) -> None:
        """It was sent, or never will be."""
        if self._status is not None:
            self._status.close()
        self._status = None


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
        self._answered_at = 0.0  # when it last had loaded something, or started a process
        self._counting = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, request: _Request) -> None:
        """Send a request, unless the socket is full: then one for a process waits, and what to load is loaded later."""
        with self._counting:
            try:
                socket.send_fds(self._socket, [NUMBER.pack(request.number)], request.descriptors)
            except OSError as error:
                if error.errno not in SOCKET_FULL:
                    raise
                return
            self._loading += request.number in MODULES
        request.close()

    def has_started_one(self) -> None:
        """A process has told that it has started."""
        with self._counting:
            self._answered_at = time.monotonic()

    def answered_at(self) -> float | None:
        """When it last had loaded something, or started a process; ``None`` while it is still loading."""
        with self._counting:
            with suppress(OSError):  # there is no message, or it is gone
                while self._loading and self._socket.recv(NUMBER.size):
                    self._loading -= 1
                    self._answered_at = time.monotonic()
            return None if self._loading else self._answered_at

    @property
    def is_gone(self) -> bool:
        return self._process.poll() is not None

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

    def __init__(self, status: socket.socket, server: _ServerProcess, request: _Request) -> None:
        self.pid = 0  # until it is known to have started
        self.sentinel = status.fileno()
        status.setblocking(False)
        self._status = status
        self._server = server
        self._request = request
        self._requested_at = time.monotonic()
        self._pidfd = -1
        self._failure = ""  # why it was never started, if it was not

    @property
    def start_timeout(self) -> float | None:
        """A fork is quick once the fork server is ready; loading torch before, and the task after it, may be slow.

        Forks are made one after the other: whoever waits for others has as long from the last one of them on.
        """
        self.ask_again()
        if self.pid or (answered := self._server.answered_at()) is None:
            return None
        return max(0.0, answered - self._requested_at) + START_WITHIN

    def ask_again(self) -> None:
        """Ask for it, if that was not possible yet. Returns at once."""
        if self._request.waits:
            try:
                self._server.send(self._request)
            except OSError:  # the fork server is gone; the end of the socket tells
                self._request.close()

    def has_ended(self) -> bool:
        """Whether it has ended. Returns at once."""
        self.ask_again()
        if not self.pid and not self._failure:
            self._read_start()
        return bool(self._failure) or (self.pid > 0 and bool(wait([self._pidfd], 0.0)))

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
            self._server.has_started_one()
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
            wait([self.sentinel], left)
        return True

    def reap(self) -> str:
        """Wait for the end, kill what its code has started, and return how it ended."""
        ended = self.wait(time.monotonic() + ENDED_WITHIN)
        try:
            if not self.pid:
                return self._failure or "could not be started"
            try:
                self._signal(PIDFD_SIGNAL_PROCESS_GROUP)
            except OSError:  # an older kernel
                self._kill_group()
            return self._cause() if ended else "could not be ended"
        finally:
            self._request.close()
            self._status.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)

    def _kill_group(self) -> None:
        """Kill what its code has started, by a number that another process may have by now.

        So not if the fork server lives and tells the end: it has done that then, before the number became free.
        """
        within = 0.0 if self._server.is_unresponsive else CAUSE_WITHIN
        if self._server.is_gone or not wait([self._status], within):
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def _cause(self) -> str:
        message = b""
        server = self._server
        server.is_unresponsive = not wait([self._status], 0.0 if server.is_unresponsive else CAUSE_WITHIN)
        if server.is_unresponsive:
            return "ended"  # the fork server is stopped
        with suppress(OSError):
            message = self._status.recv(NUMBER.size)
        if len(message) < NUMBER.size:
            return "ended with the fork server"
        code = NUMBER.unpack(message)[0]
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


FORK_SERVER = ForkServer()
atexit.register(FORK_SERVER.close)
