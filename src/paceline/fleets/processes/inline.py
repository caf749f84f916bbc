"""The work of worker processes, done in this one: the same code on the same layout of memory, so the same bits."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from paceline.core.messages import Ticket
from paceline.fleets.processes.channel import Order
from paceline.fleets.processes.payload import ComputeFunction, payload_of, shared_contributions, slots_needed
from paceline.learning.arena.arena import Layout, ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.contributions import SharedContributions
from paceline.learning.generators import work_seed
from paceline.learning.gradients.distributed import DistributedGradients, MemoryMachine
from paceline.learning.workload import Workload, state_of
from paceline.trace.format import Placement

if TYPE_CHECKING:
    from paceline.fleets.processes.launch import RealFleet


def inline(fleet: "RealFleet", workload: Workload, seed: int) -> "tuple[ProcessInlineWorker, SharedContributions]":
    """A worker in this process for all workers of a fleet, and what it contributes."""
    state = workload.state
    layout = Layout(state.parameters, state.buffers, workload.batch_size, len(workload.logged))
    memory = torch.zeros(slots_needed(workload, fleet.workers) * layout.stride, dtype=torch.uint8)
    arena, blobs = ParameterArena(layout, memory), Blobs()
    contributions = shared_contributions(workload, arena, blobs, fleet.workers)
    model, loss = workload.for_a_worker()
    compute = payload_of(workload, model, loss).open(state_of(model, loss.whole).parameters, arena, blobs)
    return ProcessInlineWorker(fleet, dict.fromkeys(range(fleet.workers), compute), contributions, seed), contributions


def inline_on(
    fleet: "RealFleet", machines: Placement, workload: Workload, seed: int
) -> "tuple[ProcessInlineWorker, SharedContributions]":
    """The same for workers on several machines, each with an arena of its own."""
    if workload.hands_in_models:
        return inline(fleet, workload, seed)  # models are combined by the server, wherever they were trained
    state = workload.state
    layout = Layout(state.parameters, state.buffers, workload.batch_size, len(workload.logged))
    wire = getattr(fleet, "wire_dtype", None)
    clips = workload.recipe is not None and workload.recipe.clip_norm is not None
    contributions = DistributedGradients(state, layout, workload.logged, exact_norm=clips, levels=workload.levels)

    def place(placed: Placement) -> Mapping[int, ComputeFunction]:
        made = [
            MemoryMachine.in_memory(workers, layout, None if number == placed.own else wire, workload.levels)
            for number, workers in enumerate(placed.workers)
        ]
        contributions.place(made)
        return computes_on(made, workload)

    return ProcessInlineWorker(fleet, place(machines), contributions, seed, place), contributions


def computes_on(machines: Sequence[MemoryMachine], workload: Workload) -> dict[int, ComputeFunction]:
    """What computes the orders of each worker, in the arena of its machine."""
    found: dict[int, ComputeFunction] = {}
    for machine in machines:
        model, loss = workload.for_a_worker()
        parameters = state_of(model, loss.whole).parameters
        opened = payload_of(workload, model, loss).open(parameters, machine.arena, Blobs(-1))  # gradients need none
        found |= dict.fromkeys(machine.workers, opened)
    return found


class ProcessInlineWorker:
    """Computes a ticket when the trace says that it arrived, on what its worker had been given to begin with.

    computes  what computes the orders of each worker
    place     gives other such functions when a run was resumed on other machines
    """

    def __init__(
        self, fleet: "RealFleet", computes: Mapping[int, ComputeFunction], contributions: SharedContributions,
        seed: int, place: Callable[[Placement], Mapping[int, ComputeFunction]] | None = None,
    ) -> None:  # fmt: skip
        self._computes = computes
        self._place = place
        self._contributions = contributions
        self._seed = seed
        # as many as a worker has: sums are split up among them
        self._threads = fleet.threads or max(1, len(os.sched_getaffinity(0)) // fleet.workers)

    def place(self, machines: Placement) -> None:
        """The workers are on these machines from now on."""
        if self._place is not None:
            self._computes = self._place(machines)

    def hand_in(self, ticket: Ticket, done: int) -> None:
        promise = self._contributions.promised(ticket)
        order = Order(
            ticket.serial, ticket.work.units, promise.slot, promise.source, promise.indices,
            work_seed(self._seed, ticket.worker, promise.number), 0.0,
        )  # fmt: skip
        ours = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            report = self._computes[ticket.worker](order, lambda block: block < done)[1]
        finally:
            torch.set_num_threads(ours)
        self._contributions.hand_in(ticket, report)

    def halt(self, ticket: Ticket) -> None:
        self._contributions.halt(ticket)

    def join(self, worker: int) -> None:
        self._contributions.forget_worker(worker)

    def leave_out(self, lost: Mapping[int, Collection[Ticket]]) -> None:
        """What each update has to do without, as it was recorded."""
        if isinstance(self._contributions, DistributedGradients):
            self._contributions.leave_out(lost)

    def close(self) -> None:
        self._contributions.detach()
