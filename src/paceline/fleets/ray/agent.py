"""The agent of a machine: an actor that hosts the machine's workers, which are processes that share its memory.

What a worker does, and how it is told, is as in a ``ProcessFleet``. The agent passes orders on to its workers and their
answers back, many at a time; it holds the weights that they read and the gradients that they hand in, and adds up those
that the server names. It decides nothing.
"""

import os
import select
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paceline.fleets.processes.channel import FAILED, READY, RECORD, Channel, Order
from paceline.fleets.processes.fork_server import FORK_SERVER, ForkedProcess
from paceline.fleets.processes.memory import SharedMemory, SharedRegions
from paceline.fleets.processes.serialization import pack, unpack
from paceline.fleets.processes.worker import WorkerConfig
from paceline.fleets.ray.connection import fetched, this_node
from paceline.fleets.ray.messages import (
    AgentInfo,
    Ended,
    Failed,
    HostSettings,
    Message,
    Ready,
    Result,
    SignOfLife,
    versions,
)
from paceline.fleets.ray.wire import CHUNK, MAX_INLINE, SMALL, Bytes, WireFormat, as_bytes, split
from paceline.learning.arena.arena import ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.gradients.distributed import MemoryMachine
from paceline.learning.gradients.sharded import range_of
from paceline.learning.gradients.sharding import Bounds
from paceline.learning.gradients.slots import Parts

CHECK_INTERVAL = 0.25  # seconds between two looks for signs of life


class Agent:
    """The actor. Its methods are called by Ray, those of one concurrency group one after the other."""

    _run: int = -1
    _host: "Host | None" = None

    def describe(self) -> AgentInfo:
        return AgentInfo(os.getpid(), *this_node(), versions())

    def open(self, run: int, settings: HostSettings, config: Bytes, payload: Bytes) -> str:
        """Get ready for a run. Returns why it cannot, or nothing."""
        self.close()
        if missing := _missing_memory(settings, config, payload):
            return missing
        self._run, self._host = run, Host(settings, config, payload)
        return ""

    def close(self) -> None:
        """The run is over: end its workers, free its memory."""
        host, self._host, self._run = self._host, None, -1
        if host is not None:
            host.close()

    def deliver(self, run: int, commands: Sequence[tuple[Any, ...]], eager: bool, *chunks: Bytes) -> None:
        """Carry commands out in their order: weights, copies and orders. ``chunks`` are weights that came with them."""
        if run == self._run and self._host is not None:
            self._host.deliver(commands, eager, chunks)

    def control(self, run: int, commands: Sequence[tuple[str, int, int]]) -> None:
        """Start and kill processes, halt and recall tickets: at once, beside whatever is delivered."""
        if run == self._run and self._host is not None:
            for command, worker, number in commands:
                self._host.control(command, worker, number)

    def collect(self, run: int) -> list[Message]:
        """What workers have told; waits until there is something. Nothing when the run is over."""
        return self._host.collect() if run == self._run and self._host is not None else []

    def sum(self, run: int, after: int, parts: Parts, ends: Sequence[int], chunks: int) -> Any:
        """A weighted sum of rows, in chunks; before them, what is besides a gradient in some slots.

        ``after`` so many calls of ``deliver``: rows of a checkpoint come with the first.
        """
        host = self._open(run, after)
        message = host.wire.packed(host.machine.sum(parts))
        return [[host.end(slot) for slot in ends], *split(message, chunks)]

    def sum_pieces(self, run: int, after: int, parts: Parts, ends: Sequence[int], bounds: Sequence[Bounds]) -> Any:
        """The same in pieces, one for each shard."""
        host = self._open(run, after)
        vectors = host.machine.sum(parts)
        return [[host.end(slot) for slot in ends], *(host.wire.packed(range_of(vectors, each)) for each in bounds)]

    def finite(self, run: int, after: int, slots: Sequence[int]) -> list[bool]:
        return [*self._open(run, after).machine.finite(slots)]

    def read(self, run: int, after: int, slot: int) -> Bytes:
        """A whole slot."""
        return self._open(run, after).arena.bytes(slot).numpy()

    def ping(self) -> None:
        """It is alive if this returns."""

    def _open(self, run: int, after: int) -> "Host":
        if run != self._run or self._host is None:
            raise LookupError(f"run {run} is over")
        self._host.wait_for(after)
        return self._host


