"""The actor: the process of a worker on a Ray node. It first tells where it runs, then works as a local or remote one.

A local worker is on the server's machine and does what a worker process of a ``ProcessFleet`` does: orders, weights and
gradients are in memory that it shares with the server. A remote worker gets each order as a call, the weights with it
or from its node's object store, and returns the gradient.
"""

import ctypes
import os
import platform
import socket
import threading
import traceback
from typing import Any, NamedTuple

import torch

import paceline
from paceline.fleets.processes.worker import main
from paceline.fleets.ray.connection import this_node
from paceline.fleets.ray.local import machine_id, receive_descriptors
from paceline.fleets.ray.remote import Bytes, RemoteOrder, RemoteResult, RemoteWorker, split
from paceline.learning.arena.arena import EMPTY_REPORT

# Freed memory is kept for the next mini-batch, as the fork server does by environment variables.
MALLOC = {-1: 2**31 - 1, -2: 2**24, -4: 0}  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX


class ActorInfo(NamedTuple):
    """Where a worker runs, and on which versions."""

    local: bool
    pid: int
    node: str  # Ray's id
    host: str
    versions: dict[str, str]


def versions() -> dict[str, str]:
    """What has to be the same on all machines of a run."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "torch": torch.__version__.partition("+")[0], "paceline": paceline.__version__}


class Actor:
    """One worker. Its methods are called by Ray."""

    _shared: tuple[socket.socket, list[int]] | None = None  # the connection to the server, and the descriptors

    def connect(self, number: int, machine: str, name: str, key: bytes) -> ActorInfo:
        """Get the server's shared memory if this is its machine, and tell where this worker runs."""
        self._number = number
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            for option, value in MALLOC.items():
                mallopt(option, value)
        if self._shared is not None:  # of a run that has ended
            self._shared[0].close()
        self._shared = receive_descriptors(name, key) if name and machine_id() == machine else None
        return ActorInfo(self._shared is not None, os.getpid(), *this_node(), versions())

    def run_local(self) -> int:
        """Work in shared memory until the run is over. Returns what would be the exit code of a process."""
        assert self._shared is not None
        try:
            return main(self._number, self._shared[1])
        finally:
            for descriptor in self._shared[1]:
                os.close(descriptor)

    def block_forever(self) -> None:
        """Never returns: when this call fails, the process has ended."""
        threading.Event().wait()

    def prepare(self, run: int, config: Bytes, payload: Bytes, shared: bool) -> str:
        """Get ready to work as a remote worker. Returns an error, or nothing.

        shared  the payload may be read where it is; otherwise this worker needs a copy
        """
        self._run = run
        try:
            self._remote = RemoteWorker(self._number, config, payload if shared else payload.copy())
        except BaseException:
            return traceback.format_exc()
        return self._remote.error

    def compute(self, order: RemoteOrder, chunks: int, *weights: Bytes) -> Any:
        """As many results as the row has chunks; the first one also tells how much was done."""
        try:
            result = self._remote.compute(order, weights)
            row = split(self._remote.row, chunks) if result.done else [None] * chunks
        except BaseException:  # even what user code raises to leave
            row, result = [None] * chunks, RemoteResult(0, EMPTY_REPORT, 0.0, traceback.format_exc())
        return (result, row[0]) if chunks == 1 else [(result, row[0]), *row[1:]]

    def heartbeat(self) -> int:
        """Changes whenever another block, or mini-batch, begins."""
        return self._remote.last_heartbeat

    def recall(self, run: int, serial: int) -> None:
        if run == self._run:  # not of a run that has ended
            self._remote.recall(serial)

    def halt(self, run: int, serial: int) -> None:
        if run == self._run:
            self._remote.halt(serial)
