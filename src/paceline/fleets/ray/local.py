"""How a worker on the server's own machine comes to share its memory: descriptors handed over a local socket.

The worker connects with a key that was given to it, and to it alone, through Ray. Processes of other users are turned
away before anything is read, and nobody is waited for: who says nothing keeps nobody else from being let in. The
connection then stays: that it closes is how the end of the worker's process is noticed, within a
millisecond and whatever became of its Ray node.
"""

import os
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.fleets.ray.callback_thread import Switchboard

BOOT = Path("/proc/sys/kernel/random/boot_id")
KEY = 16  # bytes
MOST_DESCRIPTORS = 16
MOST_SILENT = 64  # connections that have said nothing yet; the oldest makes room for the next
CREDENTIALS = struct.Struct("3i")  # process, user, group
PATIENCE = 10.0  # seconds


def machine() -> str:
    """What only processes of one machine have in common."""
    return BOOT.read_text().strip() if BOOT.exists() else secrets.token_hex(KEY)


class Desk:
    """The server's side."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._expected: dict[bytes, tuple[Sequence[int], Callable[[], None]]] = {}
        self._connections: set[socket.socket] = set()
        self._silent: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.name = f"\0paceline-{secrets.token_hex(8)}"  # in no directory: gone with this process
        self._socket.bind(self.name)
        self._socket.listen(1024)
        self._socket.setblocking(False)
        switchboard.watch(self._socket.fileno(), self._let_in)

    def expect(self, descriptors: Sequence[int], ended: Callable[[], None]) -> bytes:
        """The key for a worker that is to get these descriptors; ``ended`` is called when its process is gone."""
        key = secrets.token_bytes(KEY)
        self._expected[key] = descriptors, ended
        return key

    def _let_in(self) -> None:
        """Somebody connects: it may have a key if it is of the same user."""
        try:
            connection, _ = self._socket.accept()
        except OSError:  # it went away again
            return
        told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        if CREDENTIALS.unpack(told)[1] != os.getuid():
            connection.close()
            return
        connection.setblocking(False)
        if len(self._silent) >= MOST_SILENT:
            self._turn_away(self._silent[0])
        self._silent.append(connection)
        self._switchboard.watch(connection.fileno(), lambda: self._read_key(connection))

    def _read_key(self, connection: socket.socket) -> None:
        key = b""
        with suppress(OSError):
            key = connection.recv(KEY)
        expected = self._expected.pop(key, None)
        if expected is None:
            self._turn_away(connection)
            return
        descriptors, ended = expected
        try:
            socket.send_fds(connection, [b"in"], descriptors)
        except OSError:  # it is gone
            self._turn_away(connection)
            return
        self._silent.remove(connection)
        self._connections.add(connection)
        self._switchboard.forget(connection.fileno())
        self._switchboard.watch(connection.fileno(), lambda: self._miss(connection, ended))

    def _turn_away(self, connection: socket.socket) -> None:
        self._silent.remove(connection)
        self._switchboard.forget(connection.fileno())
        connection.close()

    def _miss(self, connection: socket.socket, ended: Callable[[], None]) -> None:
        self._switchboard.forget(connection.fileno())
        self._connections.discard(connection)
        connection.close()
        ended()

    def close(self) -> None:
        """When the switchboard is closed."""
        for each in (self._socket, *self._silent, *self._connections):
            each.close()


def join(name: str, key: bytes) -> tuple[socket.socket, list[int]] | None:
    """The worker's side: the connection and the descriptors, if the server is within reach."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(name)
        connection.sendall(key)
        message, descriptors, _, _ = socket.recv_fds(connection, 16, MOST_DESCRIPTORS)
    except OSError:  # another container, or another user
        message, descriptors = b"", []
    if not message:
        connection.close()
        return None
    return connection, descriptors
