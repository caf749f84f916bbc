"""How a worker on the server's own machine gets the shared memory: descriptors are sent over a local socket.

The worker connects with a key that it alone got, through Ray. Processes of other users are refused before anything is
read. The server never waits for one connection: a silent one does not delay the others. The connection then stays open;
when it closes, the worker's process has ended. That is noticed within a millisecond, whatever happened to its Ray node.
"""

import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.fleets.ray.connection import CallbackThread

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KEY_BYTES = 16
MAX_DESCRIPTORS = 16
MAX_SILENT = 64  # connections that have sent nothing yet; the oldest one is closed for the next
CREDENTIALS = struct.Struct("3i")  # process, user, group
CONNECT_WITHIN = 10.0  # seconds


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
