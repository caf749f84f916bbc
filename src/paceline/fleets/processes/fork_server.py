"""Where worker processes come from: one process, the fork server, has loaded torch and forks whenever it is asked to.

Starting Python and loading torch takes seconds; forking a process that has done so takes some milliseconds, and the
child shares its memory. The fork server is started with the first fleet and ends with this process.

Whoever is killed or stopped, nothing is left behind, and a run goes on where it can:

- The server watches each worker itself, by a pidfd that the worker sends when it begins. What the fork server adds is
  only why a worker ended.
- Workers die with the fork server (the kernel kills them), and the server has others started by a new one, which loads
  what the last one had loaded. One that starts nobody for ``BEGUN_WITHIN`` seconds is killed by the server.
- When the server dies, the kernel lets the fork server go on if it was stopped; it then ends all workers and itself.
- Each worker has a session of its own. What its code has started goes with it, and what has left the session goes when
  the last worker has gone.

(The standard library's fork server would run the user's main script again in every worker, and stays alive for as long
as any worker does.)
"""

import atexit
import ctypes
import errno
import importlib
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NUMBER = struct.Struct("<q")
MOST_DESCRIPTORS = 16
OPTIMIZERS = -1  # instead of a worker's number
LOADED = NUMBER.pack(0)
BEGUN_WITHIN = 10.0  # seconds that a fork may take, once torch is loaded
ASKED_WITHIN = 60.0  # seconds until a request must have found room in the socket
ENDED_WITHIN = 5.0  # seconds that a process may take to end once it is killed
TOLD_WITHIN = 1.0  # seconds that the fork server may take to say why a worker ended
FULL = (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PIDFD_SIGNAL_PROCESS_GROUP = 4  # since Linux 6.9
# Freed memory is kept for the next mini-batch: giving it back and asking again makes large models 1.5 times slower.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**24)}
START = (
    "import sys; sys.path[:] = {path!r}; from paceline.fleets.processes import fork_server; "
    "fork_server.serve({socket}, {parent})"
)


class ForkServer:
    """This process's side of the process that forks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = START.format(path=sys.path, socket=theirs.fileno(), parent=os.getpid())
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", command], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                    env={**os.environ, **KEEP_MEMORY}, start_new_session=True,  # Ctrl-C is for the server
                )  # fmt: skip
            except BaseException:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        self.is_mute = False  # was it asked in vain why a worker ended?
        self._loading = 1  # what it was asked to load, and has not told to have loaded
        self._ready_at = 0.0
        self._counting = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, number: int, descriptors: Sequence[int]) -> None:
        """Send a request; wait while there is no room for another one, but not for ever."""
        if number == OPTIMIZERS:
            with self._counting:
                self._loading += 1
        until = time.monotonic() + ASKED_WITHIN
        while True:
            try:
                socket.send_fds(self._socket, [NUMBER.pack(number)], descriptors)
                return
            except OSError as error:
                if error.errno not in FULL or time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def ready_since(self) -> float | None:
        """When it had loaded everything; nothing while it is still at it."""
        with self._counting:
            with suppress(OSError):  # nothing was said, or it is gone
                while self._loading and self._socket.recv(NUMBER.size):
                    self._loading -= 1
                    self._ready_at = time.monotonic()
            return None if self._loading else self._ready_at

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Let it end, and with it all that it has started."""
        self._socket.close()
        try:
            self._process.wait(ENDED_WITHIN)
        except subprocess.TimeoutExpired:  # it is stopped, or stuck
            self._process.kill()
            self._process.wait()


class Child:
    """A worker process, from the moment when it is asked for.

    ``sentinel`` is to be watched: it becomes readable when the process has begun or will not begin, and after that,
    another one, when it has ended. ``has_ended`` tells which it was.
    """

    patience = float("inf")

    def __init__(self, told: socket.socket, parent: ForkServer) -> None:
        self.pid = 0  # until it is known to have begun
        self.sentinel = told.fileno()
        told.setblocking(False)
        self._told = told
        self._parent = parent
        self._asked = time.monotonic()
        self._pidfd = -1
        self._failure = ""  # why it never began, if it did not

    @property
    def start_limit(self) -> float | None:
        """A fork takes no time, once the fork server is ready; what follows, and what came before, may."""
        if self.pid or (ready := self._parent.ready_since()) is None:
            return None
        return max(0.0, ready - self._asked) + BEGUN_WITHIN

    def has_ended(self) -> bool:
        """Is it over? Never waits."""
        if not self.pid and not self._failure:
            self._hear()
        return bool(self._failure) or (self.pid > 0 and _readable(self._pidfd, 0.0))

    def _hear(self) -> None:
        """Has it begun?"""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._told, NUMBER.size, 1)
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
            self._failure = "could not be started, since the process that starts workers ended,"

    def kill(self) -> None:
        """At once; if it has not even begun, then the one that was to start it."""
        if self.has_ended():
            return
        if self.pid:
            self._signal(0)
        else:
            self._parent.kill()

    def _signal(self, whom: int) -> None:
        with suppress(ProcessLookupError):  # it is gone already
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL, None, whom)

    def ends_by(self, until: float) -> bool:
        while not self.has_ended():
            if (left := until - time.monotonic()) <= 0:
                return False
            _readable(self.sentinel, left)
        return True

    def end(self) -> str:
        """Wait for the end, and tell of what kind it was. Whatever its code has started ends too."""
        ended = self.ends_by(time.monotonic() + ENDED_WITHIN)
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
            self._told.close()
            if self._pidfd >= 0:
                os.close(self._pidfd)

    def _cause(self) -> str:
        told = b""
        parent = self._parent
        parent.is_mute = not _readable(self._told.fileno(), 0.0 if parent.is_mute else TOLD_WITHIN)
        if parent.is_mute:
            return "ended"  # the fork server is stopped
        with suppress(OSError):
            told = self._told.recv(NUMBER.size)
        if len(told) < NUMBER.size:
            return "ended with the process that had started it"
        code = NUMBER.unpack(told)[0]
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _readable(descriptor: int, seconds: float) -> bool:
    """Within so many seconds; ``select`` would refuse descriptors above 1,023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000.0))


class Nursery:
    """The fork server of this process, and the next one when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._owner = 0
        self._optimizers = False

    @property
    def pid(self) -> int:
        """Of the fork server; 0 if there is none."""
        return 0 if self._server is None else self._server.pid

    def fork(self, worker: int, descriptors: Sequence[int]) -> Child:
        """A new process that runs ``worker.main(worker, descriptors)``."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, self._lock:
                return Child(ours, self._ask(worker, [theirs.fileno(), *descriptors]))
        except BaseException:
            ours.close()
            raise

    def load_optimizers(self) -> None:
        """Have it load what torch loads with the first optimizer, for seconds: once, and not in every worker."""
        with self._lock:
            wanted, self._optimizers = not self._optimizers, True
            if not self._is_there():
                self._present()  # a new one is told anyway
            elif wanted:
                self._ask(OPTIMIZERS, [])

    def wake(self) -> None:
        """Have it load torch, which takes its time, while this process does something else."""
        with self._lock:
            self._present()

    def _ask(self, number: int, descriptors: Sequence[int]) -> ForkServer:
        try:
            server = self._present()
            server.ask(number, descriptors)
        except OSError as error:  # it is gone, or stopped: have another one
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.EBADF):
                raise
            self._put_away()
            server = self._present()
            if number != OPTIMIZERS:
                server.ask(number, descriptors)
        return server

    def _is_there(self) -> bool:
        return self._server is not None and self._owner == os.getpid()  # a fork of this process has one of its own

    def _present(self) -> ForkServer:
        if not self._is_there():
            self._server, self._owner = ForkServer(), os.getpid()
            if self._optimizers:
                self._server.ask(OPTIMIZERS, [])
        assert self._server is not None
        return self._server

    def _put_away(self) -> None:
        if self._server is not None and self._is_there():
            self._server.kill()
            self._server.close()
        self._server = None

    def close(self) -> None:
        """Let it end, and with it all that it has started."""
        if self._server is not None and self._is_there():
            self._server.close()
        self._server = None


NURSERY = Nursery()
atexit.register(NURSERY.close)


# The fork server's own side.


def serve(descriptor: int, parent: int) -> None:
    """Fork for every request, tell of every end, until the server is gone."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGCONT)  # if it is stopped when the server dies, it goes on, and ends
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # what workers leave behind becomes its own
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, most)
    )  # it has one open file for each worker, and they have theirs
    with suppress(OSError):  # the server is gone
        _Forking(descriptor, parent, libc).go_on()
    os._exit(0)


