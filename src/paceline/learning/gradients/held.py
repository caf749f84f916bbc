"""Gradients that were promised and are not settled, and the slots of arenas that they take, on one machine or several.

The first two slots of an arena are for the model. Each worker has a spare one to read from, and as many to write to as
it may have contributions that are not settled. Only slots that are written take memory.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor

from paceline.core.codec import real, whole
from paceline.core.errors import PacelineError
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.arena.arena import Promise
from paceline.learning.contributions import (
    Evaluated,
    Pass,
    Weights,
    pack_samples,
    pack_tickets,
    share_out,
    unpack_samples,
    unpack_tickets,
)
from paceline.learning.model_state import BufferChange, ModelState

Parts = tuple[tuple[int, float], ...]  # rows of the matrix in rising order, each with its factor

MODEL_SLOTS = 2
LEVELS = 8  # gradient slots a worker, unless the strategy asks for more: how many contributions can be unsettled


def slots_needed(workers: int, levels: int = LEVELS) -> int:
    """Two for the model; for each worker a spare one to read from and ``levels`` to write to."""
    return MODEL_SLOTS + workers + levels * workers


def free_slot(worker: int, position: int, workers: int, first: int, taken: Collection[int], *, levels: int) -> int:
    """A slot of a worker, to write to, that is not taken. ``position`` is its place among the workers of its arena."""
    for level in range(levels):
        slot = first + level * workers + position
        if slot not in taken:
            return slot
    raise PacelineError(
        f"worker {worker} has {levels} contributions that the strategy neither uses nor drops: a strategy that holds "
        "more says how many by a method unsettled(workers)"
    )


class SlotBook:
    """Keeps account of the slots of one arena. The model's weights lie in one of two slots.

    A ticket reads that slot itself where that is safe. When the model is about to change while somebody still reads its
    slot, the model moves to the other slot. While that other one is still read too, a ticket gets a copy of the
    weights, in the slot that its own gradient will take. So every worker computes on exactly the version that its
    ticket names, however long it takes, and no weights are ever read while they change.

    Which slot a ticket gets depends on nothing but the order of promises and settlements.
    """

    def __init__(self, workers: Sequence[int], levels: int = LEVELS) -> None:
        self.model_slot = 0
        self._levels = levels
        self.first_row = MODEL_SLOTS + len(workers)
        self._positions = {worker: position for position, worker in enumerate(workers)}
        self._taken: set[int] = set()
        self._reading: tuple[set[Ticket], set[Ticket]] = (set(), set())  # running tickets that read a model slot itself
        self._interrupted: set[int] = set()  # workers that may still be writing for a ticket that was halted

    @property
    def is_read(self) -> bool:
        """Whether somebody reads the weights where the model's are."""
        return bool(self._reading[self.model_slot])

    def promise(self, ticket: Ticket) -> tuple[int, int]:
        """The slot that a ticket writes to, and the one that it reads: the model's, or one that needs a copy of it."""
        position = self._positions[ticket.worker]
        slot = free_slot(
            ticket.worker, position, len(self._positions), self.first_row, self._taken, levels=self._levels
        )
        self._taken.add(slot)
        if not self._reading[1 - self.model_slot]:
            self._reading[self.model_slot].add(ticket)
            return slot, self.model_slot
        return slot, MODEL_SLOTS + position if ticket.worker in self._interrupted else slot

    def hand_in(self, ticket: Ticket, source: int) -> None:
        self._interrupted.discard(ticket.worker)
        if source < MODEL_SLOTS:
            self._reading[source].discard(ticket)

    def halt(self, ticket: Ticket) -> None:
        """It will not be handed in; until the worker's next one is, it may still be written."""
        self._interrupted.add(ticket.worker)
        for reading in self._reading:
            reading.discard(ticket)

    def forget_worker(self, worker: int) -> None:
        """It writes no more: its process is gone."""
        self._interrupted.discard(worker)

    def settle(self, slot: int) -> None:
        self._taken.discard(slot)

    def free_rows(self) -> list[int]:
        """The slots of gradients that no ticket has."""
        end = self.first_row + self._levels * len(self._positions)
        return [slot for slot in range(self.first_row, end) if slot not in self._taken]

    def move(self) -> bool:
        """The model is about to change: leave the slot to those who still read it. Returns whether it moves."""
        if not self.is_read:
            return False
        self.model_slot = 1 - self.model_slot
        return True

    # A checkpoint counts slots as if all workers had one arena: it is the same for any number of machines.

    def level(self, slot: int) -> int:
        """How many slots its worker had taken before it."""
        return (slot - self.first_row) // len(self._positions)

    def take(self, ticket: Ticket, level: int) -> int:
        """The slot of a ticket that a checkpoint tells of."""
        slot = self.first_row + level * len(self._positions) + self._positions[ticket.worker]
        if slot in self._taken or not 0 <= level < self._levels:
            raise ValueError(f"{ticket} cannot have the slot {slot}")
        self._taken.add(slot)
        return slot


