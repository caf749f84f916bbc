"""The fork server's own process: it loads torch once, then forks a worker for every request.

It tells how each worker ended, and ends with the training process. Workers are killed with it.
"""

import ctypes
import importlib
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# A request is the number of a worker and the descriptors that it gets, the first of which is a socket for this one
# process: on it the worker sends its pid and a pidfd, and this process later how it ended.
NUMBER = struct.Struct("<q")
MAX_DESCRIPTORS = 16
SPAWN = 1 << 32  # is added to the number of a worker whose process is to load Python anew
OPTIMIZERS, PARALLEL = -1, -2  # instead of a worker's number: load what takes seconds, once for all workers
MODULES = {OPTIMIZERS: "torch._dynamo", PARALLEL: "torch.distributed.fsdp"}  # what torch imports with its first use
LOADED = NUMBER.pack(0)  # the answer when torch, or one of these, is loaded
ENDED_WITHIN = 5.0  # seconds that a process may take to end once it is killed
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def serve(descriptor: int, parent: int) -> None:
    """Fork for every request on a socket and tell how every worker ended, until the training process is gone."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGCONT)  # if it is stopped when the training process dies, it wakes and ends
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # processes that workers leave behind become its children
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the training process
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # one open file for each worker, and the workers' own
    with suppress(OSError):  # the training process is gone
        _ForkLoop(descriptor, parent, libc).run()
    os._exit(0)


class _ForkLoop:
    def __init__(self, descriptor: int, parent: int, libc: ctypes.CDLL) -> None:
        from paceline.fleets.processes import worker  # and torch with it

        self._main = worker.main
        self._requests = socket.socket(fileno=descriptor)
        self._parent = parent
        self._libc = libc
        self._workers: dict[int, int] = {}  # the socket of each process
        self._signals, self._signalled = os.pipe()
        for end in (self._signals, self._signalled):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGCONT, lambda number, frame: None)
        signal.set_wakeup_fd(self._signalled, warn_on_full_buffer=False)

    def run(self) -> None:
        poll = select.poll()
        for descriptor in (self._requests.fileno(), self._signals):
            poll.register(descriptor, select.POLLIN)
        try:
            self._requests.send(LOADED)
            while os.getppid() == self._parent:
                readable = [descriptor for descriptor, _ in poll.poll()]
                if self._signals in readable:
                    os.read(self._signals, 4096)
                    self._reap()
                if self._requests.fileno() in readable and not self._handle_request():
                    return
        finally:
            self._end_all()

    def _handle_request(self) -> bool:
        """Returns false when the other end of the socket is closed."""
        message, descriptors, flags, _ = socket.recv_fds(self._requests, NUMBER.size, MAX_DESCRIPTORS)
        if not message:
            return False
        number = NUMBER.unpack(message)[0]
        if number in MODULES:
            importlib.import_module(MODULES[number])
            self._requests.send(LOADED)
        elif not flags & socket.MSG_CTRUNC:  # else too many files are open: closing them tells that nothing was started
            self._fork(number, *descriptors)
            descriptors = descriptors[1:]
        for each in descriptors:
            os.close(each)
        return True

    def _fork(self, number: int, status: int, *given: int) -> None:
        spawns, number = divmod(number, SPAWN)
        own = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or too little memory
            with suppress(OSError):
                os.write(status, NUMBER.pack(-(error.errno or 0)))
            os.close(status)
            return
        if not pid:
            try:
                for other in (self._signals, self._signalled, self._requests.fileno(), *self._workers.values()):
                    os.close(other)
                self._run_worker(number, status, given, own, spawns=bool(spawns))
            finally:
                os._exit(1)
        self._workers[pid] = status

    def _run_worker(self, number: int, status: int, given: Sequence[int], parent: int, *, spawns: bool) -> None:
        """In the forked process: be a worker, and exit."""
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGCHLD, signal.SIGCONT):
            signal.signal(each, signal.SIG_DFL)
        os.setsid()
        self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            return
        _send_pidfd(status)
        if spawns:
            execute("worker.main", number, list(given), descriptors=given)
        code = 1
        try:
            code = self._main(number, given)
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        """Tell how workers ended, and kill what their code has started."""
        with suppress(ChildProcessError):  # there are no more processes
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                status = self._workers.pop(found.si_pid, None)
                if status is not None:
                    with suppress(OSError):
                        os.killpg(found.si_pid, signal.SIGKILL)
                _, code = os.waitpid(found.si_pid, 0)
                if status is not None:
                    with suppress(OSError):  # the training process has closed it
                        os.write(status, NUMBER.pack(os.waitstatus_to_exitcode(code)))
                    os.close(status)
        if not self._workers:
            _kill_children()  # left behind by workers

    def _end_all(self) -> None:
        until = time.monotonic() + ENDED_WITHIN
        for pid in self._workers:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while time.monotonic() < until:
                _kill_children()
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(0.005)


def execute(function: str, *arguments: object, descriptors: Sequence[int]) -> None:
    """Load Python anew in this process, with these descriptors, and call a function of ``paceline.fleets.processes``.

    What was loaded is gone, an initialised driver included; the process stays the same to the system. Its exit code is
    what the function returns.
    """
    for each in descriptors:
        os.set_inheritable(each, True)
    call = f"{function}({', '.join(map(repr, arguments))})"
    command = f"import os, sys; sys.path[:] = {sys.path!r}; from paceline.fleets.processes import worker; code = {call}"
    os.execv(sys.executable, [sys.executable, "-c", f"{command}; sys.stdout.flush(); os._exit(code)"])


def _send_pidfd(status: int) -> None:
    """A worker tells that it has started. The pidfd lets the training process watch it without the fork server."""
    pid = os.getpid()
    with socket.socket(fileno=status) as sender:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:  # a kernel older than 5.3
            sender.send(NUMBER.pack(-(error.errno or 0)))
            raise
        socket.send_fds(sender, [NUMBER.pack(pid)], [pidfd])
    os.close(pidfd)


def _kill_children() -> None:
    own = str(os.getpid())
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError, IndexError):
                if (process / "stat").read_text().rpartition(")")[2].split()[1] == own:
                    os.kill(int(process.name), signal.SIGKILL)
