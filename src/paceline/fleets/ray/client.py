"""The server's side of the agent of one machine: its workers look like processes of this one, its memory can be asked.

Orders and weights of a machine are collected and sent in one call. It waits at the agent and brings back what its
workers have told, unless it brings weights through the object store: then another one waits. What was told is written
to the pipe that all workers write to, so that one place decides what counts, and in which order. Halts and recalls do
not wait for weights that are on their way. A ticket is handed in once, and only while it is assigned. What comes from
an agent that was given up is ignored.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.fleets.processes.channel import FAILED, READY, RECORD, Order
from paceline.fleets.ray.connection import CONTROL, EXCHANGE, SUMS, ActorGone, ActorHandle, kill_on
from paceline.fleets.ray.forecast import Received, SumForecast
from paceline.fleets.ray.machine import AgentChannel, Look, ServerSide, answer_of
from paceline.fleets.ray.messages import (
    AgentInfo,
    Ended,
    Failed,
    HostSettings,
    Message,
    Notice,
    Ready,
    Result,
    versions,
)
from paceline.fleets.ray.notices import RAY, MachineNotices
from paceline.fleets.ray.process import RemoteProcess
from paceline.fleets.ray.wire import MAX_INLINE, SMALL, Bytes, WireFormat, chunks_of, joined
from paceline.learning.gradients.distributed import MachineLost
from paceline.learning.gradients.held import Parts, SlotBook
from paceline.learning.gradients.sharding import Bounds

if TYPE_CHECKING:
    from paceline.fleets.processes.group import WorkerHandle

PING_WITHIN = 10.0  # seconds that it may take to say that it is alive, when a worker of it is silent
WAITING = 1  # calls that wait at an agent for something to tell
LARGE_WAITING = 4  # where each brings something large: they travel side by side


class AgentClient:
    """The agent of one machine for one run. It is started again when it was lost."""

    def __init__(self, bundle: int, settings: HostSettings, common: ServerSide) -> None:
        self.incarnation = 0
        self.sent = self.received = 0  # bytes of weights and gradients
        self.wire = WireFormat(common.layout, settings.wire)
        small = settings.wire is None and self.wire.bytes <= SMALL  # rounded ones would have to be added up before
        self.forecast = SumForecast(SlotBook(settings.workers).first_row, small=small)
        self.common = common
        self.bundle = bundle
        self._settings = settings
        self._lock = threading.RLock()  # between the training loop's thread and that of callbacks
        self._actor: ActorHandle | None = None
        self._info: AgentInfo | None = None
        self._opened = False
        self._processes: dict[int, RemoteProcess] = {}
        self._channels: dict[int, AgentChannel] = {}
        self._starts = 0
        self._commands: list[tuple[Any, ...]] = []
        self._chunks: list[Bytes] = []
        self._controls: list[tuple[str, int, int]] = []
        self._ping: threading.Timer | None = None  # until when an answer is awaited
        self._quitting = False  # workers were told to quit: only their ends are awaited
        self._notices = MachineNotices("")
        self._exchanges = 0  # calls so far that brought commands, or were to bring news
        self._waiting = 0  # of these: not answered yet, and waiting for news
        self._written_by = 0  # how many of them have to be carried out before rows are complete

    # On the training loop's thread.

    def start(self, worker: "WorkerHandle") -> "RemoteProcess":
        """A process for a worker, on this machine."""
        with self._lock:
            self._starts, self._quitting = self._starts + 1, False
            process = RemoteProcess(self, worker.number, self._starts, self.common)
            channel = AgentChannel(self, worker.number)
            worker.channel = self._channels[worker.number] = channel
            self._processes[worker.number] = process
            if self._actor is None:
                self._start_agent()
            elif self._info is not None:
                process.placed(self._info)
            if self._opened:
                self._controls.append(("start", worker.number, process.start))
                self.flush()
        return process

    def order(self, worker: int, order: Order) -> None:
        """Queue an order behind the weights that it needs."""
        with self._lock:
            blob = None
            if self.common.staging is not None and self.common.blobs is not None:  # a model of its own to begin with
                message = self.wire.pack_weights(self.common.staging[order.source])
                self.weights(order.source, self.common.message(message), message.nbytes)
                blob = self.common.blobs.packed(order.source, order.serial)
            self._commands.append(("order", worker, order, blob))

    def withdraw(self, worker: int, serial: int) -> bool:
        """Take an order back that was not sent yet. Returns whether it was there."""
        with self._lock:
            before = len(self._commands)
            self._commands = [
                command
                for command in self._commands
                if not (command[0] == "order" and command[1] == worker and command[2].serial == serial)
            ]
            return len(self._commands) < before

    def weights(self, slot: int, message: object, size: int) -> None:
        """Queue weights for a slot: chunks that are sent along, or a reference to the object store."""
        with self._lock:
            self.sent += size
            if isinstance(message, list):
                begin = len(self._chunks)
                self._chunks += message
                self._commands.append(("weights", slot, [], begin, len(self._chunks)))
            else:
                self._commands.append(("weights", slot, [message], 0, 0))

    def pieces(self, slot: int, pieces: Sequence[Any], bounds: Sequence[Bounds], buffers: Bytes) -> None:
        """Queue weights for a slot that shards hold."""
        with self._lock:
            self.sent += self.wire.weights_bytes
            self._commands.append(("pieces", slot, [*pieces], bounds, buffers))

    def copy(self, source: int, slot: int) -> None:
        """Queue a copy of weights from one slot to another."""
        with self._lock:
            self._commands.append(("copy", source, slot))

    def write(self, slot: int, row: Bytes) -> None:
        """Queue a row of a checkpoint; sums wait for it."""
        with self._lock:
            self._commands.append(("write", slot, row))
            self._written_by = self._exchanges + 1

    def control(self, command: str, worker: int, number: int = 0) -> None:
        with self._lock:
            self._controls.append((command, worker, number))
            self._quitting |= command == "quit"

    def flush(self) -> None:
        """Send what is waiting, and see to it that a call waits at the agent for what there is to tell."""
        with self._lock:
            actor = self._actor
            if actor is None or not self._opened:
                return
            if self._controls:
                actor.send("control", self.common.run, self._controls, group=CONTROL)
                self._controls = []
            wanted = self._wanted()
            if self._commands:
                expected = self.forecast.of([each[2] for each in self._commands if each[0] == "order"])
                commands = [*(("expect", each) for each in expected), *self._commands]
                stored = any(each[0] in ("weights", "pieces") and each[2] for each in commands)
                self._exchange(actor, commands, self._chunks, 0 if stored else max(WAITING, wanted))
                self._commands, self._chunks = [], []
            while self._waiting < wanted:
                self._exchange(actor, [], [], max(WAITING, wanted))

    def _wanted(self) -> int:
        """How many calls are to be on their way: several where each brings something large."""
        large = self.wire.bytes > MAX_INLINE and (self._settings.models or self.forecast.is_active)
        return min(LARGE_WAITING, len(self._settings.workers)) if large else 1

    def _exchange(
        self, actor: ActorHandle, commands: Sequence[tuple[Any, ...]], chunks: Sequence[Bytes], waiting: int
    ) -> None:
        """``waiting`` is 0 for weights in the object store: they stay there until the call that names them returns."""
        in_chunks = SMALL < self.wire.bytes <= MAX_INLINE and self.forecast.is_active
        results = 1 + chunks_of(self.wire.bytes) if in_chunks else 1
        waits = waiting > 0
        actor.call(
            partial(self._handle_messages, actor, waits), "exchange", self.common.run, self._exchanges, commands,
            waiting, results, *chunks, results=results, group=EXCHANGE,
        )  # fmt: skip
        self._exchanges += 1
        self._waiting += waits

    def expected(self, parts: Parts, ends: Sequence[int]) -> Received | None:
        """A sum that is wanted now, if it came along with the news of an arrival."""
        with self._lock:
            self.forecast.note(parts, ends)
            return self.forecast.take(parts, ends)

    def rows(self, parts: Parts, ends: Sequence[int]) -> Mapping[int, Received] | None:
        """The gradients of a sum that is wanted now, by slot, if they came along with the news of their arrivals."""
        with self._lock:
            found = self.forecast.rows(parts, ends)
            return None if found is None else dict(found)

    def ask(self, method: str, *arguments: Any, results: int = 1) -> Callable[[], list[Any]]:
        """Call a method of the agent; the results when the answer is called. ``MachineLost`` if there are none."""
        with self._lock:
            actor = self._actor if self._opened else None
        if actor is None:
            raise MachineLost
        answer = actor.ask(method, self.common.run, self._written_by, *arguments, results=results, group=SUMS)
        return lambda: self._await(actor, answer)

    def _await(self, actor: ActorHandle, look: Look) -> list[Any]:
        """The results of a call. ``MachineLost`` if there are none, or they take too long."""
        found = answer_of(actor, look, self.common.is_over) if actor is self._actor else ActorGone("ended")
        if isinstance(found, ActorGone):
            self._handle_gone(actor, found)
            raise MachineLost
        return found

    def ask_pieces(self, parts: Parts, ends: Sequence[int], bounds: Sequence[Bounds]) -> list[Any]:
        """References to what is besides gradients in some slots, and to the pieces of a sum of rows."""
        with self._lock:
            actor = self._actor if self._opened else None
        if actor is None:
            raise MachineLost
        self.received += self.wire.bytes
        return actor.ask_references(
            "sum_pieces", self.common.run, self._written_by, parts, ends, bounds, results=1 + len(bounds), group=SUMS
        )

    def got(self, reference: Any) -> Any:
        """The value of a reference that this agent has given. ``MachineLost`` if there is none."""
        actor = self._actor
        if actor is None:
            raise MachineLost
        return self._await(actor, partial(actor.look, [reference]))[0]

    def kill(self, worker: int) -> None:
        """Kill the process of a worker; the agent itself if it does not answer any more."""
        with self._lock:
            self.control("kill", worker)
            self.flush()
            actor = self._actor
            if actor is None or self._ping is not None:
                return
            silent = partial(self._handle_gone, actor, ActorGone(f"did not answer for {PING_WITHIN:g} s", stuck=True))
            self._ping = ping = threading.Timer(PING_WITHIN, silent)
            ping.daemon = True
            ping.start()
            actor.call(partial(self._handle_ping, ping), "ping", group=CONTROL)

    def has_place(self) -> bool:
        """Whether the machine has a node. If it was lost when the agent was to start there, one starts elsewhere."""
        connection = self.common.session.connection
        if connection.has_capacity(self.bundle):
            return True
        with self._lock:
            if self._actor is not None and self._info is None and connection.is_gone(self.bundle):
                self._actor.kill()
                self._start_agent()
        return False

    def close(self) -> None:
        """The run is over: let the agent go, or stay for the next run."""
        with self._lock:
            actor, self._actor, self._opened = self._actor, None, False
            info, ping = self._info, self._ping
        if ping is not None:
            ping.cancel()
        if actor is not None:
            if info is not None and ping is None and self.common.session.keep(self.bundle, actor):
                actor.send("close", group="")
                return
            if info is not None and ping is not None:  # it may be stopped, or stuck
                kill_on(info.node, info.pid, info.started)
            actor.kill()

    @property
    def is_open(self) -> bool:
        return self._opened

    @property
    def slots(self) -> int:
        """Of the machine's arena."""
        return self._settings.slots

    # On the thread that asks Ray, or on that of callbacks.

    def look_for_notice(self, draining: Mapping[str, float]) -> None:
        """Ray told which nodes are drained: maybe that of this machine. One that is not any more has ended."""
        with self._lock:
            if self._info is not None:
                if self._info.node in draining:
                    self._notices.hear(RAY, draining[self._info.node])
                os.write(self.common.results, self._notices.news_for(self._processes))

    # On the callback thread.

    def _start_agent(self) -> None:
        self._info, self._opened, self._ping = None, False, None
        self._actor = self.common.session.start(self.bundle)
        self._actor.call(partial(self._handle_info, self._actor), "describe")

    def _handle_ping(self, ping: threading.Timer, results: object) -> None:
        ping.cancel()
        with self._lock:
            if self._ping is ping:
                self._ping = None

    def _handle_info(self, actor: ActorHandle, results: list[AgentInfo] | ActorGone) -> None:
        if isinstance(results, ActorGone):
            self._handle_gone(actor, results)
            return
        (info,) = results
        with self._lock:
            if actor is not self._actor:
                return
            self._info, self._notices = info, MachineNotices(info.host)
            for process in self._processes.values():
                process.placed(info)
        if info.versions != versions():
            ours, theirs = (", ".join(f"{k} {v}" for k, v in each.items()) for each in (versions(), info.versions))
            self._refuse(actor, f"{info.host} has {theirs}, and the server {ours}: install the same")
        else:
            then = partial(self._handle_opened, actor)
            actor.call(then, "open", self.common.run, self._settings, *self.common.stored())

    def _handle_opened(self, actor: ActorHandle, results: list[str] | ActorGone) -> None:
        if isinstance(results, ActorGone):
            self._handle_gone(actor, results)
        elif results[0]:
            self._refuse(actor, results[0])
        else:
            with self._lock:
                if actor is not self._actor:
                    return
                self._opened = True
                self._controls += [("start", worker, each.start) for worker, each in self._processes.items()]
                self.flush()

    def _handle_messages(self, actor: ActorHandle, waited: bool, results: list[Any] | ActorGone) -> None:
        if isinstance(results, ActorGone):
            self._handle_gone(actor, results)
            return
        messages, *chunks = results
        with self._lock:
            if actor is not self._actor:
                return
            self._waiting -= waited
            records = b"".join(filter(None, [self._handle(each, chunks) for each in messages]))
            for begin in range(0, len(records), 128 * RECORD.size):  # no more than a pipe takes as a whole
                os.write(self.common.results, records[begin : begin + 128 * RECORD.size])
            if not records or self._quitting:  # otherwise the training loop will have something to send
                self.flush()

    def _handle(self, message: Message, chunks: list[Bytes]) -> bytes | None:
        """Returns what is to be written to the pipe. ``chunks`` are those of sums that are not in messages."""
        worker = message.worker
        if isinstance(message, Failed) and worker < 0:
            self._refuse_now(message.error)
            return None
        if isinstance(message, Notice):
            if message.problem:
                self._notices.warn(message.cloud, message.problem)
            else:
                by = None if message.seconds is None else time.monotonic() + message.seconds
                self._notices.hear(message.cloud, by)
            return self._notices.news_for(self._processes)
        channel, process = self._channels.get(worker), self._processes.get(worker)
        if channel is None or process is None:
            return None
        if isinstance(message, Result):
            return self._hand_in(channel, message, chunks)
        if isinstance(message, Ready):
            process.pid = message.pid
            return RECORD.pack(worker, READY, 0) + self._notices.known_to(worker)
        if isinstance(message, Failed):
            channel.error = message.error
            return RECORD.pack(worker, FAILED, message.serial)
        if isinstance(message, Ended):
            if message.start == process.start:
                process.ended(message.reason)
            return None
        channel.last_heartbeat, channel.last_received = message.heartbeat, message.received
        return None

    def _hand_in(self, channel: AgentChannel, result: Result, chunks: list[Bytes]) -> bytes | None:
        row = result.row
        if result.sum is not None:
            number = chunks_of(self.wire.bytes)
            row = result.sum.row if result.sum.row is not None else joined(chunks[:number])
            if result.sum.row is None:
                del chunks[:number]
        if row is not None:
            self.received += row.nbytes
        order = channel.order
        if order is None or order.serial != result.serial:
            return None  # it was halted, or handed in already
        channel.order = None
        channel.reported, channel.seconds = result.reported, result.seconds
        self.forecast.handed_in(order.slot, order.serial)
        if result.sum is not None and row is not None:
            self.forecast.receive(result.sum, row)
        elif row is not None and self.common.staging is not None:
            self.wire.unpack_weights([row], self.common.staging[order.slot])
        if self.common.blobs is not None and result.blob is not None:
            self.common.blobs.put_packed(order.slot, order.serial, result.blob)
        return RECORD.pack(result.worker, result.done, result.serial)

    def _refuse(self, actor: ActorHandle, error: str) -> None:
        with self._lock:
            if actor is self._actor:
                self._refuse_now(error)

    def _refuse_now(self, error: str) -> None:
        for worker in self._processes:
            self._channels[worker].error = error
            os.write(self.common.results, RECORD.pack(worker, FAILED, 0))
        if self._actor is not None:
            self._handle_gone(self._actor, ActorGone("ended"))

    def _handle_gone(self, actor: ActorHandle, gone: ActorGone) -> None:
        """The agent is lost, with its workers and all that it held. If it still runs, it must not keep its place."""
        with self._lock:
            if actor is not self._actor:
                return
            if gone.stuck and self._info is not None:
                kill_on(self._info.node, self._info.pid, self._info.started)
            actor.kill()
            self.incarnation += 1
            self._actor, self._opened = None, False
            self._commands, self._chunks, self._controls = [], [], []
            self._exchanges = self._waiting = self._written_by = 0
            self.forecast.clear()
            processes, self._processes = self._processes, {}
        for process in processes.values():
            process.ended(gone.reason)
