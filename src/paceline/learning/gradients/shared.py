"""Gradients that workers write to shared memory, each to a slot of its own: a step is one product with the weights.

Slots lie one after the other, so that those of gradients are the rows of a matrix. The model's weights lie in one of
two slots. A ticket is given the slot itself to read where that is safe: nothing is
copied then, and a synchronous run never copies weights at all. When the model is about to change while somebody still
reads its slot, the model moves to the other slot first. While that other one is still read too, a ticket gets a copy of
the weights, in the slot that its own gradient will take. So every worker computes on exactly the version that its
ticket names, however long it takes, and no weights are ever read while they change.

Which slot a ticket gets depends on nothing but the order of promises and settlements, and slots are summed by worker:
who was first to arrive makes no difference to the sum.
"""

import math
import sys
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

from paceline.core.codec import real, whole
from paceline.core.errors import PacelineError
from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.arena.arena import ParameterArena, Report
from paceline.learning.contributions import (
    Evaluated,
    Pass,
    Promise,
    Weights,
    pack_samples,
    pack_tickets,
    share_out,
    unpack_samples,
    unpack_tickets,
)
from paceline.learning.model_state import BufferChange, ModelState, Snapshot, all_finite, like, norm

Parts = tuple[tuple[int, float], ...]  # rows of the matrix in rising order, each with its factor
Single = tuple[Tensor, float]  # one row, and its factor
Product = tuple[Tensor, Tensor, Single | None]  # some rows, transposed, and their factors; the row if it is only one

HALF = (torch.bfloat16, torch.float16)
PLANS = 1000  # are kept; a strategy comes back to the same few
MODEL_SLOTS = 2
LONGEST_STEP = 1e12  # a longer one might itself overflow
LEVELS = 8  # gradient slots a worker: how many of its contributions can be unsettled at once


def slots_needed(workers: int) -> int:
    """Two for the model; for each worker a spare one to read from and ``LEVELS`` to write to."""
    return MODEL_SLOTS + workers + LEVELS * workers


def free_slot(worker: int, workers: int, first: int, taken: Collection[int]) -> int:
    """A slot of a worker, to write to, that is not taken."""
    for level in range(LEVELS):
        slot = first + level * workers + worker
        if slot not in taken:
            return slot
    raise PacelineError(f"worker {worker} has {LEVELS} contributions that the strategy neither uses nor drops")


