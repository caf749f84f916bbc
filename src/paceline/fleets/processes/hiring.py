"""From the description of a fleet to its processes, and the memory that they share with the server."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from paceline.core.errors import ConfigError
from paceline.delays import Delay
from paceline.fleets.processes.crew import ProcessCrew, Rows
from paceline.fleets.processes.deadline import Deadline
from paceline.fleets.processes.equipment import Equipment, GradientEquipment, TrainingEquipment
from paceline.fleets.processes.mailbox import IN_ORDER, SPIN, Shape
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.nursery import NURSERY
from paceline.fleets.processes.parcel import pack
from paceline.fleets.processes.roster import Forked, Memories, Roster, Starter
from paceline.fleets.processes.worker import Instructions
from paceline.learning import piece_rows, rows
from paceline.learning.copies import hung_on
from paceline.learning.job import Job
from paceline.learning.letters import Letters
from paceline.learning.local_work import Bench
from paceline.learning.piece_rows import PieceRows
from paceline.learning.rows import RowContributions
from paceline.learning.segments import Layout, Segments
from paceline.randomness import stream

Handed = TypeVar("Handed", bound=Rows)


@dataclass(frozen=True)
class Premises:
    """Where the workers of a run work, as far as it is the server's."""

    memories: Memories
    segments: Segments
    job: Job
    post: int  # where workers tell what they have done


MakeStarter = Callable[[Premises], Starter]


class RowsFleet(Protocol):
    """A fleet whose workers hand in rows, wherever they are."""

    @property
    def workers(self) -> int: ...

    @property
    def slow(self) -> Mapping[int, float | Delay]: ...

    @property
    def threads(self) -> int | None: ...

    @property
    def replace(self) -> bool: ...

    @property
    def min_workers(self) -> int: ...

    @property
    def deadline(self) -> Deadline: ...


def hire(
    fleet: RowsFleet, job: Job, seed: int, starter: MakeStarter | None = None
) -> tuple[ProcessCrew, RowContributions]:
    """Start the workers of a job. They get ready while the server does, and the run begins when all are."""
    equipment = GradientEquipment(job.state.model, job.samples, job.loss, hung_on(job.state.parameters))

    def contributions(segments: Segments, letters: Letters) -> RowContributions:
        letters.close()  # gradients need none
        return RowContributions(job.state, segments, fleet.workers)

    needed = rows.segments_needed(fleet.workers)
    return _hire(fleet, job, seed, equipment=equipment, segments=needed, contributions=contributions, starter=starter)


def hire_trainers(fleet: RowsFleet, bench: Bench, starter: MakeStarter | None = None) -> tuple[ProcessCrew, PieceRows]:
    """The same for workers that train models of their own."""
    if starter is None:
        NURSERY.load_optimizers()
    job = bench.job
    hung = hung_on(job.state.parameters)
    equipment = TrainingEquipment(job.state.model, job.samples, job.loss, job.batch_size, bench.recipe, hung)

    def contributions(segments: Segments, letters: Letters) -> PieceRows:
        return PieceRows(bench.trainers, segments, letters)

    needed = piece_rows.segments_needed(fleet.workers)
    return _hire(
        fleet, job, bench.seed, equipment=equipment, segments=needed, contributions=contributions, starter=starter
    )


def _hire(
    fleet: RowsFleet, job: Job, seed: int, *, equipment: Equipment, segments: int,
    contributions: Callable[[Segments, Letters], Handed], starter: MakeStarter | None,
) -> tuple[ProcessCrew, Handed]:  # fmt: skip
    state, workers = job.state, fleet.workers
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(f"worker processes train on the CPU, and the model is on {', '.join(elsewhere)}")
    if starter is None:
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
    shared = Segments(layout, memories.segments.tensor())
    post, theirs = os.pipe()
    try:
        started_by = Forked() if starter is None else starter(Premises(memories, shared, job, theirs))
    except BaseException:
        memories.close()
        letters.close()
        os.close(post)
        os.close(theirs)
        raise
    handed_in = contributions(shared, letters)
    delays = {
        worker: slow.durations(stream(seed, "delay", worker))
        for worker, slow in fleet.slow.items()
        if not isinstance(slow, int | float)
    }
    roster = Roster(shape, fleet.deadline, memories, theirs, started_by)
    crew = ProcessCrew(roster, handed_in, post, seed, minimum=fleet.min_workers, replace=fleet.replace, delays=delays)
    try:
        crew.gather()
    except BaseException:
        crew.close()
        raise
    return crew, handed_in


def _instructions(fleet: RowsFleet, shape: Shape, layout: Layout) -> Instructions:
    cores = len(os.sched_getaffinity(0))
    numbers = {worker: slow for worker, slow in fleet.slow.items() if isinstance(slow, int | float)}
    return Instructions(
        mailboxes=shape, layout=layout, path=list(sys.path), directory=os.getcwd(),
        threads=fleet.threads or max(1, cores // fleet.workers),
        # where workers wait for a core, nobody must keep one busy
        spin=SPIN if IN_ORDER and fleet.workers <= cores else 0.0,
        slowness=tuple(float(numbers.get(worker, 1.0)) for worker in range(fleet.workers)),
    )  # fmt: skip
