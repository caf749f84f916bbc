"""The work of worker processes, done in this one: the same code on the same layout of memory, so the same bits."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch

from paceline.core.messages import Ticket
from paceline.fleets.processes.channel import Order
from paceline.fleets.processes.payload import ComputeFunction, Place, payload_of, shared_contributions, slots_needed
from paceline.fleets.processes.places import Places
from paceline.learning.arena.arena import Layout, ParameterArena, StagedSlot
from paceline.learning.arena.blobs import Blobs
from paceline.learning.contributions import SharedContributions
from paceline.learning.copies import copied
from paceline.learning.devices import open_device
from paceline.learning.generators import work_seed
from paceline.learning.gradients.distributed import DistributedGradients, MemoryMachine
from paceline.learning.gradients.ranks import InTurn
from paceline.learning.workload import Workload, state_of
from paceline.trace.format import MachineWorkers

if TYPE_CHECKING:
    from paceline.fleets.processes.launch import RealFleet

Opened = Callable[[int, str], ComputeFunction]  # of a worker, and the name of its device


def inline(fleet: "RealFleet", workload: Workload, seed: int) -> "tuple[ProcessInlineWorker, SharedContributions]":
    """A worker in this process for all workers of a fleet, and what it contributes."""
    state, places = workload.state, Places.of(fleet, workload)
    layout = Layout(state.parameters, state.buffers, workload.batch_size, len(workload.logged))
    memory = torch.zeros(slots_needed(workload, fleet.workers) * layout.stride, dtype=torch.uint8)
    arena, blobs = ParameterArena(layout, memory), Blobs()
    contributions = shared_contributions(workload, arena, blobs, fleet.workers)

    @cache
    def on_device(device: str) -> ComputeFunction:
        return _open(workload, arena, blobs, places, device)

    return ProcessInlineWorker(
        fleet, lambda _, device: on_device(device), contributions, seed, places=places
    ), contributions


def _open(workload: Workload, arena: ParameterArena, blobs: Blobs, places: Places, name: str) -> ComputeFunction:
    """What computes orders as the workers on a device do."""
    device = open_device(name)
    model, loss = workload.for_a_worker()
    parameters = state_of(model, loss.whole).parameters
    staged = None
    if places.staging or places.ranks > 1 or device.type != "cpu":
        staged = StagedSlot(arena.layout, device)
        for parameter, values in zip(parameters, staged.parameters, strict=True):
            parameter.data = values
    if device.type != "cpu" and not workload.together:
        loss = copied(loss)  # the server's stays where it is
    place = Place(device, staged, InTurn(places.ranks) if places.ranks > 1 else None)
    return payload_of(workload, model, loss).open(parameters, arena, blobs, place)


def inline_on(
    fleet: "RealFleet", machines: MachineWorkers, workload: Workload, seed: int
) -> "tuple[ProcessInlineWorker, SharedContributions]":
    """The same for workers on several machines, each with an arena of its own."""
    if workload.hands_in_models:
        return inline(fleet, workload, seed)  # models are combined by the server, wherever they were trained
    state, places = workload.state, Places.of(fleet, workload)
    layout = Layout(state.parameters, state.buffers, workload.batch_size, len(workload.logged))
    wire = getattr(fleet, "wire_dtype", None)
    clips = workload.recipe is not None and workload.recipe.clip_norm is not None
    contributions = DistributedGradients(state, layout, workload.logged, exact_norm=clips, levels=workload.levels)

    def place(placed: MachineWorkers) -> Opened:
        made = [
            MemoryMachine.in_memory(workers, layout, None if number == placed.own else wire, workload.levels)
            for number, workers in enumerate(placed.workers)
        ]
        contributions.place(made)
        return opened_on(made, workload, places)

    return ProcessInlineWorker(fleet, place(machines), contributions, seed, places=places, place=place), contributions


def opened_on(machines: Sequence[MemoryMachine], workload: Workload, places: Places) -> "Opened":
    """What computes the orders of each worker, in the arena of its machine."""
    machine_of = {worker: machine for machine in machines for worker in machine.workers}

    def opened(worker: int, device: str) -> ComputeFunction:
        return on_machine(machine_of[worker], device)

    @cache
    def on_machine(machine: MemoryMachine, device: str) -> ComputeFunction:
        return _open(workload, machine.arena, Blobs(-1), places, device)  # gradients need no blobs

    return opened


class ProcessInlineWorker:
    """Computes a ticket when the trace says that it arrived, on what its worker had been given to begin with.

    opened  what computes the orders of a worker on its device
    place   gives another such function when a run was resumed on other machines
    """

    def __init__(
        self, fleet: "RealFleet", opened: Opened, contributions: SharedContributions, seed: int, *, places: Places,
        place: Callable[[MachineWorkers], Opened] | None = None,
    ) -> None:  # fmt: skip
        self._opened = opened
        self._place = place
        self._contributions = contributions
        self._seed = seed
        self._places = places
        # as many as a worker has: sums are split up among them
        self._threads = fleet.threads or max(1, len(os.sched_getaffinity(0)) // (fleet.workers * places.ranks))

    def place(self, machines: MachineWorkers) -> None:
        """The workers are on these machines from now on."""
        if self._place is not None:
            self._opened = self._place(machines)

    def hand_in(self, ticket: Ticket, done: int) -> None:
        promise = self._contributions.promised(ticket)
        order = Order(
            ticket.serial, ticket.work.units, promise.slot, promise.source, promise.indices,
            work_seed(self._seed, ticket.worker, promise.number), 0.0, ticket.version,
        )  # fmt: skip
        ours = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            opened = self._opened(ticket.worker, self._places.device(ticket.worker))
            report = opened(order, lambda block: block < done)[1]
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
