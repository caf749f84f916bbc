"""Workers that share no memory with the server: an order is a call of their actor, and its result is the row.

To the group of workers a ``RemoteChannel`` looks like a channel in shared memory. It writes what an actor returns into
the worker's row, and then a record into the pipe that all workers write to. So one place decides what counts, and in
which order: a ticket is handed in once, and only while it is assigned. Results of halted tickets, and of actors that
were given up, are ignored.
"""

import copy
import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paceline.core.messages import Ticket
from paceline.data.partition import Indices
from paceline.data.samples import DatasetSamples
from paceline.fleets.processes.channel import FAILED, RECORD, Order
from paceline.fleets.processes.payload import WorkerPayload
from paceline.fleets.processes.serialization import unpack
from paceline.fleets.processes.worker import WorkerConfig, run_order
from paceline.fleets.ray.connection import CONTROL, ActorGone, Connection, this_node
from paceline.learning.arena.arena import EMPTY_REPORT, ParameterArena, Report
from paceline.learning.arena.blobs import Blobs
from paceline.learning.copies import hang

if TYPE_CHECKING:
    from paceline.fleets.processes.group import WorkerHandle
    from paceline.fleets.processes.launch import SharedContext
    from paceline.fleets.ray.launcher import ActorProcess

Bytes = NDArray[np.uint8]

# Ray sends what is smaller than 100 KiB with the call or with its result. Anything larger goes through the object
# stores of both nodes, which takes several times as long for some hundred kilobytes; but a node fetches it once for all
# of its workers.
CHUNK = 96_000  # bytes
MAX_INLINE = 12 * CHUNK  # a larger message goes through the object store, as a whole
SOURCE, ROW = 0, 1  # the two slots of a remote worker


class RemoteOrder(NamedTuple):
    """One ticket, as it is sent to a worker that shares no memory with the server."""

    serial: int
    units: int
    indices: Indices
    seed: int
    seconds: float  # the worker takes at least this long
    blob: bytes | bytearray | None  # what comes with the weights


class RemoteResult(NamedTuple):
    """How much of a ticket was done. The row itself follows in chunks."""

    done: int
    reported: Report
    seconds: float
    error: str  # the traceback, if something was raised
    blob: bytes | None = None  # what comes with the row