class Host:
    """The workers of one run on this machine, and the memory that they share."""

    def __init__(self, settings: HostSettings, config: Bytes, payload: Bytes) -> None:
        made: WorkerConfig = unpack(StoredMemory(config), ())
        own = replace(
            made, path=_import_path(made.path), directory=_directory(made.directory), host=this_node()[1],
            devices=devices_of(settings, len(made.slowness)),
        )  # fmt: skip
        self._models = settings.models
        self.wire = WireFormat(made.layout, settings.wire)
        self._blobs = Blobs()
        stored = SharedMemory(len(payload))
        stored.bytes[:] = payload.data
        self._regions = SharedRegions(
            channels=SharedMemory(made.channels.bytes),
            arena=SharedMemory(settings.slots * made.layout.stride),
            config=pack(own, ()), payload=stored, blobs=os.dup(self._blobs.descriptor),
        )  # fmt: skip
        self.arena = ParameterArena(made.layout, self._regions.arena.tensor())
        self.machine = MemoryMachine(settings.workers, self.arena)
        self._channels = {
            worker: Channel(self._regions.channels, made.channels, worker, os.eventfd(0)) for worker in settings.workers
        }
        self._results, self._theirs = os.pipe()
        os.set_blocking(self._results, False)
        self._poll = select.epoll()
        self._poll.register(self._results, select.EPOLLIN)
        self._processes: dict[int, tuple[ForkedProcess, int]] = {}
        self._watched: dict[int, int] = {}  # the worker of a sentinel
        self._orders: dict[int, Order] = {}  # the last one of each worker
        self._alive: dict[int, SignOfLife] = {}
        self._messages: list[Message] = []
        self._changed = threading.Condition()
        self._changing = threading.Lock()  # which processes there are
        self._open, self._eager, self._deliveries = True, False, 0
        if settings.models:
            FORK_SERVER.load_optimizers()
        FORK_SERVER.start()
        self._thread = threading.Thread(target=self._watch, name="paceline-agent", daemon=True)
        self._thread.start()

    # In the actor's threads.

    def deliver(self, commands: Sequence[tuple[Any, ...]], eager: bool, chunks: Sequence[Bytes]) -> None:
        self._eager = eager
        try:
            for command in commands:
                self._carry_out(*command, chunks=chunks)
        except BaseException:
            self._tell([Failed(-1, 0, traceback.format_exc())])
        with self._changed:
            self._deliveries += 1
            self._changed.notify_all()

    def _carry_out(self, command: str, *arguments: Any, chunks: Sequence[Bytes]) -> None:
        if command == "order":
            self._send(*arguments)
        elif command == "copy":
            self.machine.copy(*arguments)
        elif command == "weights":
            slot, stored, begin, end = arguments
            self.wire.unpack_weights([fetched(each) for each in stored] or chunks[begin:end], self.arena[slot])
        elif command == "pieces":
            self._put_pieces(*arguments)
        else:
            slot, row = arguments
            self.arena.bytes(slot).copy_(as_bytes(row))

    def _put_pieces(self, slot: int, stored: Sequence[Any], bounds: Sequence[Bounds], buffers: Bytes) -> None:
        own = self.arena[slot]
        for message, each in zip(fetched(list(stored)), bounds, strict=True):
            for to, values in zip(range_of(own.vectors, each), self.wire.unpack_piece(message, each), strict=True):
                to.copy_(values)
        layout = self.arena.layout
        own.memory[layout.weights_end : layout.buffers_end].copy_(as_bytes(buffers))

    def wait_for(self, deliveries: int) -> None:
        """Wait until so many calls have been carried out."""
        with self._changed:
            self._changed.wait_for(lambda: self._deliveries >= deliveries or not self._open)

    def _tell(self, messages: Sequence[Message]) -> None:
        with self._changed:
            self._messages += messages
            self._changed.notify_all()

    def _send(self, worker: int, order: Order, blob: bytes | bytearray | None) -> None:
        channel = self._channels[worker]
        if blob is not None:
            self._blobs.put_packed(order.source, order.serial, blob)
        self._orders[worker] = order
        channel.send(order)
        channel.notify()

    def control(self, command: str, worker: int, number: int) -> None:
        channel = self._channels[worker]
        if command == "halt":
            channel.halt(number)
        elif command == "recall":
            channel.recall(number)
        elif command == "quit":
            channel.quit()
        elif command == "start":
            self._start(worker, number)
        else:
            self._end(worker)

    def collect(self) -> list[Message]:
        with self._changed:
            self._changed.wait_for(lambda: self._messages or not self._open)
            end = self._at_once()
            found, self._messages = self._messages[:end], self._messages[end:]
        return found

    def _at_once(self) -> int:
        """How many messages are sent together: as many as go with a call, or one with a large row."""
        total = 0
        for number, message in enumerate(self._messages):
            total += message.row.nbytes if isinstance(message, Result) and message.row is not None else 0
            if total > CHUNK and number:
                return number
        return len(self._messages)

    def end(self, slot: int) -> Bytes:
        """What is besides the gradient in a slot."""
        layout = self.arena.layout
        return self.arena.bytes(slot)[layout.weights_end : layout.losses.end].numpy()

    def _start(self, worker: int, number: int) -> None:
        self._end(worker)
        channel = self._channels[worker]
        channel.reset()
        with self._changing:
            process = FORK_SERVER.fork(worker, [self._theirs, channel.eventfd, *self._regions.descriptors])
            self._processes[worker] = process, number
            self._watch_process(process, worker)

    def _end(self, worker: int) -> None:
        """Kill what is left of a worker's process; nobody waits for it any more."""
        with self._changing:
            found = self._processes.pop(worker, None)
            if found is not None:
                self._forget(found[0].sentinel)
                found[0].kill()
                found[0].reap()

    # In the thread that watches the workers.

    def _watch(self) -> None:
        while self._open:
            found: list[Message] = []
            ready = [descriptor for descriptor, _ in self._poll.poll(CHECK_INTERVAL)]
            ended = [self._watched.get(each, -1) for each in ready if each != self._results]
            found += self._read_results()  # what a worker wrote before its end comes before its end
            found += [message for worker in ended if (message := self._look_after(worker)) is not None]
            if not ready:
                found += self._signs_of_life()
            if found:
                self._tell(found)

    def _read_results(self) -> list[Message]:
        found: list[Message] = []
        with suppress(BlockingIOError):
            while records := os.read(self._results, 256 * RECORD.size):
                found += [self._message(*each) for each in RECORD.iter_unpack(records)]
        return found

    def _message(self, worker: int, done: int, serial: int) -> Message:
        channel = self._channels[worker]
        if done == READY:
            with self._changing:
                process = self._processes.get(worker)
                if process is not None:
                    self._has_ended(worker, process[0])  # learn its pid
                return Ready(worker, process[0].pid if process is not None else 0)
        if done == FAILED:
            return Failed(worker, serial, channel.error)
        result = Result(worker, serial, done, channel.reported, channel.seconds)
        order = self._orders[worker]
        if not done or order.serial != serial:
            return result
        slot = self.arena[order.slot]
        if self._models:
            return result._replace(row=self.wire.pack_weights(slot), blob=self._blobs.packed(order.slot, serial))
        if self._eager and not SMALL < self.wire.bytes <= MAX_INLINE:
            return result._replace(row=self.wire.packed(slot.vectors), end=self.end(order.slot))
        return result

    def _look_after(self, worker: int) -> Message | None:
        """The process of a worker has started, or ended."""
        with self._changing:
            if worker not in self._processes:
                return None
            process, start = self._processes[worker]
            if not self._has_ended(worker, process):
                return None
            del self._processes[worker]
            self._forget(process.sentinel)
            return Ended(worker, start, process.reap())

    def _has_ended(self, worker: int, process: ForkedProcess) -> bool:
        before, ended = process.sentinel, process.has_ended()
        if process.sentinel != before:
            self._forget(before)
            self._watch_process(process, worker)
        return ended

    def _watch_process(self, process: ForkedProcess, worker: int) -> None:
        self._watched[process.sentinel] = worker
        self._poll.register(process.sentinel, select.EPOLLIN)

    def _forget(self, sentinel: int) -> None:
        if self._watched.pop(sentinel, None) is not None:
            self._poll.unregister(sentinel)

    def _signs_of_life(self) -> list[Message]:
        found: list[Message] = []
        for worker, channel in self._channels.items():
            sign = SignOfLife(worker, channel.last_heartbeat, channel.last_received)
            if self._alive.get(worker) != sign:
                self._alive[worker] = sign
                found.append(sign)
        return found

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._thread.join()
        for worker, channel in self._channels.items():
            self._end(worker)
            os.close(channel.eventfd)
        self._poll.close()
        os.close(self._results)
        os.close(self._theirs)
        self._blobs.close()
        self._regions.close()