class SharedGradients:
    """Gives every ticket weights to read and a slot to write to, and sums gradients up."""

    def __init__(self, state: ModelState, arena: ParameterArena, workers: int, logged: Sequence[str] = ()) -> None:
        self._state = state
        self._logged = logged  # the names of what a step logs
        self._arena = arena
        self._workers = workers
        self._first_row = MODEL_SLOTS + workers
        self._sums = SlotSums(arena.matrices(self._first_row))
        self._norms: dict[int, float] = {}  # of gradients that were handed in, by row
        self._prepared: Parts = ()
        self._own = state.gradients, [p.grad for p in state.parameters if p.grad is not None]
        self._promises: dict[Ticket, Promise] = {}
        self._taken: set[int] = set()
        self._reading: dict[int, set[Ticket]] = {0: set(), 1: set()}  # running tickets that read a slot itself
        self._partial = False  # has any contribution no gradient of some parameter?
        self._interrupted: set[int] = set()  # workers that may still be writing for a ticket that was halted
        self._non_finite: set[Ticket] = set()
        self._lent = False  # do the parameters' gradients lie in a contribution's slot?
        self._slot = 0
        self._published = False  # do the slot's buffers equal the model's?
        self._began: Sequence[Tensor] = ()  # those of the model
        for values, parameter in zip(arena[0].parameters, state.parameters, strict=True):
            values.copy_(parameter.data)
        self._read_from(0)

    # A ticket's life: promised, handed in or not, settled.

    def promise(self, ticket: Ticket, batches: Sequence[Indices], number: int) -> None:
        (indices,) = batches
        slot = free_slot(ticket.worker, self._workers, self._first_row, self._taken)
        self._taken.add(slot)
        if not self._published:
            self._publish_buffers()
        other = 1 - self._slot
        if not self._reading[other]:
            source = self._slot
            self._reading[source].add(ticket)
        else:
            source = MODEL_SLOTS + ticket.worker if ticket.worker in self._interrupted else slot
            self._arena[source].take(self._arena[self._slot])
        self._promises[ticket] = Promise(indices, slot, source, number, self._began)

    def promised(self, ticket: Ticket) -> Promise:
        return self._promises[ticket]

    def hand_in(self, ticket: Ticket, report: Report) -> None:
        """The gradient of a ticket was written."""
        promise = self._promises[ticket]
        promise.losses, promise.loss_sum, promise.loss_weight = report.losses, report.loss_sum, report.loss_weight
        promise.handed_in = True
        self._norms[promise.slot - self._first_row] = report.norm
        if report.unused:
            self._partial = True
            promise.unused = self._arena[promise.slot].unused.nonzero().flatten().tolist()
        self._interrupted.discard(ticket.worker)
        if promise.source < MODEL_SLOTS:
            self._reading[promise.source].discard(ticket)

    def halt(self, ticket: Ticket) -> None:
        """It will not be handed in; until the worker's next one is, it may still be written."""
        self._interrupted.add(ticket.worker)
        for reading in self._reading.values():
            reading.discard(ticket)

    def forget_worker(self, worker: int) -> None:
        """It writes no more: its process is gone."""
        self._interrupted.discard(worker)

    def shorten(self, ticket: Ticket, done: int) -> Indices:
        promise = self._promises[ticket]
        promise.samples = len(promise.indices) * done // ticket.work.units
        return promise.indices[promise.samples :]

    def batches(self, ticket: Ticket) -> Sequence[Indices]:
        promise = self._promises[ticket]
        return (promise.indices[: promise.samples],)

    def settle(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            promise = self._promises.pop(ticket)
            self._taken.discard(promise.slot)
            self._non_finite.discard(ticket)

    # The model.

    def before_update(self) -> None:
        """Leave the slot to those who still read it."""
        if self._reading[self._slot]:
            other = 1 - self._slot
            self._arena[other].take(self._arena[self._slot])
            self._read_from(other)
        self._published = False

    def _publish_buffers(self) -> None:
        """A step may have given the model other buffers: put them where those who start now will read them."""
        self._published = True
        self._began = [buffer.data for buffer in self._state.buffers]  # a step gives the model others
        for buffer, values in zip(self._arena[self._slot].buffers, self._state.buffers, strict=True):
            buffer.copy_(values)

    def _read_from(self, slot: int) -> None:
        self._slot = slot
        present = [buffer.data for buffer in self._state.buffers]
        self._state.swap_in(Snapshot(self._arena[slot].parameters, present))

    def detach(self) -> None:
        """Give the model memory of its own, for when the run is over."""
        rows = range(self._first_row, slots_needed(self._workers))
        self._arena.release(row for row in rows if row not in self._taken)
        self._state.swap_in(self._state.copy())
        vectors, of_parameters = self._own
        self._state.use_gradients(vectors, of_parameters)

    def open_tickets(self) -> Collection[Ticket]:
        return self._promises.keys()

    # Checkpoints. A ticket keeps its slot: gradients are summed in the order of their places. What was not handed in
    # is stored without one, for its samples are to be put back.

    def state(self) -> State:
        promises = self._promises.items()
        written = {
            str(p.slot): (self._arena[p.slot], {"began": list(p.began), "unused": list(p.unused)})
            for _, p in promises
            if p.handed_in
        }
        return {
            "samples": pack_samples({ticket: promise.indices for ticket, promise in promises}),
            "promises": [[p.slot, p.samples, p.losses, p.handed_in, p.used, p.loss_weight] for _, p in promises],
            "rows": {
                number: {"vectors": s.vectors, "buffers": s.buffers, "losses": s.losses, "logged": s.logged, **more}
                for number, (s, more) in written.items()
            },
            "spoiled": pack_tickets(sorted(self._non_finite)),
        }

    def restore(self, state: State) -> None:
        samples = unpack_samples(state["samples"], sys.maxsize)
        for (ticket, indices), (slot, *rest) in zip(samples.items(), state["promises"], strict=True):
            if slot in self._taken or (slot - self._first_row) % self._workers != ticket.worker:
                raise ValueError(f"{ticket} cannot have the slot {slot}")
            promise = self._promises[ticket] = Promise(indices, whole(slot), slot)
            promise.samples, promise.losses = map(whole, rest[:2])
            promise.handed_in, promise.used = map(bool, rest[2:4])
            weight = real(rest[4]) if len(rest) > 4 and rest[4] != promise.losses else None  # older ones have none
            self._taken.add(slot)
            if promise.handed_in:
                own, saved = self._arena[slot], state["rows"][str(slot)]
                for views, values in ((own.vectors, saved["vectors"]), (own.buffers, saved["buffers"])):
                    for view, value in zip(views, like(views, values), strict=True):
                        view.copy_(value)
                own.losses.copy_(like([own.losses], [saved["losses"]])[0])
                own.logged.copy_(like([own.logged], [saved.get("logged", torch.zeros_like(own.logged))])[0])
                present = [buffer.data for buffer in self._state.buffers]  # for a checkpoint that does not tell
                promise.began = like(present, saved.get("began", present))
                unused = [whole(number) for number in saved.get("unused", ())]
                own.unused.zero_()
                own.unused[unused] = 1
                self.hand_in(ticket, own.report(promise.losses, weight, unused=len(unused)))
        self._non_finite.update(unpack_tickets(state["spoiled"]))

    # A step.

    def evaluate(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        """Leave the weighted sum in the parameters' ``grad``; leave out, and report, what is not finite."""
        if self._non_finite and not self._non_finite.isdisjoint(weights):  # kept from a step that left them out already
            weights = share_out(weights, self._non_finite.intersection(weights))
        result = self._sum(weights, keep)
        if not result.finite:
            non_finite = [ticket for ticket in weights if not self._is_finite(ticket)]
            self._non_finite.update(non_finite)
            result = self._sum(share_out(weights, non_finite), keep)
            result.non_finite = non_finite
        for ticket in weights:
            self._promises[ticket].used = True
        return result

    def _is_finite(self, ticket: Ticket) -> bool:
        return all_finite(self._arena[self._promises[ticket].slot].vectors)

    def _sum(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        parts = self._parts(weights)
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
        if self._partial and weights:
            every = [self._promises[ticket].unused for ticket in weights]
            result.unused = sorted(set(every[0]).intersection(*every[1:]))
        result.norm = norm(self._state.gradients)
        result.finite = result.norm < math.inf or all_finite(self._state.gradients)
        return result

    def _parts(self, weights: Weights, factor: float = 1.0) -> Parts:
        """The rows of tickets in the matrix, each with its weight times a factor."""
        parts: list[tuple[int, float]] = []
        last: Fraction | None = None
        number = 0.0
        for ticket, weight in weights.items():
            promise = self._promises[ticket]
            if weight is not last:  # most are the same one, and to make a float of it takes longer than all else here
                last, number = weight, factor * float(weight)
            if promise.samples == (total := len(promise.indices)):
                parts.append((promise.slot - self._first_row, number))
            else:
                parts.append(
                    (promise.slot - self._first_row, factor * float(weight * Fraction(total, promise.samples)))
                )
        parts.sort()
        return tuple(parts)

    def _reported(self, weights: Weights) -> Evaluated:
        """What the contributions report besides a gradient: losses, and the buffers of their workers."""
        result = Evaluated()
        promises = self._promises
        for _, ticket in sorted((promises[ticket].slot, ticket) for ticket in weights):
            promise = promises[ticket]
            slot = self._arena[promise.slot]
            if slot.buffers:
                result.buffers.append(BufferChange(weights[ticket], promise.began, slot.buffers))
            if promise.used:
                continue
            losses = slot.losses_array[: promise.losses]
            computed = promise.indices
            if promise.samples < len(computed):
                computed = computed[: promise.samples]
            report = (promise.loss_sum, promise.loss_weight)
            if self._logged:
                sums = slot.logged.view(-1, 2).tolist()
                logged = {name: (total, n) for name, (total, n) in zip(self._logged, sums, strict=True) if n}
                result.passes.append(Pass((ticket,), (computed,), losses, *report, logged))
            else:
                result.passes.append(Pass((ticket,), (computed,), losses, *report))
        return result

    # A step that needs no sum: the model moves along the gradients themselves.

    def prepare_step(self, weights: Weights, learning_rate: float) -> Evaluated | None:
        """What ``evaluate`` would return, where a step of this learning rate is sure to be finite: see ``apply_step``.

        The sum is no longer than its gradients are together, and each worker has told the norm of its own.
        """
        if self._non_finite and not self._non_finite.isdisjoint(weights):
            return None
        parts = self._parts(weights, -learning_rate)
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
        slot = 1 - self._slot if self._reading[self._slot] else self._slot
        self._sums.add(self._prepared, self._arena[self._slot].vectors, self._arena[slot].vectors)
        if slot != self._slot:
            self._read_from(slot)
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
