"""From the description of a fleet to its processes, and the memory that they share with the server."""

import os
import sys
from collections.abc import Callable
from typing import TypeVar

from paceline.core.errors import ConfigError
from paceline.fleets.processes.crew import ProcessCrew, Rows
from paceline.fleets.processes.equipment import Equipment, GradientEquipment, TrainingEquipment
from paceline.fleets.processes.fleet import ProcessFleet
from paceline.fleets.processes.mailbox import IN_ORDER, SPIN, Shape
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.nursery import NURSERY
from paceline.fleets.processes.parcel import pack
from paceline.fleets.processes.roster import Memories, Roster
from paceline.fleets.processes.worker import Instructions
from paceline.learning import piece_rows, rows
from paceline.learning.job import Job
from paceline.learning.letters import Letters
from paceline.learning.local_work import Bench
from paceline.learning.piece_rows import PieceRows
from paceline.learning.rows import RowContributions
from paceline.learning.segments import Layout, Segments
from paceline.randomness import stream

Handed = TypeVar("Handed", bound=Rows)


def hire(fleet: ProcessFleet, job: Job, seed: int) -> tuple[ProcessCrew, RowContributions]:
    """Start the workers of a job. They get ready while the server does, and the run begins when all are."""
    equipment = GradientEquipment(job.state.model, job.samples, job.loss)

    def contributions(segments: Segments, letters: Letters) -> RowContributions:
        letters.close()  # gradients need none
        return RowContributions(job.state, segments, fleet.workers)

    needed = rows.segments_needed(fleet.workers)
    return _hire(fleet, job, seed, equipment=equipment, segments=needed, contributions=contributions)


def hire_trainers(fleet: ProcessFleet, bench: Bench) -> tuple[ProcessCrew, PieceRows]:
    """The same for workers that train models of their own."""
    NURSERY.load_optimizers()
    job = bench.job
    equipment = TrainingEquipment(job.state.model, job.samples, job.loss, job.batch_size, bench.recipe)

    def contributions(segments: Segments, letters: Letters) -> PieceRows:
        return PieceRows(bench.trainers, segments, letters)

    needed = piece_rows.segments_needed(fleet.workers)
    return _hire(fleet, job, bench.seed, equipment=equipment, segments=needed, contributions=contributions)


def _hire(
    fleet: ProcessFleet, job: Job, seed: int, *, equipment: Equipment, segments: int,
    contributions: Callable[[Segments, Letters], Handed],
) -> tuple[ProcessCrew, Handed]:  # fmt: skip
    state, workers = job.state, fleet.workers
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(f"worker processes train on the CPU, and the model is on {', '.join(elsewhere)}")
    NURSERY.wake()
    layout = Layout(state.parameters, state.buffers, job.batch_size)
    shape = Shape(workers, job.batch_size)
    letters = Letters()
    memories = Memories(
        mailboxes=SharedMemory(shape.bytes),
        segments=SharedMemory(segments * layout.stride),
        instructions=pack(_instructions(fleet, shape, layout), ()),
        equipment=pack(equipment, state.parameters),
        letters=os.dup(letters.descriptor),
    )
    handed_in = contributions(Segments(layout, memories.segments.tensor()), letters)
    post, theirs = os.pipe()
    delays = {
        worker: slow.durations(stream(seed, "delay", worker))
        for worker, slow in fleet.slow.items()
        if not isinstance(slow, int | float)
    }
    roster = Roster(shape, fleet.deadline, memories, theirs)
    crew = ProcessCrew(roster, handed_in, post, seed, minimum=fleet.min_workers, replace=fleet.replace, delays=delays)
    try:
        crew.gather()
    except BaseException:
        crew.close()
        raise
    return crew, handed_in


def _instructions(fleet: ProcessFleet, shape: Shape, layout: Layout) -> Instructions:
    cores = len(os.sched_getaffinity(0))
    numbers = {worker: slow for worker, slow in fleet.slow.items() if isinstance(slow, int | float)}
    return Instructions(
        mailboxes=shape, layout=layout, path=list(sys.path), directory=os.getcwd(),
        threads=fleet.threads or max(1, cores // fleet.workers),
        # where workers wait for a core, nobody must keep one busy
        spin=SPIN if IN_ORDER and fleet.workers <= cores else 0.0,
        slowness=tuple(float(numbers.get(worker, 1.0)) for worker in range(fleet.workers)),
    )  # fmt: skip
