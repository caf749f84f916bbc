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
from paceline.fleets.processes.payload import GradientPayload, TrainingPayload, WorkerPayload
from paceline.fleets.processes.serialization import pack
from paceline.fleets.processes.supervisor import Forked, Memories, Starter, Supervisor
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.processes.worker import Instructions
from paceline.fleets.real import open_files_for
from paceline.learning.arena.arena import Layout, ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.copies import hung_on
from paceline.learning.gradients import shared as rows
from paceline.learning.gradients.shared import SharedGradients
from paceline.learning.models import shared as piece_rows
from paceline.learning.models.local_work import Bench
from paceline.learning.models.shared import SharedModels
from paceline.learning.workload import Workload
from paceline.randomness import stream

Handed = TypeVar("Handed", bound=Rows)
# Open files of the server: of each worker an event, a socket, a pidfd and one on the way; besides, memory, pipes, and
# what a run writes. Ray's own connections come on top.
FILES_EACH, FILES, FILES_OF_RAY = 4, 32, 160


@dataclass(frozen=True)
class SharedContext:
    """Where the workers of a run work, as far as it is the server's."""

    memories: Memories
    arena: ParameterArena
    workload: Workload
    post: int  # where workers tell what they have done


MakeStarter = Callable[[SharedContext], Starter]


class RealFleet(Protocol):
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
    fleet: RealFleet, workload: Workload, seed: int, starter: MakeStarter | None = None
) -> tuple[ProcessWorkers, SharedGradients]:
    """Start the workers of a workload. They get ready while the server does, and the run begins when all are."""
    payload = GradientPayload(workload.state.model, workload.samples, workload.loss, hung_on(workload.state.parameters))

    def contributions(arena: ParameterArena, blobs: Blobs) -> SharedGradients:
        blobs.close()  # gradients need none
        return SharedGradients(workload.state, arena, fleet.workers)

    needed = rows.slots_needed(fleet.workers)
    return _hire(fleet, workload, seed, payload=payload, arena=needed, contributions=contributions, starter=starter)


def hire_trainers(
    fleet: RealFleet, bench: Bench, starter: MakeStarter | None = None
) -> tuple[ProcessWorkers, SharedModels]:
    """The same for workers that train models of their own."""
    if starter is None:
        NURSERY.load_optimizers()
    workload = bench.workload
    hung = hung_on(workload.state.parameters)
    payload = TrainingPayload(
        workload.state.model, workload.samples, workload.loss, workload.batch_size, bench.recipe, hung
    )

    def contributions(arena: ParameterArena, blobs: Blobs) -> SharedModels:
        return SharedModels(bench.trainers, arena, blobs)

    needed = piece_rows.slots_needed(fleet.workers)
    return _hire(
        fleet, workload, bench.seed, payload=payload, arena=needed, contributions=contributions, starter=starter
    )


def _hire(
    fleet: RealFleet, workload: Workload, seed: int, *, payload: WorkerPayload, arena: int,
    contributions: Callable[[ParameterArena, Blobs], Handed], starter: MakeStarter | None,
) -> tuple[ProcessWorkers, Handed]:  # fmt: skip
    state = workload.state
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(f"worker processes train on the CPU, and the model is on {', '.join(elsewhere)}")
    with ExitStack() as undo:
        undo.enter_context(open_files_for(fleet.workers, FILES_EACH, FILES if starter is None else FILES_OF_RAY))
        if starter is None:
            NURSERY.wake()
        layout = Layout(state.parameters, state.buffers, workload.batch_size)
        shape = Shape(fleet.workers, workload.batch_size)
        blobs = Blobs()
        undo.callback(blobs.close)

        def kept(memory: SharedMemory) -> SharedMemory:
            undo.callback(os.close, memory.descriptor)
            return memory

        memories = Memories(
            mailboxes=kept(SharedMemory(shape.bytes)),
            arena=kept(SharedMemory(arena * layout.stride)),
            instructions=kept(pack(_instructions(fleet, shape, layout), ())),
            payload=kept(pack(payload, state.parameters)),
            blobs=os.dup(blobs.descriptor),
        )
        undo.callback(os.close, memories.blobs)
        shared = ParameterArena(layout, memories.arena.tensor())
        post, theirs = os.pipe()
        for end in (post, theirs):
            undo.callback(os.close, end)
        started_by = Forked() if starter is None else starter(SharedContext(memories, shared, workload, theirs))
        undo.callback(started_by.close)
        roster = Supervisor(shape, fleet.deadline, memories, theirs, started_by)
        undo.callback(roster.close_mailboxes)
        handed_in = contributions(shared, blobs)
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


def _delays(fleet: RealFleet, seed: int) -> dict[int, Iterator[float]]:
    return {
        worker: slow.durations(stream(seed, "delay", worker))
        for worker, slow in fleet.slow.items()
        if not isinstance(slow, int | float)
    }


def _instructions(fleet: RealFleet, shape: Shape, layout: Layout) -> Instructions:
    cores = len(os.sched_getaffinity(0))
    numbers = {worker: slow for worker, slow in fleet.slow.items() if isinstance(slow, int | float)}
    return Instructions(
        mailboxes=shape, layout=layout, path=list(sys.path), directory=os.getcwd(),
        threads=fleet.threads or max(1, cores // fleet.workers),
        # where workers wait for a core, nobody must keep one busy
        spin=SPIN if IN_ORDER and fleet.workers <= cores else 0.0,
        slowness=tuple(float(numbers.get(worker, 1.0)) for worker in range(fleet.workers)),
    )  # fmt: skip
