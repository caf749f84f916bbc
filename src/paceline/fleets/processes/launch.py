"""From the description of a fleet to its processes, and the memory that they share with the server."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

from paceline.core.errors import ConfigError
from paceline.core.messages import Ticket
from paceline.data.sizes import BatchSizes
from paceline.delays import Delay, of_size
from paceline.fleets.processes.channel import IN_ORDER, SPIN, Channel, ChannelLayout
from paceline.fleets.processes.fork_server import FORK_SERVER
from paceline.fleets.processes.group import ProcessWorkers, WorkerHandle
from paceline.fleets.processes.memory import SharedMemory, SharedRegions
from paceline.fleets.processes.payload import payload_of, shared_contributions, slots_needed
from paceline.fleets.processes.places import Places, ranks_of
from paceline.fleets.processes.serialization import pack
from paceline.fleets.processes.supervisor import ForkLauncher, ProcessLauncher, Supervisor
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.processes.worker import WorkerConfig
from paceline.fleets.real import check_processes, open_files_for
from paceline.learning.arena.arena import Layout, ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.contributions import SharedContributions
from paceline.learning.copies import hung_on
from paceline.learning.workload import Workload
from paceline.randomness import stream
from paceline.trace.format import MachineWorkers

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


class ClusterLauncher(ProcessLauncher, Protocol):
    """Starts the processes of one run on several machines."""

    @property
    def machines(self) -> MachineWorkers: ...

    def contributions(self, workload: Workload, /) -> SharedContributions:
        """Gradients that stay on their machines."""
        ...

    def end_waiting(self, is_over: Callable[[], bool], /) -> None:
        """From now on a machine that does not answer is soon given up when the run is over."""
        ...


@dataclass(frozen=True)
class Cluster:
    """The machines of a run: which workers are on this one, and what starts those of all."""

    own: Sequence[int]
    make_launcher: Callable[[SharedContext], ClusterLauncher]
    close: Callable[[], None]  # for when it cannot be made


class RealFleet(Protocol):
    """A fleet of real workers, on this machine or others."""

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
    fleet: RealFleet, workload: Workload, seed: int, open_cluster: Callable[[], Cluster] | None = None
) -> tuple[ProcessWorkers, SharedContributions]:
    """Start the workers of a workload. They get ready while the server does, and the run begins when all are.

    Without a cluster, or with all of its workers on this machine, gradients are in memory that the server shares.
    """
    state = workload.state
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(
            f"the task's model is on {', '.join(elsewhere)}, and worker processes get theirs from the CPU's memory: "
            "leave the model on the CPU, and name the devices of the workers with ProcessFleet(devices=...)"
        )
    if open_cluster is None:
        check_processes(fleet.workers * ranks_of(fleet))
    places = Places.of(fleet, workload)
    with ExitStack() as undo:
        undo.enter_context(open_files_for(fleet.workers, FILES_EACH, FILES if open_cluster is None else FILES_OF_RAY))
        if open_cluster is None:
            _prepare_to_fork(workload, places)
        payload = pack(payload_of(workload, state.model, workload.loss, hung_on(state.parameters)), state.parameters)
        undo.callback(os.close, payload.descriptor)
        cluster = None if open_cluster is None else open_cluster()
        if cluster is not None:
            undo.callback(cluster.close)
            if cluster.own:
                _prepare_to_fork(workload, places)
        spread = cluster is not None and len(cluster.own) < fleet.workers and not workload.hands_in_models
        here = len(cluster.own) if cluster is not None and spread else fleet.workers
        blobs = Blobs()
        undo.callback(blobs.close)
        context, layout, results = _shared_context(
            fleet, workload, places, undo, payload=payload, blobs=blobs, here=here
        )
        remote = None if cluster is None else cluster.make_launcher(context)
        launcher = ForkLauncher(spawn=places.spawn) if remote is None else remote
        undo.callback(launcher.close)
        workers = []
        for number in range(fleet.workers):
            undo.callback(os.close, eventfd := os.eventfd(0))
            channel = Channel(context.regions.channels, layout, number, eventfd)
            workers.append(WorkerHandle(number, channel, fleet.deadline))
        contributions: SharedContributions
        if remote is not None and spread:
            blobs.close()  # gradients need none
            contributions = remote.contributions(workload)
        else:
            contributions = shared_contributions(workload, context.arena, blobs, fleet.workers)
        undo.callback(contributions.detach)
        group = ProcessWorkers(
            Supervisor(workers, context.regions, context.results, launcher), contributions, results, seed,
            minimum=fleet.min_workers, replace=fleet.replace, delays=_delays(fleet, workload, seed),
            machines=remote.machines if remote is not None and spread else None,
        )  # fmt: skip
        if remote is not None:
            remote.end_waiting(lambda: group.is_over)
        undo.pop_all()
        with ExitStack() as closing, open_files_for(fleet.workers, 1, 0):
            closing.callback(group.close)
            group.start_all()
            closing.pop_all()
    return group, contributions


def _shared_context(
    fleet: RealFleet, workload: Workload, places: Places, undo: ExitStack, *,
    payload: SharedMemory, blobs: Blobs, here: int,
) -> tuple[SharedContext, ChannelLayout, int]:  # fmt: skip
    """The memory and the pipe that the server shares with ``here`` workers of this machine; the pipe's reading end."""
    state = workload.state
    layout = Layout(state.parameters, state.buffers, workload.batch_size, len(workload.logged), pages=places.pinned)
    channels = ChannelLayout(fleet.workers, workload.batch_size)

    def kept(memory: SharedMemory) -> SharedMemory:
        undo.callback(os.close, memory.descriptor)
        return memory

    regions = SharedRegions(
        channels=kept(SharedMemory(channels.bytes)),
        arena=kept(SharedMemory(slots_needed(workload, here) * layout.stride)),
        config=kept(pack(_config(fleet, channels, layout, places), ())),
        payload=payload,
        blobs=os.dup(blobs.descriptor),
    )
    undo.callback(os.close, regions.blobs)
    results, theirs = os.pipe()
    for end in (results, theirs):
        undo.callback(os.close, end)
    arena = ParameterArena(layout, regions.arena.tensor())
    return SharedContext(regions, arena, workload, theirs), channels, results


