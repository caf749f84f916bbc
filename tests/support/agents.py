"""The server's side of an agent without Ray: calls are written down, and answered when a test wants."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.core.messages import Ticket, gradient
from paceline.fleets.processes.channel import RECORD, Order
from paceline.fleets.processes.group import WorkerHandle
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.ray.client import AgentClient
from paceline.fleets.ray.connection import ActorGone
from paceline.fleets.ray.machine import RemoteMachine, ServerSide, WeightSender
from paceline.fleets.ray.messages import AgentInfo, HostSettings, Message, versions
from paceline.fleets.ray.wire import WireFormat
from paceline.learning.arena.arena import Layout


class Calls:
    """Instead of an actor: calls are written down, and answered when the test wants."""

    def __init__(self) -> None:
        self.made: list[tuple[Callable[[Any], None], str, tuple[Any, ...]]] = []
        self.sent: list[tuple[str, tuple[Any, ...]]] = []
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: list[Any] = []

    def call(
        self, then: Callable[[Any], None], method: str, *arguments: Any, results: int = 1, group: str = ""
    ) -> None:
        self.made.append((then, method, arguments))

    def send(self, method: str, *arguments: Any, group: str) -> None:
        self.sent.append((method, arguments))

    def ask(self, method: str, *arguments: Any, results: int, group: str) -> Callable[[float], Any]:
        self.asked.append((method, arguments))
        return lambda within: self.answers.pop(0)

    def kill(self) -> None:
        self.sent.append(("kill", ()))

    def answer(self, method: str, result: Any) -> None:
        """Answer the last call of a method."""
        then = next(then for then, called, _ in reversed(self.made) if called == method)
        then(result if isinstance(result, ActorGone) else [result])


class Remote:
    """The agent of workers 7 and 9, as the server sees it."""

    def __init__(self, numbers: int, wire: torch.dtype | None = None) -> None:
        self.layout = Layout([nn.Parameter(torch.zeros(numbers))], [], samples=4)
        self.actors: list[Calls] = []
        self.stored: list[Any] = []
        self.results, self.theirs = os.pipe()
        os.set_blocking(self.results, False)
        connection = SimpleNamespace(has_capacity=lambda machine: True, put=self._put)
        session = SimpleNamespace(start=self._start, keep=lambda machine, actor: False, connection=connection)
        common = ServerSide(session, 3, self.theirs, self.layout, lambda: ("config", "payload"), 1.0)  # type: ignore[arg-type]
        self.client = AgentClient(0, HostSettings((7, 9), 20, False, wire), common)
        sender = WeightSender(WireFormat(self.layout, wire), common.message)
        self.machine = RemoteMachine((7, 9), self.client, sender)
        self.workers = {number: WorkerHandle(number, None, SilenceTimeout()) for number in (7, 9)}  # type: ignore[arg-type]
        self.processes = {number: self.client.start(worker) for number, worker in self.workers.items()}

    def _put(self, value: Any) -> Any:
        self.stored.append(value.copy())
        return len(self.stored)

    def _start(self, machine: int) -> Calls:
        self.actors.append(Calls())
        return self.actors[-1]

    @property
    def calls(self) -> Calls:
        return self.actors[-1]

    def open(self) -> "Remote":
        self.calls.answer("describe", AgentInfo(1234, "node", "10.0.0.2", versions()))
        self.calls.answer("open", "")
        return self

    def assign(self, serial: int, worker: int = 7, slot: int = 4) -> Ticket:
        self.workers[worker].ticket = ticket = Ticket(serial, worker, 0, gradient(2))
        self.workers[worker].channel.send(Order(serial, 2, slot, 0, np.arange(4), 0, 0.0))
        return ticket

    def tell(self, *messages: Message) -> None:
        self.calls.answer("exchange", list(messages))

    def told(self) -> list[tuple[int, ...]]:
        try:
            return list(RECORD.iter_unpack(os.read(self.results, 4096)))
        except BlockingIOError:
            return []

    def delivered(self) -> list[Any]:
        """The names of the commands of each call that brought any."""
        sent = [arguments for _, method, arguments in self.calls.made if method == "exchange"]
        return [[command[0] for command in arguments[2]] for arguments in sent if arguments[2]]

    def last_commands(self) -> list[Any]:
        return next(list(made) for _, method, (_, _, made, *_) in reversed(self.calls.made) if method == "exchange")

    def close(self) -> None:
        for process in self.processes.values():
            process.ended("ended")
            process.reap()
        os.close(self.results)
        os.close(self.theirs)
