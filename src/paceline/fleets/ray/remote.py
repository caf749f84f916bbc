"""The server's side of a worker that it shares no memory with: orders become calls, and their answers rows.

To the crew it looks like a mailbox in shared memory. A worker's answer is written into its row and then told of on the
pipe that all workers write to, so what counts, and in which order, is decided in one place: a ticket is handed in once,
and only while it is asked for. Answers of halted tickets, and of actors that were given up, are passed over.
"""

import os
import sys
import threading
from typing import Any, cast

from paceline.core.messages import Ticket
from paceline.fleets.processes.channel import FAILED, RECORD, Order
from paceline.fleets.processes.launch import SharedContext
from paceline.fleets.processes.supervisor import WorkerHandle
from paceline.fleets.ray.actor import Answer, FarOrder
from paceline.fleets.ray.chunks import WITH_THE_CALL, cut, pieces_of
from paceline.fleets.ray.connection import ASIDE, Connection, Gone
from paceline.fleets.ray.process import Hand
from paceline.learning.arena.arena import NOTHING, ParameterArena
from paceline.learning.arena.blobs import Blobs


class Weights:
    """What is sent of each version of the model: once to each node, or with each call if it is small."""

    def __init__(self, arena: ParameterArena, connection: Connection, *, once_a_version: bool) -> None:
        self._once_a_version = once_a_version  # or does every worker have weights of its own?
        self._arena = arena
        self._connection = connection
        self._sent_of = -1, -1  # the version, and the slot: one that is a row is overwritten when it is handed in
        self._sent: list[object] = []

    def of(self, version: int, source: int) -> list[object]:
        """The version's weights, which lie in a slot, as arguments of a call."""
        if (version, source) != self._sent_of or not self._once_a_version:
            array = self._arena.bytes(source).numpy()
            small = array.nbytes <= WITH_THE_CALL
            self._sent = [*cut(array, pieces_of(array.nbytes))] if small else [self._connection.put(array)]
            self._sent_of = version, source
        return self._sent


class RemoteChannel:
    """One worker's."""

    def __init__(self, member: WorkerHandle, hand: Hand, run: int, context: SharedContext, weights: Weights) -> None:
        self.taken = 0
        self.brought = NOTHING
        self.spent = 0.0
        self.complaint = ""
        self._member = member
        self._hand = hand
        self._run = run
        self._arena = context.arena
        self._weights = weights
        self._blobs = Blobs(context.memories.blobs)
        self._post = context.post
        self._pieces = pieces_of(context.arena.layout.losses.end)
        self._order: Order | None = None
        self._changing = threading.Lock()  # no order takes the place of another whose answer is being written
        self._version = 0
        self._sent = False
        self._asked = 0  # calls
        self._quits = False
        self._beaten, self._asking = 0, False

    # The training loop's thread.

    @property
    def beaten(self) -> int:
        """How far the worker was when it was last asked; whoever wants to know has it asked once more."""
        order = self._order
        if order is not None and order.units > 1 and self._sent and not self._asking:
            self._asking = True
            self._hand.handle.ask(self._hear, "progress", group=ASIDE)
        return self._beaten

    def post(self, order: Order) -> None:
        assert self._member.ticket is not None
        with self._changing:
            self._order, self._version, self._sent = order, self._member.ticket.version, False

    def ring(self) -> None:
        order = self._order
        if order is None or self._sent:
            return
        self._sent = True
        self._asked += 1
        letter = self._blobs.packed(order.source, order.serial)
        told = FarOrder(order.serial, order.units, order.indices, order.seed, order.seconds, letter)
        self._hand.handle.ask(
            lambda answer: self._receive(order, answer), "compute", told, self._pieces,
            *self._weights.of(self._version, order.source), answers=self._pieces,
        )  # fmt: skip

    def halt(self, ticket: Ticket) -> None:
        if self._sent:
            self._hand.handle.tell("halt", self._run, ticket.serial)
        with self._changing:
            self._order = None

    def recall(self, ticket: Ticket) -> None:
        if self._sent:
            self._hand.handle.tell("recall", self._run, ticket.serial)

    def quit(self) -> None:
        """It is done when it has answered everything."""
        self._quits = True
        if self._asked == self.taken:
            self._hand.done()
        else:
            self._hand.handle.tell("halt", self._run, sys.maxsize)

    def clear(self) -> None:
        pass  # the next actor gets another one

    # The switchboard's thread.

    def _hear(self, answer: list[int] | Gone) -> None:
        self._asking = False
        if not isinstance(answer, Gone):
            (self._beaten,) = answer

    def _receive(self, order: Order, answer: list[object] | Gone) -> None:
        if isinstance(answer, Gone):
            self._hand.gone(answer.why)
            return
        self.taken += 1
        if self._quits and self._asked == self.taken:
            self._hand.done()
        with self._changing:
            if self._order is order and not self._hand.over:
                self._order = None  # whatever else comes of it is not asked for
                self._take(order, cast(list[Any], answer))

    def _take(self, order: Order, answer: list[Any]) -> None:
        (told, first), *rest = answer
        assert isinstance(told, Answer)
        if told.complaint:
            self.complaint = told.complaint
            os.write(self._post, RECORD.pack(self._member.number, FAILED, order.serial))
            self._hand.gone("ended")
            return
        if told.done:
            row, begin = self._arena.bytes(order.row).numpy(), 0
            for piece in (first, *rest):
                row[begin : begin + len(piece)] = piece
                begin += len(piece)
        if told.letter is not None:
            self._blobs.put_packed(order.row, order.serial, told.letter)
        self.brought, self.spent = told.brought, told.spent
        os.write(self._post, RECORD.pack(self._member.number, told.done, order.serial))
