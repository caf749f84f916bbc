r"""Gradients that stay on the machines of their workers: a step asks each machine for the weighted sum of its own rows.

Every machine has an arena (``paceline.learning.gradients.held``): the weights that its workers read, and their
gradients. An update

$$g = \sum_m \sum_{i \in m} w_i g_i$$

is one product on each machine $m$, and the partial sums are added in the order of the machines. So what travels between
machines is one gradient a machine and update, and the weights of a version once to each machine, when somebody there
begins to compute. The bits depend on which workers share a machine (the trace tells, ``MachineWorkers``), and on
nothing else: neither on the order of arrival, nor on where the machines are.

What a machine holds is lost with it. A step leaves out what is lost, as it leaves out what is not finite.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.data.partition import Indices
from paceline.learning.arena.arena import Layout, ParameterArena, Promise, Report, Slot
from paceline.learning.contributions import Evaluated, Weights, pack_tickets, share_out, unpack_tickets
from paceline.learning.gradients.held import LEVELS, HeldGradients, Parts, RowEnd, SlotBook, marked, slots_needed
from paceline.learning.gradients.sharding import block_of, norm_of, squares
from paceline.learning.gradients.shared import SlotSums
from paceline.learning.model_state import ModelState, Snapshot, all_finite, like, norm

log = logging.getLogger("paceline")


class MachineLost(Exception):
    """A machine does not answer any more, and what it held is gone."""


Partial = tuple[list[Tensor], Sequence[RowEnd]]  # a machine's sum by type of number; what is besides in some slots


class Machine(Protocol):
    """The arena of one machine, to be asked. ``MachineLost`` where it does not answer."""

    workers: Sequence[int]

    @property
    def incarnation(self) -> int:
        """Changes when the machine is lost and another takes its place: what it held is gone then."""
        ...

    def deliver(self, slot: int, version: int, model: Slot, /) -> None:
        """Put the weights and buffers of a version into a slot."""
        ...

    def copy(self, source: int, slot: int, /) -> None:
        """Copy weights and buffers from one slot to another."""
        ...

    def ask(self, parts: Parts, ends: Sequence[int], /) -> Callable[[], Partial]:
        """Ask for a sum of rows, and for what is besides a gradient in some slots; the answer when it is called."""
        ...

    def finite(self, slots: Sequence[int], /) -> Sequence[bool]:
        """Which of these gradients are finite."""
        ...

    def read(self, slot: int, /) -> Callable[[], Slot]:
        """Ask for a whole slot, for a checkpoint; the answer when it is called."""
        ...

    def write(self, slot: int, row: Slot, /) -> None:
        """A whole slot, of a checkpoint."""
        ...


class MemoryMachine:
    """A machine whose arena is in this process's memory: the server's own, or any in a replay.

    wire  the type of number in which the machine exchanges single precision with the server; its own if it is none
    """

    incarnation = 0

    def __init__(self, workers: Sequence[int], arena: ParameterArena, wire: torch.dtype | None = None) -> None:
        self.workers = workers
        self._arena = arena
        self._wire = wire
        self.first_row = SlotBook(workers).first_row
        self._sums = SlotSums(arena.matrices(self.first_row))

    @staticmethod
    def in_memory(
        workers: Sequence[int], layout: Layout, wire: torch.dtype | None = None, levels: int = LEVELS
    ) -> "MemoryMachine":
        """A machine with new memory. What is not written takes none."""
        memory = torch.zeros(slots_needed(len(workers), levels) * layout.stride, dtype=torch.uint8)
        return MemoryMachine(workers, ParameterArena(layout, memory), wire)

    @property
    def arena(self) -> ParameterArena:
        return self._arena

    def deliver(self, slot: int, version: int, model: Slot) -> None:
        own = self._arena[slot]
        for vector, values in zip(own.vectors, model.vectors, strict=True):
            vector.copy_(sent(values, self._wire))
        for buffer, values in zip(own.buffers, model.buffers, strict=True):
            buffer.copy_(values)

    def copy(self, source: int, slot: int) -> None:
        self._arena[slot].take(self._arena[source])

    def ask(self, parts: Parts, ends: Sequence[int]) -> Callable[[], Partial]:
        return lambda: ([sent(each, self._wire) for each in self.sum(parts)], [self._arena[slot] for slot in ends])

    def sum(self, parts: Parts) -> list[Tensor]:
        """The weighted sum of rows, by type of number."""
        vectors = [torch.empty(place.numel, dtype=place.dtype) for place in self._arena.layout.vectors]
        self._sums.write(parts, vectors)
        return vectors

    def finite(self, slots: Sequence[int]) -> Sequence[bool]:
        return [all_finite(self._arena[slot].vectors) for slot in slots]

    def read(self, slot: int) -> Callable[[], Slot]:
        return lambda: self._arena[slot]

    def write(self, slot: int, row: Slot) -> None:
        self._arena.bytes(slot).copy_(row.memory)


def sent(vector: Tensor, wire: torch.dtype | None) -> Tensor:
    """A vector as it is sent between machines."""
    return vector if wire is None or vector.dtype is not torch.float32 else vector.to(wire)


class DistributedGradients(HeldGradients):
    """The server's side of gradients on several machines: it gives tickets out, and asks for sums.

    ``place`` says which machines there are. The model's weights lie in one slot of this process. ``exact_norm``: the
    norm of a gradient is to be the same to the bit as with a server in several shards, since it is clipped by it.
    ``lends``: the sum of a single machine may be the gradient where it lies, in memory that must not be written to.
    """

    lends = False

    def __init__(
        self, state: ModelState, layout: Layout, logged: Sequence[str] = (), machines: Sequence[Machine] = (), *,
        exact_norm: bool = False, levels: int = LEVELS,
    ) -> None:  # fmt: skip
        super().__init__(state, logged)
        self.layout = layout
        self._levels = levels
        self._blocks = [block_of(place.numel) for place in layout.vectors] if exact_norm else None
        self._model = ParameterArena(layout, torch.zeros(layout.stride, dtype=torch.uint8))[0]
        self._version = 0
        self._published = False  # do the slot's buffers equal the model's?
        self._began: Sequence[Tensor] = ()
        self._machines: Sequence[Machine] = ()
        self._books: list[SlotBook] = []
        self._of_worker: dict[int, int] = {}
        self._delivered: list[tuple[int, int]] = []  # to each machine: in which incarnation, which version
        self._held_in: dict[Ticket, int] = {}  # the incarnation of its machine when a ticket was handed in
        self._lost: set[Ticket] = set()
        self._to_leave_out: Mapping[int, Collection[Ticket]] = {}
        self._own = state.gradients, [p.grad for p in state.parameters if p.grad is not None]
        self._lent = False  # is a machine's sum the gradient?
        for values, parameter in zip(self._model.parameters, state.parameters, strict=True):
            values.copy_(parameter.data)
        state.swap_in(Snapshot(self._model.parameters, [buffer.data for buffer in state.buffers]))
        self.place(machines)

    def place(self, machines: Sequence[Machine]) -> None:
        """These machines have the workers from now on. Nothing may run on others."""
        held = [  # of a run that was resumed on other machines; what was running keeps its slot until it is halted
            (
                ticket,
                self._book(ticket.worker).level(promise.slot),
                self.machine_of(ticket.worker).read(promise.slot)() if promise.handed_in else None,
            )
            for ticket, promise in self._promises.items()
        ]
        self._machines = machines
        self._books = [SlotBook(machine.workers, self._levels) for machine in machines]
        self._of_worker = {worker: number for number, each in enumerate(machines) for worker in each.workers}
        self._delivered = [(-1, -1)] * len(machines)
        for ticket, level, row in held:
            promise, machine = self._promises[ticket], self.machine_of(ticket.worker)
            promise.slot = promise.source = self._book(ticket.worker).take(ticket, level)
            if row is not None:
                machine.write(promise.slot, row)
                self._held_in[ticket] = machine.incarnation

    def leave_out(self, lost: Mapping[int, Collection[Ticket]]) -> None:
        """For a replay: what the update of a number has to do without, whatever the reason was."""
        self._to_leave_out = lost

    def _book(self, worker: int) -> SlotBook:
        return self._books[self._of_worker[worker]]

    def machine_of(self, worker: int) -> Machine:
        return self._machines[self._of_worker[worker]]

    # A ticket's life.

    def promise(self, ticket: Ticket, batches: Sequence[Indices], number: int) -> None:
        (indices,) = batches
        which = self._of_worker[ticket.worker]
        machine, book = self._machines[which], self._books[which]
        slot, source = book.promise(ticket)
        if not self._published:
            self._publish_buffers()
        is_there = self._delivered[which] == (machine.incarnation, self._version)
        if source != book.model_slot and is_there:
            machine.copy(book.model_slot, source)
        elif not is_there:
            self._deliver(machine, source)
            if source == book.model_slot:
                self._delivered[which] = machine.incarnation, self._version
        self._promises[ticket] = Promise(indices, slot, source, number, self._began)

    def _deliver(self, machine: Machine, slot: int) -> None:
        machine.deliver(slot, self._version, self._model)

    def written(self, ticket: Ticket) -> None:
        """Its gradient is on its machine as that is now: another one in its place would not have it."""
        self._held_in[ticket] = self.machine_of(ticket.worker).incarnation

    def hand_in(self, ticket: Ticket, report: Report) -> None:
        """The gradient of a ticket was written, on its machine."""
        promise = self._promises[ticket]
        promise.losses, promise.loss_sum, promise.loss_weight = report.losses, report.loss_sum, report.loss_weight
        promise.handed_in = True
        promise.norm, promise.missing = report.norm, report.unused
        self._partial = self._partial or report.unused > 0
        self._held_in.setdefault(ticket, self.machine_of(ticket.worker).incarnation)
        self._book(ticket.worker).hand_in(ticket, promise.source)

    def settle(self, tickets: Iterable[Ticket]) -> None:
        settled = [*tickets]
        super().settle(settled)
        for ticket in settled:
            self._held_in.pop(ticket, None)
            self._lost.discard(ticket)

    # The model.

    def before_update(self) -> None:
        for book in self._books:
            book.move()
        self._version += 1
        self._published = False

    def _publish_buffers(self) -> None:
        self._published = True
        self._began = [buffer.data for buffer in self._state.buffers]  # a step gives the model others
        for buffer, values in zip(self._model.buffers, self._state.buffers, strict=True):
            buffer.copy_(values)

    def detach(self) -> None:
        """Give the model memory of its own, for when the run is over."""
        self._state.swap_in(self._state.copy())
        self._state.use_gradients(*self._own)

    # A step.

    def evaluate(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        """As everywhere; what was lost with its machine is left out too."""
        while True:
            lost = self._find_lost(weights)
            try:
                result = super().evaluate(share_out(weights, lost) if lost else weights, keep)
                break
            except MachineLost:
                continue  # another incarnation, or none: what it held is lost now
        for ticket in lost:
            if ticket not in self._lost:
                self._lost.add(ticket)
                log.warning("a step leaves out worker %d: its contribution was lost with its machine", ticket.worker)
            self._promises[ticket].used = True
        result.lost = lost
        return result

    def _find_lost(self, weights: Weights) -> list[Ticket]:
        return [ticket for ticket in weights if self._is_lost(ticket)]

    def _is_lost(self, ticket: Ticket) -> bool:
        machine = self.machine_of(ticket.worker)
        if ticket in self._lost or self._held_in.get(ticket) != machine.incarnation:
            return True
        recorded = ticket in self._to_leave_out.get(self._version, ())
        return recorded and machine.finite([self._promises[ticket].slot])[0]  # what is not finite is found anyway

    def _find_non_finite(self, weights: Weights) -> list[Ticket]:
        found: list[Ticket] = []
        for which, tickets in self._by_machine(weights):
            finite = self._machines[which].finite([self._promises[ticket].slot for ticket in tickets])
            found += [ticket for ticket, each in zip(tickets, finite, strict=True) if not each]
        return found

    def _by_machine(self, weights: Weights) -> list[tuple[int, Weights]]:
        """The weights of each machine that has any, in the order of machines."""
        split: dict[int, dict[Ticket, Fraction]] = {}
        for ticket, weight in weights.items():
            split.setdefault(self._of_worker[ticket.worker], {})[ticket] = weight
        return [(which, split[which]) for which in sorted(split)]

    def _sum(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        asked = self._ask(weights)
        if self._lent:
            self._state.use_gradients(*self._own)
            self._lent = False
        result = Evaluated()
        totals = self._state.gradients
        for number, (tickets, answer) in enumerate(asked):
            vectors, ends = answer()
            if len(asked) == 1 and self.lends and not keep and self._are_whole(vectors):
                totals = vectors
                self._state.use_gradients(vectors, self.layout.split(vectors))
                self._lent = True
            else:
                for total, vector in zip(totals, vectors, strict=True):
                    total.add_(vector) if number else total.copy_(vector)
            self._report_all(result, weights, tickets, ends)
        if not asked:
            for total in totals:
                total.zero_()
        result.unused = self._unused(weights)
        result.norm = self._norm(weights, totals)
        result.finite = result.norm < math.inf or all_finite(totals)
        if self.measure_spread:
            result.mean_square = self._mean_square(weights)
        return result

    def _are_whole(self, vectors: Sequence[Tensor]) -> bool:
        """Whether vectors are of the model's own types of number."""
        return all(vector.dtype is place.dtype for vector, place in zip(vectors, self.layout.vectors, strict=True))

    def _norm(self, weights: Weights, totals: list[Tensor]) -> float:
        if self._blocks is not None:
            return norm_of([[squares(each, n) for each, n in zip(totals, self._blocks, strict=True)]])
        if self._lent and len(weights) == 1:  # as its worker has told
            ((ticket, weight),) = weights.items()
            promise = self._promises[ticket]
            if weight == 1 and promise.samples == len(promise.indices) and promise.norm < math.inf:
                return promise.norm
        return norm(totals)

    def _norm_of(self, promise: Promise) -> float:
        return promise.norm

    def _ask(self, weights: Weights) -> list[tuple[Sequence[Ticket], Callable[[], Partial]]]:
        """Ask all machines at once. Of each: the tickets whose ends it was asked for, and its answer."""
        asked: list[tuple[Sequence[Ticket], Callable[[], Partial]]] = []
        for which, some in self._by_machine(weights):
            wanted = self._wanted_ends(some)
            parts = self._parts(some, self._books[which].first_row)
            slots = [self._promises[ticket].slot for ticket in wanted]
            asked.append((wanted, self._machines[which].ask(parts, slots)))
        return asked

    def _wanted_ends(self, weights: Weights) -> list[Ticket]:
        """The tickets of which more than the gradient is wanted, by their places."""
        promises = self._promises
        tickets = sorted(weights, key=lambda ticket: promises[ticket].slot)
        return [ticket for ticket in tickets if self.layout.buffers or not promises[ticket].used]

    def _report_all(
        self, result: Evaluated, weights: Weights, tickets: Sequence[Ticket], ends: Sequence[RowEnd]
    ) -> None:
        for ticket, end in zip(tickets, ends, strict=True):
            promise = self._promises[ticket]
            if promise.missing and not promise.used:
                promise.unused = marked(end.unused)
            self._report(result, ticket, weights[ticket], end)

    # Checkpoints.

    def state(self) -> State:
        rows: dict[Ticket, State] = {}
        for ticket, answer in self._ask_for_rows():
            promise = self._promises[ticket]
            try:
                row = answer()
            except MachineLost:
                continue
            promise.unused = marked(row.unused) if promise.missing else ()
            rows[ticket] = {
                "vectors": row.vectors, "buffers": row.buffers, "losses": row.losses, "logged": row.logged,
            }  # fmt: skip
        lost = [t for t, promise in self._promises.items() if promise.handed_in and t not in rows]
        return {**self._packed(len(self._of_worker), rows), **({"lost": pack_tickets(lost)} if lost else {})}

    def _ask_for_rows(self) -> list[tuple[Ticket, Callable[[], Slot]]]:
        """Ask all machines at once for all that was handed in."""
        asked: list[tuple[Ticket, Callable[[], Slot]]] = []
        for ticket, promise in self._promises.items():
            if promise.handed_in and not self._is_lost(ticket):
                with suppress(MachineLost):
                    asked.append((ticket, self.machine_of(ticket.worker).read(promise.slot)))
        return asked

    def restore(self, state: State) -> None:
        self._lost.update(unpack_tickets(state.get("lost", ())))
        missing: State = {}
        rows = {**dict.fromkeys((str(slot) for slot, *_ in state["promises"]), missing), **state["rows"]}
        for ticket, saved, weight in self._unpack(len(self._of_worker), {**state, "rows": rows}):
            promise = self._promises[ticket]
            if not saved:
                if ticket not in self._lost:
                    raise ValueError(f"{ticket} was handed in, and there is nothing of it")
                continue
            row = ParameterArena(self.layout, torch.zeros(self.layout.stride, dtype=torch.uint8))[0]
            unused = row.fill(saved)
            present = [buffer.data for buffer in self._state.buffers]
            promise.began = like(present, saved.get("began", present))
            self.machine_of(ticket.worker).write(promise.slot, row)
            self.hand_in(ticket, row.report(promise.losses, weight, unused=len(unused)))
            promise.unused = unused
