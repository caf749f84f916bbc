"""Who may connect to the socket over which workers of this machine are handed the server's memory."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.fleets.ray import local
from paceline.fleets.ray.connection import CallbackThread
from paceline.fleets.ray.local import DescriptorServer


@contextmanager
def serving() -> Iterator[DescriptorServer]:
    callbacks = CallbackThread()
    server = DescriptorServer(callbacks)
    try:
        yield server
    finally:
        callbacks.close()
        server.close()


def silent(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(name)
    return connection


def test_who_says_nothing_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "CONNECT_WITHIN", 60.0)
    waited = threading.Event()
    reading, writing = os.pipe()
    with serving() as server:
        key = server.expect([reading], lambda: None)
        quiet = [silent(server.name) for _ in range(3)]
        joined: list[object] = []

        def join() -> None:
            joined.append(local.receive_descriptors(server.name, key))
            waited.set()

        threading.Thread(target=join, daemon=True).start()
        assert waited.wait(30.0)  # before any of the silent ones is given up
        (entered,) = joined
        assert isinstance(entered, tuple)
        connection, (received,) = entered
        os.write(writing, b"shared")
        assert os.read(received, 6) == b"shared"
        for each in (*quiet, connection):
            each.close()
    for descriptor in (reading, writing, received):
        os.close(descriptor)


def test_silent_connections_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_SILENT", 2)
    with serving() as server:
        first, *others = [silent(server.name) for _ in range(3)]
        first.settimeout(60.0)
        assert first.recv(1) == b""  # it made room
        for each in (first, *others):
            each.close()


@pytest.mark.parametrize("key", [b"wrong" * 4, b""], ids=["a wrong key", "no key"])
def test_who_has_no_key_is_turned_away(key: bytes) -> None:
    with serving() as server, silent(server.name) as connection:
        connection.settimeout(60.0)
        connection.sendall(key or b"?")
        assert connection.recv(16) == b""


def test_other_users_are_turned_away_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        key = server.expect([0], lambda: None)
        monkeypatch.setattr(os, "getuid", lambda: 12345)  # who connects is then somebody else
        with silent(server.name) as connection:
            connection.settimeout(60.0)
            assert connection.recv(16) == b""  # though it has sent nothing
        assert server.expected_keys == {key}  # nobody has used up what a worker needs