class StoredMemory:
    """Bytes of the object store, in the form that ``unpack`` reads."""

    def __init__(self, array: Bytes) -> None:
        self.bytes = array.data
        self._array = array

    def tensor(self, dtype: torch.dtype = torch.uint8, begin: int = 0, count: int = -1) -> torch.Tensor:
        end = begin + count * dtype.itemsize if count >= 0 else len(self._array)
        return as_bytes(self._array[begin:end]).view(dtype)


def _import_path(server: Sequence[str]) -> list[str]:
    """Where workers import from: as this machine does, and where the server does if the place exists here too."""
    return [*sys.path, *(each for each in server if each not in sys.path and os.path.isdir(each))]


def devices_of(settings: HostSettings, workers: int) -> tuple[str, ...]:
    """What each worker computes on: the accelerators that Ray reserved for this machine's, dealt out in their order.

    Their driver is left to the workers: a process that has initialised it cannot be forked.
    """
    if not settings.gpus:
        return ()
    names = {worker: f"cuda:{int(place * settings.gpus)}" for place, worker in enumerate(settings.workers)}
    return tuple(names.get(worker, "cpu") for worker in range(workers))


def _directory(server: str) -> str:
    return server if os.path.isdir(server) else os.getcwd()


def _missing_memory(settings: HostSettings, config: Bytes, payload: Bytes) -> str:
    """Why this machine has no room for the run; nothing if it has."""
    made: WorkerConfig = unpack(StoredMemory(config), ())
    # two for the model, one to write to for each worker, and one for the sum
    needed = (len(settings.workers) + 3) * made.layout.stride + len(payload)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:") and (free := int(line.split()[1]) * 1024) < needed:
            return (
                f"{this_node()[1]} has {free / 2**30:.2f} GiB free, and {len(settings.workers)} workers need "
                f"{needed / 2**30:.2f} GiB for weights, gradients and data: {(needed - free) / 2**30:.2f} GiB missing"
            )
    return ""
