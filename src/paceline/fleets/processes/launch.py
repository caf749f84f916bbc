"""From the description of a fleet to its processes, and the memory that they share with the server."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from paceline.core.errors import ConfigError
from paceline.delays import Delay
from paceline.fleets.processes.channel import IN_ORDER, SPIN, Shape
from paceline.fleets.processes.fork_server import NURSERY
from paceline.fleets.processes.group import ProcessWorkers, Rows
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.payload import Equipment, GradientEquipment, TrainingEquipment
from paceline.fleets.processes.serialization import pack
from paceline.fleets.processes.supervisor import Forked, Memories, Starter, Supervisor
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.processes.worker import Instructions
from paceline.fleets.real import open_files_for
from paceline.learning.arena.arena import Layout, Segments
from paceline.learning.arena.blobs import Letters
from paceline.learning.copies import hung_on
from paceline.learning.gradients import shared as rows
from paceline.learning.gradients.shared import RowContributions
from paceline.learning.job import Job
from paceline.learning.models import shared as piece_rows
from paceline.learning.models.local_work import Bench
from paceline.learning.models.shared import PieceRows
from paceline.randomness import stream

Handed = TypeVar("Handed", bound=Rows)
# Open files of the server: of each worker an event, a socket, a pidfd and one on the way; besides, memory, pipes, and
# what a run writes. Ray's own connections come on top.
FILES_EACH, FILES, FILES_OF_RAY = 4, 32, 160


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
    def deadline(self) -> SilenceTimeout: ...


def launch(
    fleet: RowsFleet, job: Job, seed: int, starter: MakeStarter | None = None
) -> tuple[ProcessWorkers, RowContributions]:
    """Start the workers of a job. They get ready while the server does, and the run begins when all are."""
    equipment = GradientEquipment(job.state.model, job.samples, job.loss, hung_on(job.state.parameters))

    def contributions(segments: Segments, letters: Letters) -> RowContributions:
        letters.close()  # gradients need none
        return RowContributions(job.state, segments, fleet.workers)

    needed = rows.segments_needed(fleet.workers)
    return _hire(fleet, job, seed, equipment=equipment, segments=needed, contributions=contributions, starter=starter)


def hire_trainers(
    fleet: RowsFleet, bench: Bench, starter: MakeStarter | None = None
) -> tuple[ProcessWorkers, PieceRows]:
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
) -> tuple[ProcessWorkers, Handed]:  # fmt: skip
    state = job.state
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(f"worker processes train on the CPU, and the model is on {', '.join(elsewhere)}")
    with ExitStack() as undo:
        undo.enter_context(open_files_for(fleet.workers, FILES_EACH, FILES if starter is None else FILES_OF_RAY))
        if starter is None:
            NURSERY.wake()
        layout = Layout(state.parameters, state.buffers, job.batch_size)
        shape = Shape(fleet.workers, job.batch_size)
        letters = Letters()
        undo.callback(letters.close)

        def kept(memory: SharedMemory) -> SharedMemory:
            undo.callback(os.close, memory.descriptor)
            return memory

        memories = Memories(
            mailboxes=kept(SharedMemory(shape.bytes)),
            segments=kept(SharedMemory(segments * layout.stride)),
            instructions=kept(pack(_instructions(fleet, shape, layout), ())),
            equipment=kept(pack(equipment, state.parameters)),
            letters=os.dup(letters.descriptor),
        )
        undo.callback(os.close, memories.letters)
        shared = Segments(layout, memories.segments.tensor())
        post, theirs = os.pipe()
        for end in (post, theirs):
            undo.callback(os.close, end)
        started_by = Forked() if starter is None else starter(Premises(memories, shared, job, theirs))
        undo.callback(started_by.close)
        roster = Supervisor(shape, fleet.deadline, memories, theirs, started_by)
        undo.callback(roster.close_mailboxes)
        handed_in = contributions(shared, letters)
        undo.callback(handed_in.detach)
        crew = ProcessWorkers(
            roster, handed_in, post, seed, minimum=fleet.min_workers, replace=fleet.replace, delays=_delays(fleet, seed)
        )
        undo.pop_all()
        with ExitStack() as closing, open_files_for(fleet.workers, 1, 0):
            closing.callback(crew.close)
            crew.gather()
            closing.pop_all()
    return crew, handed_in


def _delays(fleet: RowsFleet, seed: int) -> dict[int, Iterator[float]]:
    return {
        worker: slow.durations(stream(seed, "delay", worker))
        for worker, slow in fleet.slow.items()
        if not isinstance(slow, int | float)
    }


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
