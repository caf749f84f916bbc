"""From the description of a fleet to its processes, and the memory that they share with the server."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol, TypeVar

from paceline.core.errors import ConfigError
from paceline.delays import Delay
from paceline.fleets.processes.channel import IN_ORDER, SPIN, ChannelLayout
from paceline.fleets.processes.fork_server import FORK_SERVER
from paceline.fleets.processes.group import ProcessWorkers, Rows
from paceline.fleets.processes.memory import SharedMemory, SharedRegions
from paceline.fleets.processes.payload import GradientPayload, TrainingPayload, WorkerPayload
from paceline.fleets.processes.serialization import pack
from paceline.fleets.processes.supervisor import ForkLauncher, ProcessLauncher, Supervisor
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.processes.worker import WorkerConfig
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

    regions: SharedRegions
    arena: ParameterArena
    workload: Workload
    results: int  # the writing end of the pipe on which workers tell what they have done


MakeLauncher = Callable[[SharedContext], ProcessLauncher]


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
    fleet: RealFleet, workload: Workload, seed: int, make_launcher: MakeLauncher | None = None
) -> tuple[ProcessWorkers, SharedGradients]:
    """Start the workers of a workload. They get ready while the server does, and the run begins when all are."""
    payload = GradientPayload(workload.state.model, workload.samples, workload.loss, hung_on(workload.state.parameters))

    def contributions(arena: ParameterArena, blobs: Blobs) -> SharedGradients:
        blobs.close()  # gradients need none
        return SharedGradients(workload.state, arena, fleet.workers)

    needed = rows.slots_needed(fleet.workers)
    return _hire(
        fleet, workload, seed, payload=payload, arena=needed, contributions=contributions, make_launcher=make_launcher
    )


def hire_trainers(
    fleet: RealFleet, bench: Bench, make_launcher: MakeLauncher | None = None
) -> tuple[ProcessWorkers, SharedModels]:
    """The same for workers that train models of their own."""
    if make_launcher is None:
        FORK_SERVER.load_optimizers()
    workload = bench.workload
    hung = hung_on(workload.state.parameters)
    payload = TrainingPayload(
        workload.state.model, workload.samples, workload.loss, workload.batch_size, bench.recipe, hung
    )

    def contributions(arena: ParameterArena, blobs: Blobs) -> SharedModels:
        return SharedModels(bench.trainers, arena, blobs)

    needed = piece_rows.slots_needed(fleet.workers)
    return _hire(
        fleet,
        workload,
        bench.seed,
        payload=payload,
        arena=needed,
        contributions=contributions,
        make_launcher=make_launcher,
    )


def _hire(
    fleet: RealFleet, workload: Workload, seed: int, *, payload: WorkerPayload, arena: int,
    contributions: Callable[[ParameterArena, Blobs], Handed], make_launcher: MakeLauncher | None,
) -> tuple[ProcessWorkers, Handed]:  # fmt: skip
    state = workload.state
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(f"worker processes train on the CPU, and the model is on {', '.join(elsewhere)}")
    with ExitStack() as undo:
        undo.enter_context(open_files_for(fleet.workers, FILES_EACH, FILES if make_launcher is None else FILES_OF_RAY))
        if make_launcher is None:
            FORK_SERVER.start()
        layout = Layout(state.parameters, state.buffers, workload.batch_size)
        channels = ChannelLayout(fleet.workers, workload.batch_size)
        blobs = Blobs()
        undo.callback(blobs.close)

        def kept(memory: SharedMemory) -> SharedMemory:
            undo.callback(os.close, memory.descriptor)
            return memory

        regions = SharedRegions(
            channels=kept(SharedMemory(channels.bytes)),
            arena=kept(SharedMemory(arena * layout.stride)),
            config=kept(pack(_config(fleet, channels, layout), ())),
            payload=kept(pack(payload, state.parameters)),
            blobs=os.dup(blobs.descriptor),
        )
        undo.callback(os.close, regions.blobs)
        shared = ParameterArena(layout, regions.arena.tensor())
        results, theirs = os.pipe()
        for end in (results, theirs):
            undo.callback(os.close, end)
        context = SharedContext(regions, shared, workload, theirs)
        launcher = ForkLauncher() if make_launcher is None else make_launcher(context)
        undo.callback(launcher.close)
        supervisor = Supervisor(channels, fleet.deadline, regions, theirs, launcher)
        undo.callback(supervisor.close_channels)
        handed_in = contributions(shared, blobs)
        undo.callback(handed_in.detach)
        group = ProcessWorkers(
            supervisor, handed_in, results, seed,
            minimum=fleet.min_workers, replace=fleet.replace, delays=_delays(fleet, seed),
        )  # fmt: skip
        undo.pop_all()
        with ExitStack() as closing, open_files_for(fleet.workers, 1, 0):
            closing.callback(group.close)
            group.start_all()
            closing.pop_all()
    return group, handed_in


def _delays(fleet: RealFleet, seed: int) -> dict[int, Iterator[float]]:
    return {
        worker: slow.durations(stream(seed, "delay", worker))
        for worker, slow in fleet.slow.items()
        if not isinstance(slow, int | float)
    }


def _config(fleet: RealFleet, channels: ChannelLayout, layout: Layout) -> WorkerConfig:
    cores = len(os.sched_getaffinity(0))
    numbers = {worker: slow for worker, slow in fleet.slow.items() if isinstance(slow, int | float)}
    return WorkerConfig(
        channels=channels, layout=layout, path=list(sys.path), directory=os.getcwd(),
        threads=fleet.threads or max(1, cores // fleet.workers),
        # where workers wait for a core, nobody must keep one busy
        spin=SPIN if IN_ORDER and fleet.workers <= cores else 0.0,
        slowness=tuple(float(numbers.get(worker, 1.0)) for worker in range(fleet.workers)),
    )  # fmt: skip