class _Forking:
    def __init__(self, descriptor: int, parent: int, libc: ctypes.CDLL) -> None:
        from paceline.fleets.processes import worker  # and torch with it

        self._main = worker.main
        self._requests = socket.socket(fileno=descriptor)
        self._parent = parent
        self._libc = libc
        self._children: dict[int, int] = {}  # workers, and where to tell of their end
        self._signals, self._woken = os.pipe()
        for end in (self._signals, self._woken):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGCONT, lambda number, frame: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def go_on(self) -> None:
        poll = select.poll()
        for descriptor in (self._requests.fileno(), self._signals):
            poll.register(descriptor, select.POLLIN)
        try:
            self._requests.send(LOADED)
            while os.getppid() == self._parent:
                readable = [descriptor for descriptor, _ in poll.poll()]
                if self._signals in readable:
                    os.read(self._signals, 4096)
                    self._bury()
                if self._requests.fileno() in readable and not self._answer():
                    return
        finally:
            self._end_all()

    def _answer(self) -> bool:
        """Do what is asked; false when there is nobody to ask."""
        message, descriptors, flags, _ = socket.recv_fds(self._requests, NUMBER.size, MOST_DESCRIPTORS)
        if not message:
            return False
        number = NUMBER.unpack(message)[0]
        if number == OPTIMIZERS:
            importlib.import_module("torch._dynamo")
            self._requests.send(LOADED)
        elif not flags & socket.MSG_CTRUNC:  # else there was no room for the descriptors, and the asker sees an end
            self._fork(number, *descriptors)
            descriptors = descriptors[1:]
        for each in descriptors:
            os.close(each)
        return True

    def _fork(self, number: int, told: int, *given: int) -> None:
        own = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or too little memory
            with suppress(OSError):
                os.write(told, NUMBER.pack(-(error.errno or 0)))
            os.close(told)
            return
        if not pid:
            try:
                for other in (self._signals, self._woken, self._requests.fileno(), *self._children.values()):
                    os.close(other)
                self._live(number, told, given, own)
            finally:
                os._exit(1)
        self._children[pid] = told

    def _live(self, number: int, told: int, given: Sequence[int], parent: int) -> None:
        """A worker's whole life."""
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGCHLD, signal.SIGCONT):
            signal.signal(each, signal.SIG_DFL)
        os.setsid()
        self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            return
        _announce(told)
        code = 1
        try:
            code = self._main(number, given)
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _bury(self) -> None:
        """Tell of workers that have ended, and end what their code has started."""
        with suppress(ChildProcessError):  # there is nobody left
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                told = self._children.pop(found.si_pid, None)
                if told is not None:
                    with suppress(OSError):
                        os.killpg(found.si_pid, signal.SIGKILL)
                _, status = os.waitpid(found.si_pid, 0)
                if told is not None:
                    with suppress(OSError):  # nobody asks any more
                        os.write(told, NUMBER.pack(os.waitstatus_to_exitcode(status)))
                    os.close(told)
        if not self._children:
            _kill_children()  # of workers that have gone

    def _end_all(self) -> None:
        until = time.monotonic() + ENDED_WITHIN
        for pid in self._children:
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while time.monotonic() < until:
                _kill_children()
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(0.005)


def _announce(told: int) -> None:
    """A worker says that it has begun: who watches it must not depend on the fork server for that."""
    pid = os.getpid()
    with socket.socket(fileno=told) as teller:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:  # a kernel older than 5.3
            teller.send(NUMBER.pack(-(error.errno or 0)))
            raise
        socket.send_fds(teller, [NUMBER.pack(pid)], [pidfd])
    os.close(pidfd)


def _kill_children() -> None:
    own = str(os.getpid())
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError, IndexError):
                if (process / "stat").read_text().rpartition(")")[2].split()[1] == own:
                    os.kill(int(process.name), signal.SIGKILL)