class RowEnd(Protocol):
    """What a slot holds besides a gradient."""

    @property
    def buffers(self) -> list[Tensor]: ...

    @property
    def unused(self) -> Tensor: ...

    @property
    def losses_array(self) -> NDArray[Any]: ...

    @property
    def logged(self) -> Tensor: ...


class HeldGradients:
    """What all gradients of real workers have in common: promises, and a step that leaves out what is not finite."""

    measure_spread = False  # whether the norms of single gradients are told

    def __init__(self, state: ModelState, logged: Sequence[str]) -> None:
        self._state = state
        self._logged = logged  # the names of what a step logs
        self._promises: dict[Ticket, Promise] = {}
        self._non_finite: set[Ticket] = set()
        self._partial = False  # has any contribution no gradient of some parameter?

    def _norm_of(self, promise: Promise) -> float:
        """The norm of a row, as its worker reported it."""
        raise NotImplementedError

    def _mean_square(self, weights: Weights) -> float:
        """The weighted mean of the squared norms of single gradients."""
        total = 0.0
        for ticket, weight in weights.items():
            promise = self._promises[ticket]
            total += float(weight) * (self._norm_of(promise) * len(promise.indices) / promise.samples) ** 2
        return total

    def _book(self, worker: int) -> SlotBook:
        """The slots of a worker's machine."""
        raise NotImplementedError

    def promised(self, ticket: Ticket) -> Promise:
        return self._promises[ticket]

    def written(self, ticket: Ticket) -> None:
        """What its worker wrote stays where it is until the ticket is settled."""

    def halt(self, ticket: Ticket) -> None:
        """It will not be handed in; until the worker's next one is, it may still be written."""
        self._book(ticket.worker).halt(ticket)

    def forget_worker(self, worker: int) -> None:
        """It writes no more: its process is gone."""
        self._book(worker).forget_worker(worker)

    def shorten(self, ticket: Ticket, done: int) -> Indices:
        promise = self._promises[ticket]
        promise.samples = len(promise.indices) * done // ticket.work.units
        return promise.indices[promise.samples :]

    def batches(self, ticket: Ticket) -> Sequence[Indices]:
        promise = self._promises[ticket]
        return (promise.indices[: promise.samples],)

    def settle(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._book(ticket.worker).settle(self._promises.pop(ticket).slot)
            self._non_finite.discard(ticket)

    def open_tickets(self) -> Collection[Ticket]:
        return self._promises.keys()

    # A step.

    def evaluate(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        """Leave the weighted sum in the parameters' ``grad``; leave out, and report, what is not finite."""
        if self._non_finite and not self._non_finite.isdisjoint(weights):  # kept from a step that left them out already
            weights = share_out(weights, self._non_finite.intersection(weights))
        result = self._sum(weights, keep)
        if not result.finite:
            non_finite = self._find_non_finite(weights)
            self._non_finite.update(non_finite)
            result = self._sum(share_out(weights, non_finite), keep)
            result.non_finite = non_finite
        for ticket in weights:
            self._promises[ticket].used = True
        return result

    def _sum(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        raise NotImplementedError

    def _find_non_finite(self, weights: Weights) -> list[Ticket]:
        raise NotImplementedError

    def _parts(self, weights: Weights, first_row: int, factor: float = 1.0) -> Parts:
        """The rows of tickets in the matrix, each with its weight times a factor."""
        parts: list[tuple[int, float]] = []
        last: Fraction | None = None
        number = 0.0
        for ticket, weight in weights.items():
            promise = self._promises[ticket]
            if weight is not last:  # most are the same one, and to make a float of it takes longer than all else here
                last, number = weight, factor * float(weight)
            if promise.samples == (total := len(promise.indices)):
                parts.append((promise.slot - first_row, number))
            else:
                parts.append((promise.slot - first_row, factor * float(weight * Fraction(total, promise.samples))))
        parts.sort()
        return tuple(parts)

    def _report(self, result: Evaluated, ticket: Ticket, weight: Fraction, end: RowEnd) -> None:
        """Add what a contribution reports besides a gradient: losses, and the buffers of its worker."""
        promise = self._promises[ticket]
        if end.buffers:
            result.buffers.append(BufferChange(weight, promise.began, end.buffers))
        if promise.used:
            return
        losses = end.losses_array[: promise.losses]
        computed = promise.indices
        if promise.samples < len(computed):
            computed = computed[: promise.samples]
        report = (promise.loss_sum, promise.loss_weight)
        if self._logged:
            sums = end.logged.view(-1, 2).tolist()
            logged = {name: (total, n) for name, (total, n) in zip(self._logged, sums, strict=True) if n}
            result.passes.append(Pass((ticket,), (computed,), losses, *report, logged))
        else:
            result.passes.append(Pass((ticket,), (computed,), losses, *report))

    def _unused(self, weights: Weights) -> Collection[int]:
        """The parameters that no contribution has a gradient of."""
        if not (self._partial and weights):
            return ()
        every = [self._promises[ticket].unused for ticket in weights]
        return sorted(set(every[0]).intersection(*every[1:]))

    # Checkpoints. A ticket keeps its slot: gradients are summed in the order of their places. What was not handed in
    # is stored without one, for its samples are to be put back. Slots are counted as if all workers had one arena.

    def _packed(self, workers: int, rows: Mapping[Ticket, State]) -> State:
        """The state of what is promised, with the rows of what was handed in."""
        promises = self._promises.items()
        book = SlotBook(range(workers))
        slots = {
            ticket: book.first_row + self._book(ticket.worker).level(p.slot) * workers + ticket.worker
            for ticket, p in promises
        }
        return {
            "samples": pack_samples({ticket: promise.indices for ticket, promise in promises}),
            "promises": [[slots[t], p.samples, p.losses, p.handed_in, p.used, p.loss_weight] for t, p in promises],
            "rows": {
                str(slots[ticket]): {
                    **row,
                    "began": list(self._promises[ticket].began),
                    "unused": list(self._promises[ticket].unused),
                }
                for ticket, row in rows.items()
            },
            "spoiled": pack_tickets(sorted(self._non_finite)),
        }

    def _unpack(self, workers: int, state: State) -> list[tuple[Ticket, State, float | None]]:
        """Promise again what was promised. Returns what was handed in, with its row and the weight of its losses."""
        handed_in: list[tuple[Ticket, State, float | None]] = []
        samples = unpack_samples(state["samples"], sys.maxsize)
        first = SlotBook(range(workers)).first_row
        for (ticket, indices), (slot, *rest) in zip(samples.items(), state["promises"], strict=True):
            level, worker = divmod(whole(slot) - first, workers)
            if worker != ticket.worker:
                raise ValueError(f"{ticket} cannot have the slot {slot}")
            own = self._book(worker).take(ticket, level)
            promise = self._promises[ticket] = Promise(indices, own, own)
            promise.samples, promise.losses = map(whole, rest[:2])
            promise.handed_in, promise.used = map(bool, rest[2:4])
            weight = real(rest[4]) if len(rest) > 4 and rest[4] != promise.losses else None  # older ones have none
            if promise.handed_in:
                handed_in.append((ticket, state["rows"][str(slot)], weight))
        self._non_finite.update(unpack_tickets(state["spoiled"]))
        return handed_in


def row_state(vectors: list[Tensor], end: RowEnd, losses: Tensor) -> State:
    """A row as a checkpoint has it."""
    return {"vectors": vectors, "buffers": end.buffers, "losses": losses, "logged": end.logged}


def marked(unused: Tensor) -> list[int]:
    """The numbers of the parameters that a row marks as unused."""
    found: list[int] = unused.nonzero().flatten().tolist()
    return found
