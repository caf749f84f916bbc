"""Another machine as the server sees it, through the machine's agent: its memory, and the channels to its workers."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from paceline.fleets.processes.channel import Order
from paceline.fleets.ray.connection import CONTROL, ActorGone, ActorHandle
from paceline.fleets.ray.forecast import Received, is_whole
from paceline.fleets.ray.wire import MAX_INLINE, Bytes, WireFormat, as_bytes, chunks_of, joined, split
from paceline.learning.arena.arena import EMPTY_REPORT, Layout, ParameterArena, Slot
from paceline.learning.arena.blobs import Blobs
from paceline.learning.gradients.distributed import MemoryMachine, Partial
from paceline.learning.gradients.held import Parts, RowEnd
from paceline.learning.gradients.sharding import Bounds

if TYPE_CHECKING:
    from paceline.fleets.ray.client import AgentClient
    from paceline.fleets.ray.session import ClusterSession

ANSWERED_WITHIN = 120.0  # seconds that an agent may take to add up gradients
ENDS_WITHIN = 2.0  # seconds that it may take to say that it is alive, when the run is to end
LOOK_INTERVAL = 0.25  # seconds between two looks whether the run is to end

Look = Callable[[float], list[Any] | ActorGone | None]  # waits so many seconds for results


@dataclass(frozen=True)
class ServerSide:
    """What the agents of a run have in common on the server."""

    session: "ClusterSession"
    run: int
    results: int  # the writing end of the pipe on which workers tell what they have done
    layout: Layout
    stored: Callable[[], Sequence[object]]  # configuration and payload in the object store
    at_first: float  # seconds that a worker may take to start
    staging: ParameterArena | None = None  # where workers hand in models: the slots of all workers
    blobs: Blobs | None = None
    is_over: Callable[[], bool] = bool  # is the run to end?

    def message(self, packed: Bytes) -> object:
        """Chunks that are sent along with orders, or a reference to the object store if they are large."""
        if packed.nbytes <= MAX_INLINE:
            return split(packed.copy(), chunks_of(packed.nbytes))
        return self.session.connection.put(packed)


def answer_of(agent: ActorHandle, look: Look, is_over: Callable[[], bool]) -> list[Any] | ActorGone:
    """What an agent answers. If the run is to end, it may take its time only while it says that it is alive."""
    until, alive_by = time.monotonic() + ANSWERED_WITHIN, math.inf
    ping: Look | None = None
    while (found := look(LOOK_INTERVAL)) is None:
        if (now := time.monotonic()) >= until:
            return ActorGone(f"did not answer for {ANSWERED_WITHIN:g} s", stuck=True)
        if ping is not None and ping(0.0) is None:
            if now >= alive_by:
                return ActorGone(f"did not answer for {ENDS_WITHIN:g} s when the run was to end", stuck=True)
        elif is_over():
            ping, alive_by = agent.ask("ping", results=1, group=CONTROL), now + ENDS_WITHIN
    return found


class RemoteMachine:
    """The arena of another machine, to be asked through its agent."""

    def __init__(
        self, workers: Sequence[int], client: "AgentClient", send: "WeightSender", bounds: Sequence[Bounds] = ()
    ) -> None:
        self.workers = workers
        self._bounds = bounds  # of shards, if there are several
        self._client = client
        self._send = send
        self._chunks = chunks_of(client.wire.bytes)

    @property
    def incarnation(self) -> int:
        return self._client.incarnation

    def deliver(self, slot: int, version: int, model: Slot) -> None:
        self._client.weights(slot, self._send.message(version, model), self._client.wire.weights_bytes)

    def copy(self, source: int, slot: int) -> None:
        self._client.copy(source, slot)

    def ask(self, parts: Parts, ends: Sequence[int]) -> Callable[[], Partial]:
        client = self._client
        found = client.expected(parts, ends)
        if found is not None:
            return lambda: self._unpacked(found.row, found.ends)
        rows = client.rows(parts, ends)
        if rows is not None:
            return lambda: self._summed(rows, parts, ends)
        answer = client.ask("sum", parts, [*ends], self._chunks, results=1 + self._chunks)
        return partial(self._answered, answer)

    def _summed(self, rows: Mapping[int, Received], parts: Parts, ends: Sequence[int]) -> Partial:
        """What the machine would have answered, to the bit: of the same gradients in the same slots."""
        ended = [self._client.common.layout.end_of(as_bytes(rows[slot].ends[0])) for slot in ends]
        if is_whole(parts):
            return self._client.wire.unpacked(rows[parts[0][0] + self._mirror.first_row].row), ended
        for row, _ in parts:
            slot = row + self._mirror.first_row
            vectors = self._mirror.arena[slot].vectors
            for vector, values in zip(vectors, self._client.wire.unpacked(rows[slot].row), strict=True):
                vector.copy_(values)
        return self._mirror.sum(parts), ended

    @cached_property
    def _mirror(self) -> MemoryMachine:
        """Memory like that of the machine: to add up gradients here as it would there."""
        layout = self._client.common.layout
        memory = torch.zeros(self._client.slots * layout.stride, dtype=torch.uint8)
        return MemoryMachine(self.workers, ParameterArena(layout, memory))

    def _answered(self, answer: Callable[[], list[Any]]) -> Partial:
        ends, *chunks = answer()
        message = joined(chunks)
        self._client.received += message.nbytes
        return self._unpacked(message, ends)

    def _unpacked(self, message: Bytes, ends: Sequence[Any]) -> Partial:
        layout = self._client.common.layout
        return self._client.wire.unpacked(message), [layout.end_of(as_bytes(end)) for end in ends]

    def ask_pieces(self, parts: Parts, ends: Sequence[int]) -> tuple[Sequence[Any], Callable[[], Sequence[RowEnd]]]:
        first, *pieces = self._client.ask_pieces(parts, [*ends], self._bounds)
        layout = self._client.common.layout
        return pieces, lambda: [layout.end_of(as_bytes(end)) for end in self._client.got(first)]

    def deliver_pieces(self, slot: int, pieces: Sequence[Any], model: Slot) -> None:
        layout = self._client.common.layout
        buffers = model.memory[layout.weights_end : layout.buffers_end].numpy().copy()
        self._client.pieces(slot, pieces, self._bounds, buffers)

    def finite(self, slots: Sequence[int]) -> Sequence[bool]:
        (found,) = self._client.ask("finite", [*slots])()
        return found  # type: ignore[no-any-return]

    def read(self, slot: int) -> Callable[[], Slot]:
        answer = self._client.ask("read", slot)

        def row() -> Slot:
            (found,) = answer()
            return ParameterArena(self._client.common.layout, as_bytes(found.copy()))[0]

        return row

    def write(self, slot: int, row: Slot) -> None:
        self._client.write(slot, row.memory.numpy())


class WeightSender:
    """Makes one message of each version of the model, which is sent once to each machine."""

    def __init__(self, wire: WireFormat, message: Callable[[Bytes], object]) -> None:
        self._wire = wire
        self._make = message
        self._version = -1
        self._message: object = None

    def message(self, version: int, model: Slot) -> object:
        if version != self._version:
            self._message, self._version = self._make(self._wire.pack_weights(model)), version
        return self._message


class AgentChannel:
    """Orders go to the agent of the worker's machine; what the worker has told last is kept here."""

    def __init__(self, client: "AgentClient", worker: int) -> None:
        self.last_received = 0
        self.last_heartbeat = 0
        self.reported = EMPTY_REPORT
        self.seconds = 0.0
        self.error = ""
        self.order: Order | None = None  # until its result is here
        self._client = client
        self._worker = worker

    def send(self, order: Order) -> None:
        self.order = order
        self._client.order(self._worker, order)

    def notify(self) -> None:
        """Orders of a machine are sent together: by ``AgentClient.flush``."""

    def halt(self, serial: int) -> None:
        self.order = None
        if not self._client.withdraw(self._worker, serial):
            self._client.control("halt", self._worker, serial)

    def recall(self, serial: int) -> None:
        self._client.control("recall", self._worker, serial)

    def quit(self) -> None:
        self._client.control("quit", self._worker)

    def reset(self) -> None:
        """The next process gets another channel."""
