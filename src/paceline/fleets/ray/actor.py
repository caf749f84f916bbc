"""What runs in an actor. First it tells where it is; then it works, near the server or far from it.

Near, it is what a worker process of a ``ProcessFleet`` is: orders, weights and gradients lie in memory that it shares
with the server. Far, an order comes with a call, weights come with it or from its node's object store, and the gradient
is the call's answer. Recall and halt are calls of their own, and are looked at between blocks.
"""

import copy
import ctypes
import gc
import os
import platform
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import paceline
from paceline.data.partition import Indices
from paceline.data.samples import DatasetSamples
from paceline.fleets.processes.channel import Order
from paceline.fleets.processes.payload import GradientPayload, TrainingPayload, WorkerPayload
from paceline.fleets.processes.serialization import unpack
from paceline.fleets.processes.worker import Instructions, main
from paceline.fleets.ray import local
from paceline.fleets.ray.chunks import WITH_THE_CALL, Bytes, cut
from paceline.fleets.ray.connection import this_node
from paceline.learning.arena.arena import NOTHING, Brought, ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.copies import hang

# What a nursery asks for by environment variables: freed memory is kept for the next mini-batch.
MALLOC = {-1: 2**31 - 1, -2: 2**24, -4: 0}  # trim threshold, top pad, most separate mappings


SOURCE, ROW = 0, 1  # the slots of a worker that shares none with the server


class Greeting(NamedTuple):
    """Where a worker is, and what it is made of."""

    near: bool
    pid: int
    node: str  # by Ray's number
    host: str
    versions: dict[str, str]


class FarOrder(NamedTuple):
    """One ticket, as a worker is told of it that shares no memory with the server."""

    serial: int
    units: int
    indices: Indices
    seed: int
    seconds: float  # how long it is made to take at least
    letter: bytes | bytearray | None  # what comes with the weights


class Answer(NamedTuple):
    """How much of a ticket was done. The row itself follows in pieces."""

    done: int
    brought: Brought
    spent: float  # seconds
    complaint: str  # the traceback, if something was raised
    letter: bytes | None = None  # what comes with the row