def _prepare_to_fork(workload: Workload, places: Places) -> None:
    """Load torch, which takes seconds, while this process does something else."""
    if workload.hands_in_models:
        FORK_SERVER.load_optimizers()
    if places.sharded:
        FORK_SERVER.load_parallel()
    FORK_SERVER.start()


def _delays(fleet: RealFleet, workload: Workload, seed: int) -> dict[int, Callable[[Ticket], float]]:
    sizes = workload.sizes or BatchSizes.of(workload.batch_size, fleet.workers)
    return {
        worker: partial(_seconds, slow, slow.durations(stream(seed, "delay", worker)), sizes)
        for worker, slow in fleet.slow.items()
        if not isinstance(slow, int | float)
    }


def _seconds(slow: Delay, drawn: Iterator[float], sizes: BatchSizes, ticket: Ticket) -> float:
    """What a worker takes for a ticket at least."""
    samples = ticket.work.samples or sizes.each[ticket.worker]
    return sum(of_size(slow, each, samples, sizes.mean) for each in islice(drawn, ticket.work.mini_batches))


def _config(fleet: RealFleet, channels: ChannelLayout, layout: Layout, places: Places) -> WorkerConfig:
    cores = len(os.sched_getaffinity(0))
    numbers = {worker: slow for worker, slow in fleet.slow.items() if isinstance(slow, int | float)}
    return WorkerConfig(
        channels=channels, layout=layout, path=list(sys.path), directory=os.getcwd(),
        threads=fleet.threads or max(1, cores // (fleet.workers * places.ranks)),
        # where workers wait for a core, nobody must keep one busy
        spin=SPIN if IN_ORDER and fleet.workers * places.ranks <= cores else 0.0,
        slowness=tuple(float(numbers.get(worker, 1.0)) for worker in range(fleet.workers)),
        devices=places.devices, staging=places.staging, ranks=places.ranks, spawn=places.spawn,
        sharded=places.sharded,
    )  # fmt: skip
