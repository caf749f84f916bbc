"""What is handed in counts once, whatever becomes of a call: the server's side of a far worker, without a cluster."""

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
from paceline.fleets.processes.launch import SharedContext
from paceline.fleets.processes.supervisor import WorkerHandle
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.ray.actor import Answer
from paceline.fleets.ray.chunks import PIECE, WITH_THE_CALL, cut, pieces_of
from paceline.fleets.ray.connection import Gone
from paceline.fleets.ray.process import Hand
from paceline.fleets.ray.remote import RemoteChannel, Weights
from paceline.learning.arena.arena import Brought, Layout, ParameterArena
from paceline.learning.arena.blobs import Blobs


class Calls:
    """Instead of an actor: calls are written down, and answered when the test wants."""

    def __init__(self) -> None:
        self.made: list[tuple[Callable[[Any], None], str, tuple[Any, ...]]] = []
        self.told: list[tuple[str, tuple[Any, ...]]] = []

    def ask(self, then: Callable[[Any], None], method: str, *arguments: Any, answers: int = 1, group: str = "") -> None:
        self.made.append((then, method, arguments))

    def tell(self, method: str, *arguments: Any) -> None:
        self.told.append((method, arguments))

    def kill(self) -> None:
        self.told.append(("kill", ()))


class Store:
    """Instead of an object store."""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def put(self, value: Any) -> Any:
        self.stored.append(value.copy())
        return self.stored[-1]


class Desk:
    """One far worker's blobs, and what came of them."""

    def __init__(self, numbers: int) -> None:
        layout = Layout([nn.Parameter(torch.zeros(numbers))], [], samples=4)
        self.arena = ParameterArena(layout, torch.zeros(4 * layout.stride, dtype=torch.uint8))
        self.calls, self.store = Calls(), Store()
        self.hand = Hand(self.calls, 1.0, has_place=lambda: True, keep=lambda handle: False)  # type: ignore[arg-type]
        self.member = WorkerHandle(7, None, SilenceTimeout())  # type: ignore[arg-type]
        self.paper = Blobs()
        self.post, self.theirs = os.pipe()
        os.set_blocking(self.post, False)
        weights = Weights(self.arena, self.store, once_a_version=True)  # type: ignore[arg-type]
        memories = SimpleNamespace(blobs=self.paper.descriptor)
        context = SharedContext(memories, self.arena, None, self.theirs)  # type: ignore[arg-type]
        self.blobs = RemoteChannel(self.member, self.hand, 3, context, weights)

    def give(self, serial: int, version: int = 0) -> Ticket:
        ticket = Ticket(serial, 7, version, gradient(2))
        self.member.ticket = ticket
        self.blobs.post(Order(serial, 2, 3, 0, np.arange(4), 0, 0.0))
        self.blobs.ring()
        return ticket

    def answer(self, call: int, value: float, done: int = 2, complaint: str = "") -> None:
        row = torch.full_like(self.arena[3].vectors[0], value)
        whole = np.zeros(self.arena.layout.losses.end, dtype=np.uint8)
        whole[: row.nbytes] = row.view(torch.uint8).numpy()
        pieces = cut(whole, pieces_of(len(whole)))
        self.calls.made[call][0]([(Answer(done, Brought(4, 0.0, 0.0, 4.0), 0.1, complaint), pieces[0]), *pieces[1:]])

    def told(self) -> list[tuple[int, ...]]:
        try:
            return list(RECORD.iter_unpack(os.read(self.post, 4096)))
        except BlockingIOError:
            return []

    @property
    def row(self) -> list[float]:
        return [float(each) for each in np.unique(self.arena[3].vectors[0].numpy())]

    def close(self) -> None:
        if not self.hand.over:
            self.hand.gone("ended")
            self.hand.end()
        self.paper.close()
        os.close(self.post)
        os.close(self.theirs)


@pytest.fixture(params=[10, 3 * PIECE // 4, WITH_THE_CALL], ids=["one piece", "several", "through the store"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(request.param)
    yield made
    made.close()


def test_an_answer_becomes_a_row_and_is_told_of_once(desk: Desk) -> None:
    desk.give(5)
    desk.answer(0, 1.5)
    assert (desk.told(), desk.row) == ([(7, 2, 5)], [1.5])


def test_what_was_halted_is_not_handed_in(desk: Desk) -> None:
    ticket = desk.give(5)
    desk.blobs.halt(ticket)
    assert desk.calls.told == [("halt", (3, 5))]
    desk.answer(0, 1.5)
    assert (desk.told(), desk.row) == ([], [0.0])


def test_a_late_answer_does_not_pass_for_that_of_the_next_ticket(desk: Desk) -> None:
    desk.blobs.halt(desk.give(5))
    desk.give(6)
    desk.answer(0, 1.5)
    assert (desk.told(), desk.row) == ([], [0.0])
    desk.answer(1, 2.5)
    assert (desk.told(), desk.row) == ([(7, 2, 6)], [2.5])


def test_an_answer_that_comes_twice_counts_once(desk: Desk) -> None:
    desk.give(5)
    desk.answer(0, 1.5)
    desk.answer(0, 9.0)
    assert (desk.told(), desk.row) == ([(7, 2, 5)], [1.5])


def test_whether_a_lost_call_was_carried_out_is_not_known_and_it_does_not_count(desk: Desk) -> None:
    desk.give(5)
    desk.calls.made[0][0](Gone("ended with its node"))
    assert desk.told() == []
    assert desk.hand.ends_by(0.0)  # the crew will miss it
    assert desk.hand.end() == "ended with its node"
    desk.answer(0, 1.5)  # after all
    assert (desk.told(), desk.row) == ([], [0.0])


def test_an_order_that_is_halted_before_it_is_sent_is_never_sent(desk: Desk) -> None:
    ticket = Ticket(5, 7, 0, gradient(2))
    desk.member.ticket = ticket
    desk.blobs.post(Order(5, 2, 3, 0, np.arange(4), 0, 0.0))
    desk.blobs.halt(ticket)
    desk.blobs.ring()
    assert (desk.calls.made, desk.calls.told) == ([], [])


def test_what_a_worker_raises_is_told_and_it_is_given_up(desk: Desk) -> None:
    desk.give(5)
    desk.answer(0, 0.0, done=0, complaint="ZeroDivisionError")
    assert desk.told() == [(7, FAILED, 5)]
    assert desk.blobs.complaint == "ZeroDivisionError"
    assert desk.hand.ends_by(0.0)


def test_of_a_ticket_that_came_back_with_nothing_the_row_stays_as_it_was(desk: Desk) -> None:
    desk.blobs.recall(desk.give(5))
    assert desk.calls.told == [("recall", (3, 5))]
    desk.answer(0, 1.5, done=0)
    assert (desk.told(), desk.row) == ([(7, 0, 5)], [0.0])


def test_weights_are_stored_once_a_version() -> None:
    desk = Desk(WITH_THE_CALL)
    for serial, version in enumerate([0, 0, 0, 1, 1, 2]):
        desk.arena[0].vectors[0].fill_(version)
        desk.give(serial, version)
    desk.close()
    assert [stored[:4].view(np.float32)[0] for stored in desk.store.stored] == [0.0, 1.0, 2.0]
