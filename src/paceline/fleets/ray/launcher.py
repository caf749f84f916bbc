"""Starts the workers of one run on the machines of a cluster, and knows which machine has which."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING

from paceline.fleets.processes.fork_server import FORK_SERVER
from paceline.fleets.processes.group import WorkerHandle
from paceline.fleets.processes.launch import SharedContext
from paceline.fleets.processes.payload import slots_needed
from paceline.fleets.processes.supervisor import WorkerProcess
from paceline.fleets.ray.client import AgentClient
from paceline.fleets.ray.machine import RemoteMachine, ServerSide, WeightSender
from paceline.fleets.ray.messages import HostSettings
from paceline.fleets.ray.notices import ANSWERED_WITHIN, CLOUDS, RAY, DrainWatch
from paceline.fleets.ray.session import ClusterSession
from paceline.fleets.ray.shards import RemoteShards
from paceline.fleets.ray.wire import WireFormat
from paceline.learning.arena.blobs import Blobs
from paceline.learning.gradients.distributed import DistributedGradients, MemoryMachine
from paceline.learning.gradients.sharded import ShardedGradients
from paceline.learning.gradients.sharding import bounds_of
from paceline.learning.workload import Workload
from paceline.trace.format import MachineWorkers

if TYPE_CHECKING:
    from paceline.fleets.ray.fleet import RayFleet


class MachineLauncher:
    """Starts processes: on the server's own node by itself, on others by their agents."""

    sends_later = True

    def __init__(self, fleet: "RayFleet", session: ClusterSession, context: SharedContext) -> None:
        self._session = session
        self._context = context
        self._is_over: Callable[[], bool] = bool
        models, layout = context.workload.hands_in_models, context.arena.layout
        self._common = ServerSide(
            session, session.next_run(), context.results, layout, lambda: self._stored, fleet.deadline.at_first,
            context.arena if models else None, Blobs(context.regions.blobs) if models else None, self._is_to_end,
        )  # fmt: skip
        self._clients: dict[int, AgentClient] = {}
        clouds = tuple(each for each in fleet.notices if each in CLOUDS)
        for number, workers in enumerate(session.machines):
            if number != session.own_machine:
                # for models slots have the same numbers here and there: only what is used takes memory
                slots = slots_needed(context.workload, fleet.workers if models else len(workers))
                gpus = fleet.resources_per_worker.get("GPU", 0.0)
                settings = HostSettings(tuple(workers), slots, models, fleet.wire_dtype, gpus, clouds)
                self._clients[number] = AgentClient(number, settings, self._common)
        self._of_worker = {
            worker: self._clients[number]
            for number, workers in enumerate(session.machines)
            for worker in workers
            if number in self._clients
        }
        self._wire_dtype = fleet.wire_dtype
        self._wire = WireFormat(layout, fleet.wire_dtype)
        self._shards = fleet.shards
        self._servers: RemoteShards | None = None
        self._watch: DrainWatch | None = None
        if self._clients and fleet.notices:
            ask = partial(session.connection.draining, ANSWERED_WITHIN) if RAY in fleet.notices else dict
            self._watch = DrainWatch(ask, [*self._clients.values()], session.connection.node_here())

    @property
    def machines(self) -> MachineWorkers:
        return MachineWorkers(tuple(tuple(each) for each in self._session.machines), self._session.own_machine)

    def contributions(self, workload: Workload) -> DistributedGradients:
        """The gradients of all machines, with one server or several shards."""
        layout, machines = self._context.arena.layout, self._session.machines
        send = WeightSender(self._wire, self._common.message)
        exact = workload.recipe is not None and workload.recipe.clip_norm is not None
        if self._shards > 1:
            bounds = bounds_of(layout, self._shards)
            where = [shard % len(machines) for shard in range(self._shards)]
            self._servers = RemoteShards(self._session.start_shards(where), layout, self._wire_dtype)
            remote = [RemoteMachine(each, self._clients[i], send, bounds) for i, each in enumerate(machines)]
            return ShardedGradients(
                workload.state, layout, workload.logged, remote, self._servers, levels=workload.levels
            )
        return DistributedGradients(
            workload.state, layout, workload.logged,
            [
                RemoteMachine(workers, self._clients[number], send)
                if number in self._clients
                else MemoryMachine(workers, self._context.arena)
                for number, workers in enumerate(machines)
            ],
            exact_norm=exact, levels=workload.levels,
        )  # fmt: skip

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of weights, gradients and models that were sent to other machines, and received."""
        clients = self._clients.values()
        return sum(client.sent for client in clients), sum(client.received for client in clients)

    @cached_property
    def _stored(self) -> list[object]:
        """Configuration and payload in the object store, once a machine needs them."""
        regions = self._context.regions
        return [self._session.connection.put(each.tensor().numpy()) for each in (regions.config, regions.payload)]

    def start(self, worker: WorkerHandle, descriptors: list[int]) -> WorkerProcess:
        client = self._of_worker.get(worker.number)
        return FORK_SERVER.fork(worker.number, descriptors) if client is None else client.start(worker)

    def end_waiting(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over

    def _is_to_end(self) -> bool:
        return self._is_over()

    def flush(self) -> None:
        for client in self._clients.values():
            client.flush()

    def close(self) -> None:
        """Call it when all processes have ended."""
        self._is_over = bool  # it refers to the run, and the run to this: break the cycle
        if self._watch is not None:
            self._watch.close()
        for client in self._clients.values():
            client.close()
        if self._servers is not None:
            self._session.end_shards(self._servers.actors)
        if self._session.persistent:
            self._session.callbacks.drain()
        else:
            self._session.close()
