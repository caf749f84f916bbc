"""Where worker processes come from: one process that has loaded torch and forks whenever it is asked to.

Starting Python and loading torch takes seconds; forking a process that has done so takes some milliseconds, and the
child shares its memory. The nursery is started with the first fleet and ends with this process: when the socket between
the two closes, it exits, and the kernel kills its children with it, even those that are stopped.

(The standard library's fork server would run the user's main script again in every worker, and stays alive for as long
as any worker does.)
"""

import atexit
import ctypes
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from paceline.core.errors import PacelineError

NUMBER = struct.Struct("<q")
MOST_DESCRIPTORS = 16
OPTIMIZERS = -1  # instead of a worker's number
PR_SET_PDEATHSIG = 1
# Freed memory is kept for the next mini-batch: giving it back and asking again makes large models 1.5 times slower.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**24)}
START = "import sys; sys.path[:] = {path!r}; from paceline.fleets.processes import nursery; nursery.serve({socket})"


class Child:
    """A worker process. Its ``sentinel`` becomes readable when it has been born, and again when it has ended."""

    def __init__(self, sentinel: int) -> None:
        self.sentinel = sentinel
        self.pid = 0  # until it is known to be born

    def be_born(self) -> None:
        """Wait for it, if need be."""
        if not self.pid:
            told = os.read(self.sentinel, NUMBER.size)
            if len(told) < NUMBER.size:
                raise PacelineError("the process that starts workers ended before it had started one")
            self.pid = NUMBER.unpack(told)[0]

    def kill(self) -> None:
        self.be_born()
        with suppress(ProcessLookupError):  # it is gone already
            os.kill(self.pid, signal.SIGKILL)

    def ends_by(self, until: float) -> bool:
        self.be_born()
        return bool(select.select([self.sentinel], [], [], max(0.0, until - time.monotonic()))[0])

    def end(self) -> str:
        """Wait for the end, and tell of what kind it was."""
        self.be_born()
        told = os.read(self.sentinel, NUMBER.size)
        os.close(self.sentinel)
        if len(told) < NUMBER.size:
            return "ended with the process that had started it"
        code = NUMBER.unpack(told)[0]
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"


class Nursery:
    """This process's side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def fork(self, worker: int, descriptors: Sequence[int]) -> Child:
        """A new process that runs ``worker.main(worker, descriptors)``."""
        sentinel, status = os.pipe()
        try:
            with self._lock:
                try:
                    self._ask(worker, [status, *descriptors])
                except OSError:  # it is gone: have another one
                    self.close()
                    self._ask(worker, [status, *descriptors])
        finally:
            os.close(status)
        return Child(sentinel)

    def wake(self) -> None:
        """Have it load torch, which takes its time, while this process does something else."""
        with self._lock:
            self._be_there()

    def load_optimizers(self) -> None:
        """Have it load what torch loads with the first optimizer, for seconds: once, and not in every worker."""
        with self._lock, suppress(OSError):  # if it is gone, workers will load it
            self._ask(OPTIMIZERS, [])

    def _ask(self, worker: int, descriptors: Sequence[int]) -> None:
        self._be_there()
        assert self._socket is not None
        socket.send_fds(self._socket, [NUMBER.pack(worker)], descriptors)

    def _be_there(self) -> None:
        if self._socket is None or self._owner != os.getpid():  # a fork of this process has a nursery of its own
            self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = START.format(path=sys.path, socket=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", command], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                env={**os.environ, **KEEP_MEMORY},
            )  # fmt: skip
        self._socket, self._owner = ours, os.getpid()

    def close(self) -> None:
        """Let it end, and with it all that it has started."""
        if self._socket is not None and self._process is not None and self._owner == os.getpid():
            self._socket.close()
            self._process.wait()
        self._socket = self._process = None


NURSERY = Nursery()
atexit.register(NURSERY.close)


def serve(descriptor: int) -> None:
    """The nursery's own side: fork for every request, tell of every end, until the socket closes."""
    from paceline.fleets.processes import worker  # and torch with it

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    deaths, wakeup = os.pipe()
    os.set_blocking(deaths, False)
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    children: dict[int, int] = {}
    own = os.getpid()
    with socket.socket(fileno=descriptor) as requests:
        while True:
            readable, _, _ = select.select([descriptor, deaths], [], [])
            if deaths in readable:
                os.read(deaths, 4096)
                _tell_of_deaths(children)
            if descriptor in readable:
                message, descriptors, _, _ = socket.recv_fds(requests, NUMBER.size, MOST_DESCRIPTORS)
                if not message:
                    return
                if NUMBER.unpack(message)[0] == OPTIMIZERS:
                    importlib.import_module("torch._dynamo")
                    continue
                status, *given = descriptors
                if not (pid := os.fork()):
                    for other in (deaths, wakeup, descriptor, status, *children.values()):
                        os.close(other)
                    _live(NUMBER.unpack(message)[0], given, own, worker.main)
                children[pid] = status
                os.write(status, NUMBER.pack(pid))
                for each in given:
                    os.close(each)


def _live(number: int, descriptors: Sequence[int], parent: int, main: Callable[[int, Sequence[int]], int]) -> None:
    """A child's whole life."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        code = main(number, descriptors)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tell_of_deaths(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        told = children.pop(pid)
        with suppress(BrokenPipeError):  # nobody asks any more
            os.write(told, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(told)
