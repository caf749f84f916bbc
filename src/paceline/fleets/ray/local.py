"""How a worker on the server's own machine gets the shared memory: descriptors are sent over a local socket.

The worker connects with a key that it alone got, through Ray. Processes of other users are refused before anything is
read. The server never waits for one connection: a silent one does not delay the others. The connection then stays open;
when it closes, the worker's process has ended. That is noticed within a millisecond, whatever happened to its Ray node.
"""

import logging
import os
import secrets
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KEY_BYTES = 16
MAX_DESCRIPTORS = 16
MAX_SILENT = 64  # connections that have sent nothing yet; the oldest one is closed for the next
CREDENTIALS = struct.Struct("3i")  # process, user, group
CONNECT_WITHIN = 10.0  # seconds

log = logging.getLogger("paceline")


class CallbackThread:
    """One thread on which all callbacks of Ray and of local sockets run, one after the other.

    Ray reports results in threads of its own, in which nothing may block. They only schedule a function here. So
    everything about one worker happens in order, and needs few locks.
    """

    def __init__(self) -> None:
        self._scheduled: deque[Callable[[], None]] = deque()
        self._eventfd = os.eventfd(0)
        self._waking = threading.Lock()  # the eventfd is not closed while another thread writes to it
        self._open = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._eventfd, selectors.EVENT_READ, self._run_scheduled)
        self._thread = threading.Thread(target=self._run, name="paceline-ray", daemon=True)
        self._thread.start()

    def schedule(self, action: Callable[[], None]) -> None:
        """Run a function soon; may be called from any thread. After ``close`` it is not run."""
        self._scheduled.append(action)
        with self._waking:
            if self._open:
                os.eventfd_write(self._eventfd, 1)

    def watch(self, descriptor: int, action: Callable[[], None]) -> None:
        """Run a function whenever a descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def drain(self) -> None:
        """Wait until everything has run that was scheduled so far."""
        drained = threading.Event()
        self.schedule(drained.set)
        drained.wait()

    def close(self) -> None:
        self.schedule(self._end)
        self._thread.join()
        self._selector.close()

    def _run(self) -> None:
        while self._open:
            for key, _ in self._selector.select():
                self._call(key.data)

    def _run_scheduled(self) -> None:
        os.eventfd_read(self._eventfd)
        while self._scheduled and self._open:
            self._call(self._scheduled.popleft())

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # it concerns one worker: the others continue
            log.exception("a message of a worker could not be handled")

    def _end(self) -> None:
        with self._waking:
            self._open = False
            os.close(self._eventfd)


class DescriptorServer:
    """The server's side: sends descriptors to the workers that connect with their keys."""

    def __init__(self, callbacks: CallbackThread) -> None:
        self._callbacks = callbacks
        self._expected: dict[bytes, tuple[Sequence[int], Callable[[], None]]] = {}
        self._connections: set[socket.socket] = set()
        self._silent: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.name = f"\0paceline-{secrets.token_hex(8)}"  # abstract: not in the file system, gone with this process
        self._socket.bind(self.name)
        self._socket.listen(1024)
        self._socket.setblocking(False)
        callbacks.watch(self._socket.fileno(), self._accept)

    @property
    def expected_keys(self) -> set[bytes]:
        """The keys with which no worker has connected yet."""
        return set(self._expected)

    def expect(self, descriptors: Sequence[int], ended: Callable[[], None]) -> bytes:
        """The key for a worker that is to get these descriptors; ``ended`` is called when its process has ended."""
        key = secrets.token_bytes(KEY_BYTES)
        self._expected[key] = descriptors, ended
        return key

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it is closed again
            return
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        if CREDENTIALS.unpack(peer)[1] != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        if len(self._silent) >= MAX_SILENT:
            self._refuse(self._silent[0])
        self._silent.append(connection)
        self._callbacks.watch(connection.fileno(), lambda: self._read_key(connection))

    def _read_key(self, connection: socket.socket) -> None:
        key = b""
        with suppress(OSError):
            key = connection.recv(KEY_BYTES)
        expected = self._expected.pop(key, None)
        if expected is None:
            self._refuse(connection)
            return
        descriptors, ended = expected
        try:
            socket.send_fds(connection, [b"in"], descriptors)
        except OSError:  # it is gone
            self._refuse(connection)
            return
        self._silent.remove(connection)
        self._connections.add(connection)
        self._callbacks.unwatch(connection.fileno())
        self._callbacks.watch(connection.fileno(), lambda: self._handle_end(connection, ended))

    def _refuse(self, connection: socket.socket) -> None:
        self._silent.remove(connection)
        self._callbacks.unwatch(connection.fileno())
        connection.close()

    def _handle_end(self, connection: socket.socket, ended: Callable[[], None]) -> None:
        self._callbacks.unwatch(connection.fileno())
        self._connections.discard(connection)
        connection.close()
        ended()

    def close(self) -> None:
        """Call it after the callback thread is closed."""
        for each in (self._socket, *self._silent, *self._connections):
            each.close()


def receive_descriptors(name: str, key: bytes) -> tuple[socket.socket, list[int]] | None:
    """The worker's side: the connection and the descriptors; ``None`` if the server cannot be reached."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(CONNECT_WITHIN)
    try:
        connection.connect(name)
        connection.sendall(key)
        message, descriptors, _, _ = socket.recv_fds(connection, 16, MAX_DESCRIPTORS)
    except OSError:  # another container, or another user
        message, descriptors = b"", []
    if not message:
        connection.close()
        return None
    return connection, descriptors


def machine_id() -> str:
    """The same text for all processes of one machine, and for no others."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else secrets.token_hex(KEY_BYTES)
