"""The work of worker processes, done in this one: the same code on the same layout of memory, so the same bits."""

import os
from typing import TYPE_CHECKING

import torch

from paceline.core.messages import Ticket
from paceline.fleets.processes.channel import Order
from paceline.fleets.processes.group import Rows
from paceline.fleets.processes.payload import ComputeFunction, GradientPayload, TrainingPayload, WorkerPayload
from paceline.learning.arena.arena import Layout, ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.generators import piece_seed
from paceline.learning.gradients import shared as rows
from paceline.learning.gradients.shared import SharedGradients
from paceline.learning.models import shared as piece_rows
from paceline.learning.models.local_work import Bench
from paceline.learning.models.shared import SharedModels
from paceline.learning.workload import Workload, state_of

if TYPE_CHECKING:
    from paceline.fleets.processes.launch import RealFleet

NO_BLOBS = Blobs(descriptor=-1)  # gradients need none


def inline(fleet: "RealFleet", workload: Workload, seed: int) -> "tuple[ProcessInlineWorker, SharedGradients]":
    arena = _arena(workload, rows.slots_needed(fleet.workers))
    contributions = SharedGradients(workload.state, arena, fleet.workers)
    model, loss = workload.for_a_worker()
    payload = GradientPayload(model, workload.samples, loss)
    return ProcessInlineWorker(fleet, _desk(payload, arena, NO_BLOBS), contributions, seed), contributions


def understudy_trainers(fleet: "RealFleet", bench: Bench) -> "tuple[ProcessInlineWorker, SharedModels]":
    workload, blobs = bench.workload, Blobs()
    arena = _arena(workload, piece_rows.slots_needed(fleet.workers))
    pieces = SharedModels(bench.trainers, arena, blobs)
    model, loss = workload.for_a_worker()
    payload = TrainingPayload(model, workload.samples, loss, workload.batch_size, bench.recipe)
    return ProcessInlineWorker(fleet, _desk(payload, arena, blobs), pieces, bench.seed), pieces


def _arena(workload: Workload, count: int) -> ParameterArena:
    layout = Layout(workload.state.parameters, workload.state.buffers, workload.batch_size)
    return ParameterArena(layout, torch.zeros(count * layout.stride, dtype=torch.uint8))


def _desk(payload: GradientPayload | TrainingPayload, arena: ParameterArena, blobs: Blobs) -> ComputeFunction:
    parameters = state_of(payload.model, payload.loss.whole).parameters
    opened: WorkerPayload = payload
    return opened.open(parameters, arena, blobs)


class ProcessInlineWorker:
    """Computes a ticket when the trace says that it arrived, on what its worker had been given to begin with."""

    def __init__(self, fleet: "RealFleet", desk: ComputeFunction, contributions: Rows, seed: int) -> None:
        self._desk = desk
        self._contributions = contributions
        self._seed = seed
        # as many as a worker has: sums are split up among them
        self._threads = fleet.threads or max(1, len(os.sched_getaffinity(0)) // fleet.workers)

    def hand_in(self, ticket: Ticket, done: int) -> None:
        promise = self._contributions.promised(ticket)
        order = Order(
            ticket.serial, ticket.work.units, promise.row, promise.source, promise.indices,
            piece_seed(self._seed, ticket.worker, promise.number), 0.0,
        )  # fmt: skip
        ours = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            brought = self._desk(order, lambda block: block < done)[1]
        finally:
            torch.set_num_threads(ours)
        self._contributions.hand_in(ticket, brought)

    def halt(self, ticket: Ticket) -> None:
        self._contributions.halt(ticket)

    def join(self, worker: int) -> None:
        self._contributions.forget_worker(worker)

    def close(self) -> None:
        self._contributions.detach()
