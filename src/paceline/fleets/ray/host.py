"""The workers of one run on a machine, and the memory that they share: what the machine's agent has to look after.

Processes, channels and slots are those of a ``ProcessFleet``. One thread waits for results and for the ends of
processes; orders come in the threads of the actor.
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
from paceline.fleets.ray.messages import Ended, Failed, HostSettings, Message, Notice, Ready, Result, SignOfLife
from paceline.fleets.ray.notices import CloudWatch
from paceline.fleets.ray.outbox import Outbox
from paceline.fleets.ray.wire import Bytes, WireFormat, as_bytes, chunks_of, split
from paceline.learning.arena.arena import ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.gradients.distributed import MemoryMachine
from paceline.learning.gradients.held import Parts
from paceline.learning.gradients.sharded import range_of
from paceline.learning.gradients.sharding import Bounds

CHECK_INTERVAL = 0.25  # seconds between two looks for signs of life


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
        self._outbox = Outbox(self.wire.bytes)
        self._changing = threading.Lock()  # which processes there are
        self._summing = threading.Lock()
        self._open, self._exchanges = True, 0
        if settings.models:
            FORK_SERVER.load_optimizers()
        FORK_SERVER.start()
        self._thread = threading.Thread(target=self._watch, name="paceline-agent", daemon=True)
        self._thread.start()
        self._clouds = CloudWatch(settings.clouds, lambda *notice: self._outbox.tell([Notice(*notice)]))
        self._clouds.start()

    # In the actor's threads.

    def exchange(
        self, number: int, commands: list[tuple[Any, ...]], waiting: int, results: int, chunks: Sequence[Bytes]
    ) -> list[Any]:
        """Carry commands out when it is the turn of this call, and return messages and the chunks of their sums."""
        self._obey(number, commands, chunks)
        commands.clear()  # nobody is to wait for news with weights in the object store
        each = chunks_of(self.wire.bytes)
        messages = self._outbox.take(waiting=waiting, rows=(results - 1) // each)
        return self._with_sums(messages, results)

    def _obey(self, number: int, commands: Sequence[tuple[Any, ...]], chunks: Sequence[Bytes]) -> None:
        """Carry commands out.

        Weights that are on their way through the object stores are waited for before the turn, so that those of
        several calls travel side by side.
        """
        try:
            brought = [fetched(each[2]) if each[0] == "weights" and each[2] else chunks for each in commands]
            self.wait_for(number)
            for command, weights in zip(commands, brought, strict=True):
                self._carry_out(*command, chunks=weights)
        except BaseException:
            self._outbox.tell([Failed(-1, 0, traceback.format_exc())])
            self.wait_for(number)
        self._exchanges += 1
        self._outbox.notify()

    def _with_sums(self, messages: Sequence[Message], results: int) -> list[Any]:
        """Messages with their sums, in them or in results of their own."""
        made: list[Message] = []
        rows: list[Bytes] = []
        each = chunks_of(self.wire.bytes)
        for message in messages:
            if isinstance(message, Result) and message.sum is not None:
                expected = message.sum.expected
                row, ends = self.sum(expected.parts), [self.end(slot) for slot in expected.ends]
                if len(rows) + each < results:
                    rows += split(row, each)
                    made.append(message._replace(sum=message.sum._replace(ends=ends)))
                else:
                    made.append(message._replace(sum=message.sum._replace(ends=ends, row=row)))
            else:
                made.append(message)
        return [made, *rows, *([b""] * (results - 1 - len(rows)))]

    def sum(self, parts: Parts) -> Bytes:
        """A weighted sum of rows, as it is sent between machines. A single whole row is not copied."""
        if len(parts) == 1 and parts[0][1] == 1.0:
            return self.wire.packed(self.arena[self.machine.first_row + parts[0][0]].vectors)
        with self._summing:
            return self.wire.packed(self.machine.sum(parts))

    def sum_pieces(self, parts: Parts, bounds: Sequence[Bounds]) -> list[Bytes]:
        """The same in pieces, one for each shard."""
        with self._summing:
            vectors = self.machine.sum(parts)
        return [self.wire.packed(range_of(vectors, each)) for each in bounds]

    def _carry_out(self, command: str, *arguments: Any, chunks: Sequence[Bytes]) -> None:
        if command == "order":
            self._send(*arguments)
        elif command == "expect":
            self._outbox.expect(*arguments)
        elif command == "copy":
            self.machine.copy(*arguments)
        elif command == "weights":
            slot, stored, begin, end = arguments
            self.wire.unpack_weights(chunks if stored else chunks[begin:end], self.arena[slot])
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

    def wait_for(self, exchanges: int) -> None:
        """Wait until so many calls have been carried out."""
        self._outbox.wait_until(lambda: self._exchanges >= exchanges)

    def _send(self, worker: int, order: Order, blob: bytes | bytearray | None) -> None:
        channel = self._channels[worker]
        if blob is not None:
            self._blobs.put_packed(order.source, order.serial, blob)
        self._orders[worker] = order
        channel.send_unless_quit(order)  # the order may be older than the call that brought the end

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
            self._ask_again()
            if found:
                self._outbox.tell(found)

    def _ask_again(self) -> None:
        """For processes that the fork server could not be asked for yet."""
        with self._changing:
            for process, _ in self._processes.values():
                process.ask_again()

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
        if self._models:
            row = self.wire.pack_weights(self.arena[order.slot])
            return result._replace(row=row, blob=self._blobs.packed(order.slot, serial))
        return self._outbox.completed(result, order.slot)

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
        self._clouds.close()
        self._open = False
        self._outbox.close()
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


def missing_memory(settings: HostSettings, config: Bytes, payload: Bytes) -> str:
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
