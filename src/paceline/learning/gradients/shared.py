"""Gradients that workers write to shared memory, each to a slot of its own: a step is one product with the weights.

Slots lie one after the other, so that those of gradients are the rows of a matrix. The model's weights lie in a slot
too, and workers read them there: nothing is copied where that is safe (``SlotBook``), and a synchronous run never
copies weights at all.

Which slot a ticket gets depends on nothing but the order of promises and settlements, and slots are summed by worker:
who was first to arrive makes no difference to the sum.
"""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.arena.arena import ParameterArena, Promise, Report
from paceline.learning.contributions import Evaluated, Weights
from paceline.learning.gradients.held import LEVELS, HeldGradients, Parts, SlotBook, marked, row_state
from paceline.learning.model_state import HALF, ModelState, Snapshot, all_finite, like, norm

Single = tuple[Tensor, float]  # one row, and its factor
Product = tuple[Tensor, Tensor, Single | None]  # some rows, transposed, and their factors; the row if it is only one

PLANS = 1000  # are kept; a strategy comes back to the same few
LONGEST_STEP = 1e12  # a longer one might itself overflow


class SharedGradients(HeldGradients):
    """Gives every ticket weights to read and a slot to write to, and sums gradients up."""

    def __init__(
        self, state: ModelState, arena: ParameterArena, workers: int, logged: Sequence[str] = (), levels: int = LEVELS
    ) -> None:
        super().__init__(state, logged)
        self._arena = arena
        self._workers = workers
        self._slots = SlotBook(range(workers), levels)
        self._first_row = self._slots.first_row
        self._sums = SlotSums(arena.matrices(self._first_row))
        self._norms: dict[int, float] = {}  # of gradients that were handed in, by row
        self._prepared: Parts = ()
        self._own = state.gradients, [p.grad for p in state.parameters if p.grad is not None]
        self._lent = False  # do the parameters' gradients lie in a contribution's slot?
        self._published = False  # do the slot's buffers equal the model's?
        self._began: Sequence[Tensor] = ()  # those of the model
        for values, parameter in zip(arena[0].parameters, state.parameters, strict=True):
            values.copy_(parameter.data)
        self._use_model_slot()

    def _book(self, worker: int) -> SlotBook:
        return self._slots

    # A ticket's life: promised, handed in or not, settled.

    def promise(self, ticket: Ticket, batches: Sequence[Indices], number: int) -> None:
        (indices,) = batches
        slot, source = self._slots.promise(ticket)
        if not self._published:
            self._publish_buffers()
        if source != self._slots.model_slot:
            self._arena[source].take(self._arena[self._slots.model_slot])
        self._promises[ticket] = Promise(indices, slot, source, number, self._began)

    def hand_in(self, ticket: Ticket, report: Report) -> None:
        """The gradient of a ticket was written."""
        promise = self._promises[ticket]
        promise.losses, promise.loss_sum, promise.loss_weight = report.losses, report.loss_sum, report.loss_weight
        promise.handed_in = True
        self._norms[promise.slot - self._first_row] = report.norm
        if report.unused:
            self._partial = True
            promise.unused = marked(self._arena[promise.slot].unused)
        self._slots.hand_in(ticket, promise.source)

    # The model.

    def before_update(self) -> None:
        """Leave the slot to those who still read it."""
        before = self._slots.model_slot
        if self._slots.move():
            self._arena[self._slots.model_slot].take(self._arena[before])
            self._use_model_slot()
        self._published = False

    def _publish_buffers(self) -> None:
        """A step may have given the model other buffers: put them where those who start now will read them."""
        self._published = True
        self._began = [buffer.data for buffer in self._state.buffers]  # a step gives the model others
        for buffer, values in zip(self._arena[self._slots.model_slot].buffers, self._state.buffers, strict=True):
            buffer.copy_(values)

    def _use_model_slot(self) -> None:
        """Let the model have its parameters where the book says."""
        present = [buffer.data for buffer in self._state.buffers]
        self._state.swap_in(Snapshot(self._arena[self._slots.model_slot].parameters, present))

    def detach(self) -> None:
        """Give the model memory of its own, for when the run is over."""
        self._arena.release(self._slots.free_rows())
        self._state.swap_in(self._state.copy())
        vectors, of_parameters = self._own
        self._state.use_gradients(vectors, of_parameters)

    # Checkpoints.

    def state(self) -> State:
        arena = self._arena
        rows = {t: arena[p.slot] for t, p in self._promises.items() if p.handed_in}
        return self._packed(self._workers, {t: row_state(row.vectors, row, row.losses) for t, row in rows.items()})

    def restore(self, state: State) -> None:
        for ticket, saved, weight in self._unpack(self._workers, state):
            promise = self._promises[ticket]
            own = self._arena[promise.slot]
            unused = own.fill(saved)
            present = [buffer.data for buffer in self._state.buffers]  # for a checkpoint that does not tell
            promise.began = like(present, saved.get("began", present))
            self.hand_in(ticket, own.report(promise.losses, weight, unused=len(unused)))

    # A step.

    def _find_non_finite(self, weights: Weights) -> list[Ticket]:
        return [t for t in weights if not all_finite(self._arena[self._promises[t].slot].vectors)]

    def _sum(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        parts = self._parts(weights, self._first_row)
        if len(parts) == 1 and parts[0][1] == 1.0 and not keep:  # where it lies; clipping may change it there
            only = self._arena[parts[0][0] + self._first_row]
            self._state.use_gradients(only.vectors, only.parameters)
            self._lent = True
        else:
            if self._lent:
                self._state.use_gradients(*self._own)
                self._lent = False
            self._sums.write(parts, self._state.gradients)
        result = self._reported(weights)
        result.unused = self._unused(weights)
        result.norm = norm(self._state.gradients)
        result.finite = result.norm < math.inf or all_finite(self._state.gradients)
        if self.measure_spread:
            result.mean_square = self._mean_square(weights)
        return result

    def _norm_of(self, promise: Promise) -> float:
        return self._norms[promise.slot - self._first_row]

    def _reported(self, weights: Weights) -> Evaluated:
        """What the contributions report besides a gradient."""
        result, arena = Evaluated(), self._arena
        for slot, ticket in sorted((self._promises[ticket].slot, ticket) for ticket in weights):
            self._report(result, ticket, weights[ticket], arena[slot])
        return result

    # A step that needs no sum: the model moves along the gradients themselves.

    def prepare_step(self, weights: Weights, learning_rate: float) -> Evaluated | None:
        """What ``evaluate`` would return, where a step of this learning rate is sure to be finite: see ``apply_step``.

        The sum is no longer than its gradients are together, and each worker has told the norm of its own.
        """
        if self._non_finite and not self._non_finite.isdisjoint(weights):
            return None
        parts = self._parts(weights, self._first_row, -learning_rate)
        norms = self._norms
        if not sum([abs(factor) * norms.get(row, math.nan) for row, factor in parts]) <= LONGEST_STEP:
            return None
        self._prepared = parts
        result = self._reported(weights)
        for ticket in weights:
            self._promises[ticket].used = True
        return result

    def apply_step(self) -> None:
        """Move the model, in one pass over memory: to the other slot while somebody still reads this one."""
        before = self._slots.model_slot
        moved = self._slots.move()
        self._sums.add(self._prepared, self._arena[before].vectors, self._arena[self._slots.model_slot].vectors)
        if moved:
            self._use_model_slot()
        self._published = False


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
