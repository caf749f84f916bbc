"""What the runs of a Ray fleet share: a connection to a cluster, a reservation, and agents and shards that may stay."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.fields import nearest
from paceline.fleets.ray.agent import Agent
from paceline.fleets.ray.callbacks import CallbackThread
from paceline.fleets.ray.connection import NODE_ID, ActorHandle, Connection
from paceline.fleets.ray.fleet import RayFleet
from paceline.fleets.ray.shards import Shard
from paceline.fleets.real import check_processes

log = logging.getLogger("paceline")

RESERVED_WITHIN = 10.0  # seconds that others may take to free what is missing
FREED_WITHIN = 10.0  # seconds that shards may take to free what they had for the last run
CONDITIONS = ("!", "in(")  # how a label's value begins that is a condition


class ClusterSession:
    """The use of a cluster by one fleet: for one run, or for several if it is ``persistent``.

    Workers that are on the same node stay together on one machine, which Ray may move to another node as a whole.
    """

    def __init__(self, fleet: RayFleet, *, persistent: bool) -> None:
        self.persistent = persistent
        self.callbacks = CallbackThread()
        self.machines: Sequence[Sequence[int]] = ()  # the workers of each
        self.own_machine = -1  # the number of the server's own: its workers share memory with the server
        self._closed = False
        self._runs = count()
        self._idle: dict[int, ActorHandle] = {}
        self._idle_shards: Sequence[ActorHandle] = ()
        self._connection: Connection | None = None
        if fleet.address is None:
            check_processes(fleet.workers)
        try:
            total = {name: amount * fleet.workers for name, amount in fleet.resources_per_worker.items()}
            self._connection = Connection(fleet.address, total, self.callbacks, trusted=fleet.trust_address)
            self._reserve(fleet, self._connection)
            if fleet.shards > len(self.machines):
                number = len(self.machines)
                log.warning("shards=%d on %d machines: those of one machine share its link", fleet.shards, number)
            # what Ray makes visible of accelerators only an actor gets to see
            if fleet.share_memory and fleet.shards == 1 and not fleet.resources_per_worker.get("GPU"):
                self.own_machine = self._connection.machine_here()
        except BaseException:
            self.close()
            raise

    @property
    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def next_run(self) -> int:
        return next(self._runs)

    def start(self, machine: int) -> ActorHandle:
        """An agent for a machine: a new one, or one that stayed after the last run."""
        return self._idle.pop(machine, None) or self.connection.start(Agent, machine)

    def keep(self, machine: int, agent: ActorHandle) -> bool:
        """Keep an agent for the next run. Returns false if there is none."""
        if self.persistent:
            self._idle[machine] = agent
        return self.persistent

    def start_shards(self, machines: Sequence[int]) -> Sequence[ActorHandle]:
        """An actor for a shard on each of these machines: new ones, or those that stayed after the last run."""
        stayed, self._idle_shards = self._idle_shards, ()
        freed = [shard.ask("free", results=1, group="") for shard in stayed]
        if stayed and all(isinstance(answer(FREED_WITHIN), list) for answer in freed):
            return stayed
        for shard in stayed:
            shard.kill()
        return self.connection.start_on(Shard, machines)

    def end_shards(self, shards: Sequence[ActorHandle]) -> None:
        """Keep the shards of a run for the next one, if there may be one."""
        for shard in shards:
            if self.persistent:
                shard.send("free", group="")
            else:
                shard.kill()
        self._idle_shards = shards if self.persistent else ()

    def close(self) -> None:
        """Let everything go. It may be called twice."""
        if self._closed:
            return
        self._closed = True
        for actor in (*self._idle.values(), *self._idle_shards):
            actor.kill()
        self.callbacks.close()
        if self._connection is not None:
            self._connection.close()

    def _reserve(self, fleet: RayFleet, connection: Connection) -> None:
        each, workers = fleet.resources_per_worker, fleet.workers
        labels = [{name: value} for name, _, value in (label.partition("=") for label in fleet.labels)]
        nodes = connection.nodes()
        check_processes(workers, len(nodes))
        check_resources(each, workers, nodes)
        check_labels(each, labels, nodes)
        spread = fleet.placement == "spread"
        self.machines = connection.reserve(each, workers, within=RESERVED_WITHIN, spread=spread, labels=labels)
        if self.machines:
            check_processes(max(map(len, self.machines)))
            return
        free, total = connection.resources()
        raise ConfigError(
            f"{workers} workers of {_shown(each)} found no room within {RESERVED_WITHIN:g} s: {_shown(free)} is free "
            f"now, of {_shown(total)}" + (f"; wanted labels: {', '.join(_listed(labels))}" if labels else "")
        )


# Capacity: what the cluster can never offer is refused at once, without waiting.


def check_resources(
    each: Mapping[str, float], workers: int, nodes: Sequence[Mapping[str, Any]], which: str = ""
) -> None:
    """Raise ``ConfigError`` if the nodes do not have what each of the workers needs, whoever uses it now."""
    for name, amount in each.items():
        amounts = [node["Resources"].get(name, 0) for node in nodes]
        total, largest = sum(amounts), max(amounts, default=0)
        if amount > largest:
            raise ConfigError(
                f"a worker of {_shown(each)} fits no node{which} of the cluster: none has more than {largest:g} of "
                f"{name}"
            )
        if amount * workers > total:
            raise ConfigError(
                f"{workers} workers of {_shown(each)} need {amount * workers:g} of {name}, and the cluster has "
                f"{total:g} on {len(nodes)} nodes{which}: {amount * workers - total:g} is missing"
            )


def check_labels(
    each: Mapping[str, float], labels: Sequence[Mapping[str, str]], nodes: Sequence[Mapping[str, Any]]
) -> None:
    """Raise ``ConfigError`` if no node has a wanted label, or those that have it lack the resources."""
    for (name, value), workers in Counter(pair for label in labels for pair in label.items()).items():
        if value.startswith(CONDITIONS):
            continue  # only Ray knows which nodes meet it
        having = [node for node in nodes if node["Labels"].get(name) == value]
        if not having:
            known = _listed(node["Labels"] for node in nodes)
            missing = f"no node of the cluster has the label {name}={value}, wanted for {workers} of the workers"
            raise ConfigError(
                f"{missing}: {nearest(f'{name}={value}', known)}" if known
                else f"{missing}: its nodes have no labels, which ray start --labels {name}={value} would give them"
            )  # fmt: skip
        check_resources(each, workers, having, f" labelled {name}={value}")


def _listed(labels: Iterable[Mapping[str, str]]) -> list[str]:
    return sorted({f"{name}={value}" for label in labels for name, value in label.items() if name != NODE_ID})


def _shown(resources: Mapping[str, float]) -> str:
    """Amounts by name, without the resources that Ray uses internally."""
    internal = ("node:", "object_store", "bundle")
    own = {name: amount for name, amount in resources.items() if not (name.startswith(internal) or "_group_" in name)}
    texts = [
        f"{amount / 2**30:.3g} GiB {name}" if name == "memory" else f"{amount:g} {name}" for name, amount in own.items()
    ]
    return ", ".join(texts) or "nothing"
