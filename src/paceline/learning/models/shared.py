"""Pieces of local training for workers that share memory with the server.

A worker reads what it begins with from a slot of its own, and everything else from the letter with it. It hands its
model in as a row, and the rest in the row's letter. A row is read only if a step uses it. The server may write for a
worker that is still at a piece that was halted: what that one reads then is never used.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.core.codec import whole
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.arena.arena import Brought, ParameterArena, Slot
from paceline.learning.arena.blobs import Blobs
from paceline.learning.gradients.shared import LEVELS, Promise, free_row
from paceline.learning.model_state import like
from paceline.learning.models.local_training import LocalTrainer, Trained
from paceline.learning.models.local_work import Assignment, LocalWork, Outcome, Piece, piece_of, take_up
from paceline.learning.packing import pack_tickets, unpack_tickets

NO_INDICES: Indices = np.zeros(0, dtype=np.int64)  # they are in the letter


def slots_needed(workers: int) -> int:
    """One to begin with and the rows of each worker. Only those that are used take memory."""
    return workers + LEVELS * workers


class SharedModels:
    """Gives every piece a slot to begin with and a row; the server's side."""

    def __init__(self, trainers: Sequence[LocalTrainer], arena: ParameterArena, blobs: Blobs) -> None:
        self._trainers = trainers
        self._arena = arena
        self._blobs = blobs
        self._promises: dict[Ticket, Promise] = {}
        self._taken: set[int] = set()

    def promise(self, ticket: Ticket, assignment: Assignment) -> None:
        row = free_row(ticket.worker, len(self._trainers), len(self._trainers), self._taken)
        self._taken.add(row)
        self._promises[ticket] = Promise(NO_INDICES, row, source=ticket.worker)
        values, piece = piece_of(self._trainers[ticket.worker], assignment)
        _copy(_values(self._arena[ticket.worker]), values)
        self._blobs.put(ticket.worker, ticket.serial, piece)

    def promised(self, ticket: Ticket) -> Promise:
        return self._promises[ticket]

    def hand_in(self, ticket: Ticket, brought: Brought) -> None:
        self._promises[ticket].handed_in = True

    def halt(self, ticket: Ticket) -> None:
        """Its worker may still read and write for it, in places that nobody else uses before its next piece."""

    def forget_worker(self, worker: int) -> None:
        """Nothing depends on which process it is."""

    def trained(self, ticket: Ticket, assignment: Assignment) -> Trained:
        row = self._promises[ticket].row
        outcome: Outcome = self._blobs.get(row, ticket.serial)
        return take_up(self._trainers[ticket.worker], _values(self._arena[row]), outcome)

    def settle(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._taken.discard(self._promises.pop(ticket).row)

    def detach(self) -> None:
        """The models are the trainers' own."""
        self._blobs.close()

    # What was handed in is put aside; what was not will be given out again.

    def state(self) -> State:
        handed_in = [(ticket, promise.row) for ticket, promise in self._promises.items() if promise.handed_in]
        return {
            "tickets": pack_tickets(self._promises),
            "rows": [[promise.row, promise.handed_in] for promise in self._promises.values()],
            "handed in": {str(row): self._handed_in(ticket, row) for ticket, row in handed_in},
        }

    def _handed_in(self, ticket: Ticket, row: int) -> State:
        outcome: Outcome = self._blobs.get(row, ticket.serial)
        return {
            "values": _values(self._arena[row]),
            "aside": outcome.aside,
            "losses": outcome.trained.losses,
            "sums": [list(each) for each in outcome.trained.sums],
            "finite": outcome.trained.finite,
        }

    def restore(self, state: State) -> None:
        workers = len(self._trainers)
        for ticket, (row, handed_in) in zip(unpack_tickets(state["tickets"]), state["rows"], strict=True):
            if row in self._taken or whole(row) < workers or (row - workers) % workers != ticket.worker:
                raise ValueError(f"{ticket} cannot have the row {row}")
            promise = self._promises[ticket] = Promise(NO_INDICES, row, source=ticket.worker)
            promise.handed_in = bool(handed_in)
            self._taken.add(row)
            if promise.handed_in:
                own, saved = _values(self._arena[row]), state["handed in"][str(row)]
                _copy(own, like(own, saved["values"]))
                losses = list(saved["losses"])
                sums = saved.get("sums", [[float(each.sum(dtype=np.float64)), len(each)] for each in losses])
                trained = Trained(losses, [(float(s), float(w)) for s, w in sums], bool(saved["finite"]))
                self._blobs.put(row, ticket.serial, Outcome(trained, saved["aside"]))


class RowWork:
    """A worker's side: a piece out of arena and blobs, and its outcome into them."""

    def __init__(self, work: LocalWork, arena: ParameterArena, blobs: Blobs) -> None:
        self._work = work
        self._arena = arena
        self._blobs = blobs

    def compute(self, serial: int, source: int, row: int, units: int, go_on: Callable[[int], bool]) -> int:
        """Returns how many steps were made: all of them, or none that count."""
        piece: Piece | None = self._blobs.get(source, serial)
        if piece is None:
            return 0  # it was halted, and the next one is being written
        outcome = self._work.train(_values(self._arena[source]), piece, go_on)
        if outcome is None:
            return 0
        _copy(_values(self._arena[row]), self._work.values)
        self._blobs.put(row, serial, outcome)
        return units


def _values(slot: Slot) -> list[Tensor]:
    return [*slot.parameters, *slot.buffers]


@torch.no_grad()
def _copy(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for own, value in zip(to, values, strict=True):
        own.copy_(value)