def chunks_of(size: int) -> int:
    """The number of chunks in which a message of so many bytes is sent."""
    return max(1, -(-size // CHUNK)) if size <= MAX_INLINE else 1


def split(message: Bytes, chunks: int) -> list[Bytes]:
    return np.array_split(message, chunks) if chunks > 1 else [message]


# The server's side.


class WeightSender:
    """Sends each version of the model once to each node, or with each call if it is small.

    once_per_version  all tickets of a version begin with the same weights
    """

    def __init__(self, arena: ParameterArena, connection: Connection, *, once_per_version: bool) -> None:
        self._once_per_version = once_per_version
        self._arena = arena
        self._connection = connection
        self._sent_of = -1, -1  # version and slot: a slot that is a row is overwritten by its result
        self._sent: list[object] = []

    def arguments(self, version: int, source: int) -> list[object]:
        """The weights of a version, which are in a slot, as arguments of a call."""
        if (version, source) != self._sent_of or not self._once_per_version:
            array = self._arena.bytes(source).numpy()
            small = array.nbytes <= MAX_INLINE
            self._sent = [*split(array, chunks_of(array.nbytes))] if small else [self._connection.put(array)]
            self._sent_of = version, source
        return self._sent


class RemoteChannel:
    """The server's side of the channel to one remote worker."""

    def __init__(
        self, worker: "WorkerHandle", process: "ActorProcess", run: int, context: "SharedContext", weights: WeightSender
    ) -> None:
        self.last_received = 0  # the number of results so far
        self.reported = EMPTY_REPORT
        self.seconds = 0.0
        self.error = ""
        self._worker = worker
        self._process = process
        self._run = run
        self._arena = context.arena
        self._weights = weights
        self._blobs = Blobs(context.regions.blobs) if context.workload.hands_in_models else None
        self._results = context.results
        self._chunks = chunks_of(context.arena.layout.losses.end)
        self._order: Order | None = None
        self._changing = threading.Lock()  # an order is not replaced while its result is being written
        self._version = 0
        self._sent = False
        self._calls = 0
        self._quits = False
        self._heartbeat, self._asking = 0, False

    # On the training loop's thread.

    @property
    def last_heartbeat(self) -> int:
        """The block that the worker was at when it was last asked. Asks again, for the next look."""
        order = self._order
        if order is not None and order.units > 1 and self._sent and not self._asking:
            self._asking = True
            self._process.actor.call(self._handle_heartbeat, "heartbeat", group=CONTROL)
        return self._heartbeat

    def send(self, order: Order) -> None:
        assert self._worker.ticket is not None
        with self._changing:
            self._order, self._version, self._sent = order, self._worker.ticket.version, False

    def notify(self) -> None:
        order = self._order
        if order is None or self._sent:
            return
        self._sent = True
        self._calls += 1
        blob = None if self._blobs is None else self._blobs.packed(order.source, order.serial)
        sent = RemoteOrder(order.serial, order.units, order.indices, order.seed, order.seconds, blob)
        self._process.actor.call(
            lambda results: self._handle_results(order, results), "compute", sent, self._chunks,
            *self._weights.arguments(self._version, order.source), results=self._chunks,
        )  # fmt: skip

    def halt(self, ticket: Ticket) -> None:
        if self._sent:
            self._process.actor.send("halt", self._run, ticket.serial)
        with self._changing:
            self._order = None

    def recall(self, ticket: Ticket) -> None:
        if self._sent:
            self._process.actor.send("recall", self._run, ticket.serial)

    def quit(self) -> None:
        """The worker has finished when it has answered all calls."""
        self._quits = True
        if self._calls == self.last_received:
            self._process.finished()
        else:
            self._process.actor.send("halt", self._run, sys.maxsize)

    def reset(self) -> None:
        pass  # the next actor gets another channel

    # On the callback thread.

    def _handle_heartbeat(self, results: list[int] | ActorGone) -> None:
        self._asking = False
        if not isinstance(results, ActorGone):
            (self._heartbeat,) = results

    def _handle_results(self, order: Order, results: list[object] | ActorGone) -> None:
        if isinstance(results, ActorGone):
            self._process.ended(results.reason)
            return
        self.last_received += 1
        if self._quits and self._calls == self.last_received:
            self._process.finished()
        with self._changing:
            if self._order is order and not self._process.released:
                self._order = None  # a second result of the same order does not count
                self._hand_in(order, cast(list[Any], results))

    def _hand_in(self, order: Order, results: list[Any]) -> None:
        (result, first), *rest = results
        assert isinstance(result, RemoteResult)
        if result.error:
            self.error = result.error
            os.write(self._results, RECORD.pack(self._worker.number, FAILED, order.serial))
            self._process.ended("ended")
            return
        if result.done:
            row, begin = self._arena.bytes(order.slot).numpy(), 0
            for chunk in (first, *rest):
                row[begin : begin + len(chunk)] = chunk
                begin += len(chunk)
        if result.blob is not None and self._blobs is not None:
            self._blobs.put_packed(order.slot, order.serial, result.blob)
        self.reported, self.seconds = result.reported, result.seconds
        os.write(self._results, RECORD.pack(self._worker.number, result.done, order.serial))


# The worker's side.


class RemoteWorker:
    """A worker without shared memory: it has one slot for the weights, and one for the row that it hands in.

    It is also its own channel: ``halt`` and ``recall`` come as calls while it computes, and are read between blocks.
    """

    def __init__(self, number: int, config: Bytes, payload: Bytes) -> None:
        settings: WorkerConfig = unpack(StoredMemory(config), ())
        self.error = ""
        self.last_heartbeat = 0
        self._halted = self._recalled = -1  # serial numbers
        self._wake = threading.Event()
        self._slowness = settings.slowness[number]
        self._layout = settings.layout
        sys.path += [each for each in settings.path if each not in sys.path and os.path.isdir(each)]  # a shared disk
        torch.set_num_threads(settings.threads)
        gc.set_threshold(100_000, 50, 50)
        self._arena = ParameterArena(settings.layout, torch.zeros(2 * settings.layout.stride, dtype=torch.uint8))
        self._blobs = Blobs()
        self._source: Bytes = self._arena.bytes(SOURCE).numpy()
        self.row: Bytes = self._arena.bytes(ROW)[: settings.layout.losses.end].numpy()
        parameters = [nn.Parameter(values) for values in self._arena[SOURCE].parameters]
        loaded: WorkerPayload = unpack(StoredMemory(payload), parameters)
        # Objects in the store are read-only and shared by all workers of the node: copy all but the samples.
        shared: dict[int, Any] = {id(each): each for each in (*parameters, loaded.samples)}
        own: WorkerPayload = copy.deepcopy(loaded, shared)
        hang(parameters, own.hung)
        self._compute = own.open(parameters, self._arena, self._blobs)
        if isinstance(loaded.samples, DatasetSamples):
            self._check_data(loaded.samples)

    def _check_data(self, samples: DatasetSamples) -> None:
        try:
            samples.fetch(np.zeros(1, dtype=np.int64))
        except OSError as error:
            _, node = this_node()
            self.error = (
                f"the data cannot be read on {node} ({type(error).__name__}: {error}): name a place that every node "
                "can read, or train on tensors, which are sent"
            )

    def compute(self, order: RemoteOrder, weights: Sequence[Bytes]) -> RemoteResult:
        """Compute an order into ``row``."""
        began = time.perf_counter()
        if self._layout.stride <= MAX_INLINE:
            np.concatenate(weights, out=self._source)
        else:  # use them where they are in the object store, as all workers of the node do
            self._arena.lay(SOURCE, _read_only_tensor(weights[0]))
        if order.blob is not None:
            self._blobs.put_packed(SOURCE, order.serial, order.blob)
        here = Order(order.serial, order.units, ROW, SOURCE, order.indices, order.seed, order.seconds)
        done, reported = run_order(here, self._compute, self, self._slowness)
        blob = self._blobs.packed(ROW, order.serial)
        seconds = time.perf_counter() - began
        return RemoteResult(done, reported, seconds, "", None if blob is None else bytes(blob))

    def recall(self, serial: int) -> None:
        self._recalled = serial

    def halt(self, serial: int) -> None:
        """Halt the ticket with this serial number, and all before it."""
        self._halted = serial
        self._wake.set()

    def halted(self, serial: int) -> bool:
        return self._halted >= serial

    def recalled(self, serial: int) -> bool:
        return self._recalled == serial

    def heartbeat(self, block: int) -> None:
        self.last_heartbeat = block

    def sleep(self, seconds: float, serial: int) -> None:
        """Sleep, but no longer than until a ticket is halted."""
        self._wake.clear()
        if not self.halted(serial):
            self._wake.wait(seconds)


class StoredMemory:
    """Bytes of the object store, in the form that ``unpack`` reads."""

    def __init__(self, array: Bytes) -> None:
        self.bytes = array.data
        self._array = array

    def tensor(self, dtype: torch.dtype = torch.uint8, begin: int = 0, count: int = -1) -> Tensor:
        end = begin + count * dtype.itemsize if count >= 0 else len(self._array)
        return _read_only_tensor(self._array[begin:end]).view(dtype)


def _read_only_tensor(array: Bytes) -> Tensor:
    """A tensor on bytes that must not be written to; torch has no such tensors, and would warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
