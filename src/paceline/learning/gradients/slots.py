"""Which slots of an arena the tickets of one machine read from and write to, and sums over those slots.

The first two slots are for the model. Each worker has a spare one to read from, and as many to write to as it may have
contributions that are not settled. Only slots that are written take memory.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from paceline.core.errors import PacelineError
from paceline.core.messages import Ticket

Parts = tuple[tuple[int, float], ...]  # rows of the matrix in rising order, each with its factor
Single = tuple[Tensor, float]  # one row, and its factor
Product = tuple[Tensor, Tensor, Single | None]  # some rows, transposed, and their factors; the row if it is only one

HALF = (torch.bfloat16, torch.float16)
PLANS = 1000  # are kept; a strategy comes back to the same few
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


class SlotSums:
    """Sums of slots, each times its factor: one matrix-vector product for each run of neighbouring slots.

    Neighbours only: what lies between two slots that are used may be anything, even NaN. The views and factors of each
    combination are made only once.
    """

    def __init__(self, matrices: Sequence[Tensor]) -> None:
        self._matrices = matrices  # one for each type of number
        self._plans: dict[Parts, list[list[Product]]] = {}

    def write(self, parts: Parts, into: Sequence[Tensor]) -> None:
        """Leave the sum in vectors, one for each type of number."""
        for products, vector in zip(self._plan(parts), into, strict=True):
            if vector.dtype in HALF:
                vector.copy_(_in_floats(products, torch.zeros_like(vector, dtype=torch.float32)))
                continue
            for number, (rows, factors, _) in enumerate(products):
                torch.addmv(vector, rows, factors, beta=1.0 if number else 0.0, out=vector)
            if not products:
                vector.zero_()

    def add(self, parts: Parts, to: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Add the sum to vectors, and leave the result in others or in the same: the same bits in both.

        Which it is depends on timing (who still reads the weights), so the operations must not: ``torch.add`` and a
        product with a single row round differently on some processors. A product copies the vector first where the
        result is another, and is the same operation in place.
        """
        for products, vector, result in zip(self._plan(parts), to, into, strict=True):
            if vector.dtype in HALF:
                result.copy_(_in_floats(products, vector.float()))
                continue
            so_far = vector
            for rows, factors, single in products:
                if single is not None:
                    torch.add(so_far, single[0], alpha=single[1], out=result)
                else:
                    torch.addmv(so_far, rows, factors, out=result)
                so_far = result

    def _plan(self, parts: Parts) -> list[list[Product]]:
        plan = self._plans.get(parts)
        if plan is None:
            if len(self._plans) >= PLANS:
                self._plans.clear()
            plan = self._plans[parts] = [_products(matrix, parts) for matrix in self._matrices]
        return plan


def _in_floats(products: list[Product], so_far: Tensor) -> Tensor:
    """The sum in single precision: a factor such as 1/3 of half precision would be off by up to 0.4 %."""
    for rows, factors, _ in products:
        so_far = torch.addmv(so_far, rows.float(), factors)
    return so_far


def _products(matrix: Tensor, parts: Parts) -> list[Product]:
    breaks = [i for i, (one, following) in enumerate(pairwise(parts), start=1) if following[0] != one[0] + 1]
    neighbours = [parts[begin:end] for begin, end in pairwise([0, *breaks, len(parts)] if parts else [])]
    return [
        (
            matrix[some[0][0] : some[-1][0] + 1].t(),
            torch.tensor([factor for _, factor in some], dtype=torch.float32 if matrix.dtype in HALF else matrix.dtype),
            (matrix[some[0][0]], some[0][1]) if len(some) == 1 else None,
        )
        for some in neighbours
    ]
