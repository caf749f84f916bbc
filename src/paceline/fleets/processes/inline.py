"""The work of worker processes, done in this one: the same code on the same layout of memory, so the same bits."""

import os
from typing import TYPE_CHECKING

import torch

from paceline.core.messages import Ticket
from paceline.fleets.processes.channel import Order
from paceline.fleets.processes.group import Rows
from paceline.fleets.processes.payload import Desk, Equipment, GradientEquipment, TrainingEquipment
from paceline.learning.arena.arena import Layout, Segments
from paceline.learning.arena.blobs import Letters
from paceline.learning.generators import piece_seed
from paceline.learning.gradients import shared as rows
from paceline.learning.gradients.shared import RowContributions
from paceline.learning.job import Job, state_of
from paceline.learning.models import shared as piece_rows
from paceline.learning.models.local_work import Bench
from paceline.learning.models.shared import PieceRows

if TYPE_CHECKING:
    from paceline.fleets.processes.launch import RowsFleet

NO_LETTERS = Letters(descriptor=-1)  # gradients need none


def understudy(fleet: "RowsFleet", job: Job, seed: int) -> "tuple[ProcessInlineWorker, RowContributions]":
    segments = _segments(job, rows.segments_needed(fleet.workers))
    contributions = RowContributions(job.state, segments, fleet.workers)
    model, loss = job.for_a_worker()
    equipment = GradientEquipment(model, job.samples, loss)
    return ProcessInlineWorker(fleet, _desk(equipment, segments, NO_LETTERS), contributions, seed), contributions


def understudy_trainers(fleet: "RowsFleet", bench: Bench) -> "tuple[ProcessInlineWorker, PieceRows]":
    job, letters = bench.job, Letters()
    segments = _segments(job, piece_rows.segments_needed(fleet.workers))
    pieces = PieceRows(bench.trainers, segments, letters)
    model, loss = job.for_a_worker()
    equipment = TrainingEquipment(model, job.samples, loss, job.batch_size, bench.recipe)
    return ProcessInlineWorker(fleet, _desk(equipment, segments, letters), pieces, bench.seed), pieces


def _segments(job: Job, count: int) -> Segments:
    layout = Layout(job.state.parameters, job.state.buffers, job.batch_size)
    return Segments(layout, torch.zeros(count * layout.stride, dtype=torch.uint8))


def _desk(equipment: GradientEquipment | TrainingEquipment, segments: Segments, letters: Letters) -> Desk:
    parameters = state_of(equipment.model, equipment.loss.whole).parameters
    opened: Equipment = equipment
    return opened.open(parameters, segments, letters)


class ProcessInlineWorker:
    """Computes a ticket when the trace says that it arrived, on what its worker had been given to begin with."""

    def __init__(self, fleet: "RowsFleet", desk: Desk, contributions: Rows, seed: int) -> None:
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