def versions() -> dict[str, str]:
    """What has to be the same on all machines of a run."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "torch": torch.__version__.partition("+")[0], "paceline": paceline.__version__}


class Actor:
    """One worker."""

    _joined: tuple[socket.socket, list[int]] | None = None

    def greet(self, number: int, machine: str, desk: str, key: bytes) -> Greeting:
        """Join the server if it is on this machine, and tell."""
        self._number = number
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            for option, value in MALLOC.items():
                mallopt(option, value)
        if self._joined is not None:  # for a run that has ended
            self._joined[0].close()
        self._joined = local.join(desk, key) if desk and local.machine() == machine else None
        return Greeting(self._joined is not None, os.getpid(), *this_node(), versions())

    def serve(self) -> int:
        """Be near: until the run is over."""
        assert self._joined is not None
        try:
            return main(self._number, self._joined[1])
        finally:
            for descriptor in self._joined[1]:
                os.close(descriptor)

    def stay(self) -> None:
        """Never come back: that this call fails is how the end of the process is noticed."""
        threading.Event().wait()

    def prepare(self, run: int, instructions: Bytes, payload: Bytes, shared: bool) -> str:
        """Be far. Returns what is wrong, if anything is."""
        self._run = run
        try:
            self._far = Far(self._number, instructions, payload if shared else payload.copy())
        except BaseException:
            return traceback.format_exc()
        return self._far.complaint

    def compute(self, order: FarOrder, pieces: int, *weights: Bytes) -> Any:
        """As many answers as the row takes pieces; the first one tells how much was done."""
        try:
            began = time.perf_counter()
            done, brought = self._far.compute(order, weights)
            row = cut(self._far.row, pieces) if done else [None] * pieces
            first = Answer(done, brought, time.perf_counter() - began, "", self._far.letter(order.serial))
        except BaseException:  # even what user code raises to leave
            row, first = [None] * pieces, Answer(0, NOTHING, 0.0, traceback.format_exc())
        return (first, row[0]) if pieces == 1 else [(first, row[0]), *row[1:]]

    def progress(self) -> int:
        """Changes whenever another block, or mini-batch, is begun."""
        return self._far.beaten

    def recall(self, run: int, serial: int) -> None:
        if run == self._run:  # and not one that has ended
            self._far.recalled = serial

    def halt(self, run: int, serial: int) -> None:
        if run == self._run:
            self._far.halted = serial
            self._far.wake.set()


class Far:
    """A worker that shares no memory with the server: it has a slot to begin with, and one to hand in."""

    def __init__(self, number: int, instructions: Bytes, payload: Bytes) -> None:
        how: Instructions = unpack(Stored(instructions), ())
        self.recalled = self.halted = -1  # serial numbers
        self.wake = threading.Event()
        self.complaint = ""
        self.beaten = 0
        self._slowness = how.slowness[number]
        self._layout = how.layout
        sys.path += [each for each in how.path if each not in sys.path and os.path.isdir(each)]  # on a common disk
        torch.set_num_threads(how.threads)
        gc.set_threshold(100_000, 50, 50)
        self._arena = ParameterArena(how.layout, torch.zeros(2 * how.layout.stride, dtype=torch.uint8))
        self._blobs = Blobs()
        self._source: Bytes = self._arena.bytes(SOURCE).numpy()
        self.row: Bytes = self._arena.bytes(ROW)[: how.layout.losses.end].numpy()
        parameters = [nn.Parameter(values) for values in self._arena[SOURCE].parameters]
        given: GradientPayload | TrainingPayload = unpack(Stored(payload), parameters)
        # What all workers of a node look at must not be written to: the samples stay, all else becomes its own.
        stays: dict[int, Any] = {id(each): each for each in (*parameters, given.samples)}
        own: WorkerPayload = copy.deepcopy(given, stays)
        hang(parameters, own.hung)
        self._compute = own.open(parameters, self._arena, self._blobs)
        if isinstance(given.samples, DatasetSamples):
            self._try_out(given.samples)

    def letter(self, serial: int) -> bytes | None:
        """What is handed in with the row."""
        packed = self._blobs.packed(ROW, serial)
        return None if packed is None else bytes(packed)

    def _try_out(self, samples: DatasetSamples) -> None:
        try:
            samples.fetch(np.zeros(1, dtype=np.int64))
        except OSError as error:
            _, node = this_node()
            self.complaint = (
                f"the data cannot be read on {node} ({type(error).__name__}: {error}): name a place that every node "
                "can read, or train on tensors, which are sent"
            )

    def compute(self, order: FarOrder, weights: Sequence[Bytes]) -> tuple[int, Brought]:
        """The blocks that were done, and what is known of the row."""
        began = time.perf_counter()
        if self._layout.stride <= WITH_THE_CALL:
            np.concatenate(weights, out=self._source)
        else:  # where they lie, for all workers of the node
            self._arena.lay(SOURCE, _without_warning(weights[0]))
        if order.letter is not None:
            self._blobs.put_packed(SOURCE, order.serial, order.letter)

        def go_on(block: int) -> bool:
            nonlocal began
            if block:
                began = self._dawdle(order, began)
                self.beaten = block
            return self.halted < order.serial and self.recalled != order.serial

        here = Order(order.serial, order.units, ROW, SOURCE, order.indices, order.seed, order.seconds)
        done, brought = self._compute(here, go_on)
        if done == order.units:
            self._dawdle(order, began)
        return done, brought

    def _dawdle(self, order: FarOrder, began: float) -> float:
        """Let a block take as long as it is made to. Returns when the next one begins."""
        elapsed = time.perf_counter() - began
        missing = max((self._slowness - 1) * elapsed, order.seconds / order.units - elapsed)
        if missing > 0:
            self.wake.clear()
            if self.halted < order.serial:
                self.wake.wait(missing)
        return time.perf_counter()


class Stored:
    """Bytes of the object store, as a parcel is unpacked from."""

    def __init__(self, array: Bytes) -> None:
        self.bytes = array.data
        self._array = array

    def tensor(self, dtype: torch.dtype = torch.uint8, begin: int = 0, count: int = -1) -> Tensor:
        end = begin + count * dtype.itemsize if count >= 0 else len(self._array)
        return _without_warning(self._array[begin:end]).view(dtype)


def _without_warning(array: Bytes) -> Tensor:
    """A tensor of bytes that must not be written to; torch knows no such thing, and says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
