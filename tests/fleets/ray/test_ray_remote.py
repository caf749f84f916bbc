"""What is handed in counts once, whatever becomes of a call: the server's side of a remote worker, without Ray."""

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.core.messages import Ticket, gradient
from paceline.fleets.processes.channel import FAILED, RECORD, Order
from paceline.fleets.processes.group import WorkerHandle
from paceline.fleets.processes.launch import SharedContext
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.ray.connection import ActorGone
from paceline.fleets.ray.launcher import ActorProcess
from paceline.fleets.ray.remote import (
    CHUNK,
    MAX_INLINE,
    RemoteChannel,
    RemoteResult,
    WeightSender,
    chunks_of,
    split,
)
from paceline.learning.arena.arena import Layout, ParameterArena, Report
from paceline.learning.arena.blobs import Blobs


class Calls:
    """Instead of an actor: calls are written down, and answered when the test wants."""

    def __init__(self) -> None:
        self.made: list[tuple[Callable[[Any], None], str, tuple[Any, ...]]] = []
        self.sent: list[tuple[str, tuple[Any, ...]]] = []

    def call(
        self, then: Callable[[Any], None], method: str, *arguments: Any, results: int = 1, group: str = ""
    ) -> None:
        self.made.append((then, method, arguments))

    def send(self, method: str, *arguments: Any) -> None:
        self.sent.append((method, arguments))

    def kill(self) -> None:
        self.sent.append(("kill", ()))


class Store:
    """Instead of an object store."""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def put(self, value: Any) -> Any:
        self.stored.append(value.copy())
        return self.stored[-1]


class Remote:
    """The channel to one remote worker, and what came of it."""

    def __init__(self, numbers: int) -> None:
        layout = Layout([nn.Parameter(torch.zeros(numbers))], [], samples=4)
        self.arena = ParameterArena(layout, torch.zeros(4 * layout.stride, dtype=torch.uint8))
        self.calls, self.store = Calls(), Store()
        self.process = ActorProcess(self.calls, 1.0, has_capacity=lambda: True, keep=lambda actor: False)  # type: ignore[arg-type]
        self.worker = WorkerHandle(7, None, SilenceTimeout())  # type: ignore[arg-type]
        self.blobs = Blobs()
        self.results, self.theirs = os.pipe()
        os.set_blocking(self.results, False)
        weights = WeightSender(self.arena, self.store, once_per_version=True)  # type: ignore[arg-type]
        regions = SimpleNamespace(blobs=self.blobs.descriptor)
        workload = SimpleNamespace(hands_in_models=False)
        context = SharedContext(regions, self.arena, workload, self.theirs)  # type: ignore[arg-type]
        self.channel = RemoteChannel(self.worker, self.process, 3, context, weights)

    def assign(self, serial: int, version: int = 0) -> Ticket:
        ticket = Ticket(serial, 7, version, gradient(2))
        self.worker.ticket = ticket
        self.channel.send(Order(serial, 2, 3, 0, np.arange(4), 0, 0.0))
        self.channel.notify()
        return ticket

    def answer(self, call: int, value: float, done: int = 2, error: str = "") -> None:
        row = torch.full_like(self.arena[3].vectors[0], value)
        whole = np.zeros(self.arena.layout.losses.end, dtype=np.uint8)
        whole[: row.nbytes] = row.view(torch.uint8).numpy()
        chunks = split(whole, chunks_of(len(whole)))
        self.calls.made[call][0]([(RemoteResult(done, Report(4, 0.0, 0.0, 4.0), 0.1, error), chunks[0]), *chunks[1:]])

    def told(self) -> list[tuple[int, ...]]:
        try:
            return list(RECORD.iter_unpack(os.read(self.results, 4096)))
        except BlockingIOError:
            return []

    @property
    def row(self) -> list[float]:
        return [float(each) for each in np.unique(self.arena[3].vectors[0].numpy())]

    def close(self) -> None:
        if not self.process.released:
            self.process.ended("ended")
            self.process.reap()
        self.blobs.close()
        os.close(self.results)
        os.close(self.theirs)


@pytest.fixture(params=[10, 3 * CHUNK // 4, MAX_INLINE], ids=["one chunk", "several", "through the store"])
def remote(request: pytest.FixtureRequest) -> Iterator[Remote]:
    made = Remote(request.param)
    yield made
    made.close()


def test_an_answer_becomes_a_row_and_is_told_of_once(remote: Remote) -> None:
    remote.assign(5)
    remote.answer(0, 1.5)
    assert (remote.told(), remote.row) == ([(7, 2, 5)], [1.5])


def test_what_was_halted_is_not_handed_in(remote: Remote) -> None:
    ticket = remote.assign(5)
    remote.channel.halt(ticket)
    assert remote.calls.sent == [("halt", (3, 5))]
    remote.answer(0, 1.5)
    assert (remote.told(), remote.row) == ([], [0.0])


def test_a_late_answer_does_not_pass_for_that_of_the_next_ticket(remote: Remote) -> None:
    remote.channel.halt(remote.assign(5))
    remote.assign(6)
    remote.answer(0, 1.5)
    assert (remote.told(), remote.row) == ([], [0.0])
    remote.answer(1, 2.5)
    assert (remote.told(), remote.row) == ([(7, 2, 6)], [2.5])


def test_an_answer_that_comes_twice_counts_once(remote: Remote) -> None:
    remote.assign(5)
    remote.answer(0, 1.5)
    remote.answer(0, 9.0)
    assert (remote.told(), remote.row) == ([(7, 2, 5)], [1.5])


def test_whether_a_lost_call_was_carried_out_is_not_known_and_it_does_not_count(remote: Remote) -> None:
    remote.assign(5)
    remote.calls.made[0][0](ActorGone("ended with its node"))
    assert remote.told() == []
    assert remote.process.wait(0.0)  # the group will notice
    assert remote.process.reap() == "ended with its node"
    remote.answer(0, 1.5)  # after all
    assert (remote.told(), remote.row) == ([], [0.0])


def test_an_order_that_is_halted_before_it_is_sent_is_never_sent(remote: Remote) -> None:
    ticket = Ticket(5, 7, 0, gradient(2))
    remote.worker.ticket = ticket
    remote.channel.send(Order(5, 2, 3, 0, np.arange(4), 0, 0.0))
    remote.channel.halt(ticket)
    remote.channel.notify()
    assert (remote.calls.made, remote.calls.sent) == ([], [])


def test_what_a_worker_raises_is_told_and_it_is_given_up(remote: Remote) -> None:
    remote.assign(5)
    remote.answer(0, 0.0, done=0, error="ZeroDivisionError")
    assert remote.told() == [(7, FAILED, 5)]
    assert remote.channel.error == "ZeroDivisionError"
    assert remote.process.wait(0.0)


def test_of_a_ticket_that_came_back_with_nothing_the_row_stays_as_it_was(remote: Remote) -> None:
    remote.channel.recall(remote.assign(5))
    assert remote.calls.sent == [("recall", (3, 5))]
    remote.answer(0, 1.5, done=0)
    assert (remote.told(), remote.row) == ([(7, 0, 5)], [0.0])


def test_weights_are_stored_once_a_version() -> None:
    remote = Remote(MAX_INLINE)
    for serial, version in enumerate([0, 0, 0, 1, 1, 2]):
        remote.arena[0].vectors[0].fill_(version)
        remote.assign(serial, version)
    remote.close()
    assert [stored[:4].view(np.float32)[0] for stored in remote.store.stored] == [0.0, 1.0, 2.0]
