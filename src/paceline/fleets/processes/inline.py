"""The work of worker processes, done in this one: the same code on the same layout of memory, so the same bits."""

import os
from collections.abc import Callable
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
from paceline.learning.gradients.ranks import InTurn
from paceline.learning.workload import Workload, state_of

if TYPE_CHECKING:
    from paceline.fleets.processes.launch import RealFleet


def inline(fleet: "RealFleet", workload: Workload, seed: int) -> "tuple[ProcessInlineWorker, SharedContributions]":
    """A worker in this process for all workers of a fleet, and what it contributes."""
    state, places = workload.state, Places.of(fleet, workload)
    layout = Layout(state.parameters, state.buffers, workload.batch_size, len(workload.logged))
    memory = torch.zeros(slots_needed(workload, fleet.workers) * layout.stride, dtype=torch.uint8)
    arena, blobs = ParameterArena(layout, memory), Blobs()
    contributions = shared_contributions(workload, arena, blobs, fleet.workers)

    def opened(device: str) -> ComputeFunction:
        return _open(workload, arena, blobs, places, device)

    return ProcessInlineWorker(fleet, opened, contributions, seed, places), contributions


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


class ProcessInlineWorker:
    """Computes a ticket when the trace says that it arrived, on what its worker had been given to begin with."""

    def __init__(
        self, fleet: "RealFleet", opened: Callable[[str], ComputeFunction], contributions: SharedContributions,
        seed: int, places: Places,
    ) -> None:  # fmt: skip
        self._opened = cache(opened)  # one for each device
        self._contributions = contributions
        self._seed = seed
        self._places = places
        # as many as a worker has: sums are split up among them
        self._threads = fleet.threads or max(1, len(os.sched_getaffinity(0)) // (fleet.workers * places.ranks))

    def hand_in(self, ticket: Ticket, done: int) -> None:
        promise = self._contributions.promised(ticket)
        order = Order(
            ticket.serial, ticket.work.units, promise.slot, promise.source, promise.indices,
            work_seed(self._seed, ticket.worker, promise.number), 0.0, ticket.version,
        )  # fmt: skip
        ours = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            report = self._opened(self._places.device(ticket.worker))(order, lambda block: block < done)[1]
        finally:
            torch.set_num_threads(ours)
        self._contributions.hand_in(ticket, report)

    def halt(self, ticket: Ticket) -> None:
        self._contributions.halt(ticket)

    def join(self, worker: int) -> None:
        self._contributions.forget_worker(worker)

    def close(self) -> None:
        self._contributions.detach()
