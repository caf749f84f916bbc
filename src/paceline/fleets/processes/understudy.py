"""The work of worker processes, done in this one: the same code on the same layout of memory, so the same bits."""

import copy
import os
from typing import TYPE_CHECKING

import torch

from paceline.core.facts import Ticket
from paceline.learning.contributions import own_seed
from paceline.learning.gradient_work import GradientWork
from paceline.learning.job import Job
from paceline.learning.rows import RowContributions, segments_needed
from paceline.learning.segments import Layout, Segments

if TYPE_CHECKING:
    from paceline.fleets.processes.fleet import ProcessFleet


def understudy(fleet: "ProcessFleet", job: Job, seed: int) -> "tuple[ProcessUnderstudy, RowContributions]":
    state = job.state
    layout = Layout(state.parameters, state.buffers, job.batch_size)
    segments = Segments(layout, torch.zeros(segments_needed(fleet.workers) * layout.stride, dtype=torch.uint8))
    contributions = RowContributions(state, segments, fleet.workers)
    model = copy.deepcopy(state.model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    work = GradientWork(model, parameters, job.samples, job.loss)
    threads = fleet.threads or max(1, len(os.sched_getaffinity(0)) // fleet.workers)
    return ProcessUnderstudy(work, segments, contributions, seed, threads), contributions


class ProcessUnderstudy:
    """Computes a ticket when the trace says that it arrived, on the weights that its worker had downloaded."""

    def __init__(
        self, work: GradientWork, segments: Segments, contributions: RowContributions, seed: int, threads: int
    ) -> None:
        self._work = work
        self._segments = segments
        self._contributions = contributions
        self._seed = seed
        self._threads = threads  # as many as a worker has: sums are split up among them

    def hand_in(self, ticket: Ticket, done: int) -> None:
        promise = self._contributions.promised(ticket)
        source, row = self._segments[promise.source], self._segments[promise.row]
        units, seed = ticket.work.units, own_seed(self._seed, ticket)
        ours = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            brought = self._work.compute(
                source, row, promise.indices, units=units, seed=seed, go_on=lambda block: block < done
            )[1]
        finally:
            torch.set_num_threads(ours)
        self._contributions.hand_in(ticket, brought)

    def halt(self, ticket: Ticket) -> None:
        self._contributions.halt(ticket)

    def join(self, worker: int) -> None:
        self._contributions.forget_worker(worker)

    def close(self) -> None:
        self._contributions.detach()
