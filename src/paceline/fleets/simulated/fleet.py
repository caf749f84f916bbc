"""Workers on a virtual clock: deterministic, and as fast as the gradients can be computed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields, shown
from paceline.core.messages import Joined, Left, Ticket
from paceline.data.sizes import BatchSizes
from paceline.delays import Delay, check_delay, sized
from paceline.fleets.base import NoInlineWorker, check_labels, check_number
from paceline.fleets.simulated.workers import SimulatedWorkers
from paceline.learning.cost import Cost

if TYPE_CHECKING:
    from paceline.learning.contributions import Contributions
    from paceline.learning.workload import Workload

__all__ = ["Network", "SimulatedFleet", "SimulatedWorkers"]
CHOICES = {
    "recall": ("complete", "block", "abandon"),
    "ties": ("index", "reverse", "batch"),
    "evaluation": ("fused", "exact"),
}


@dataclass(frozen=True)
class Network:
    """A message takes ``latency`` seconds, and its size over ``bandwidth`` (bytes a second)."""

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.latency < math.inf:
            raise ConfigError(f"a network latency of {self.latency} is not possible: at least 0 seconds")
        if not self.bandwidth > 0:
            raise ConfigError(f"a bandwidth of {self.bandwidth} is not possible: more than 0 bytes a second")

    def seconds(self, message_bytes: int) -> float:
        return self.latency + message_bytes / self.bandwidth


@dataclass(frozen=True)
class SimulatedFleet:
    """Workers in virtual time.

    delays   one ``Delay`` for each worker, or one for all (then say how many ``workers``): what a mini-batch takes, of
             the mean size where workers have sizes of their own, and in proportion to its samples; ``PerSample`` has a
             fixed part too
    network  what it takes to download the model and to hand in a contribution, both of the model's size
    recall   how a worker answers a recall: it hands in the whole batch at once (``complete``, the paper's fiction),
             finishes the block it is at (``block``, the paper's Algorithm 1), or drops that block (``abandon``)
    changes  ``Left`` and ``Joined`` events to come; a worker whose first one is ``Joined`` is not there at the start
    evaluation  gradients of one model version in one pass where the model allows it (``fused``), or each worker's by
             itself (``exact``: slower, the same to rounding)
    ties     whose turn it is of those that arrive at one instant: by ``index``, ``reverse``, or all at once (``batch``)
    labels   one for each worker, if groups are to be formed by them
    server_seconds  what the one server takes for each contribution, one after the other in the order in which they come
    threads  of torch; by default one for small passes and those that torch is set to for large ones
    """

    delays: Delay | Sequence[Delay]
    workers: int = 0
    network: Network = Network()
    recall: Literal["complete", "block", "abandon"] = "block"
    changes: Sequence[Left | Joined] = ()
    ties: Literal["index", "reverse", "batch"] = "index"
    evaluation: Literal["fused", "exact"] = "fused"
    labels: Sequence[str] = field(default=(), repr=False)  # no part of a run but by the groups that come of them
    server_seconds: float = 0.0
    threads: int | None = None
    worker_delays: tuple[Delay, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.delays, Sequence) and not isinstance(self.delays, str):
            delays = tuple(self.delays)
            if self.workers not in (0, len(delays)):
                raise ConfigError(f"{self.workers} workers were asked for, but {len(delays)} delays: give one for each")
        else:
            check_number(self.workers)
            delays = (self.delays,) * self.workers
        if not delays:
            raise ConfigError("a fleet needs at least one worker: give a list of delays, or one delay and workers=")
        for delay in dict(zip(map(id, delays), delays, strict=True)).values():
            check_delay(delay)
        object.__setattr__(self, "worker_delays", delays)
        object.__setattr__(self, "workers", len(delays))
        for name, choices in CHOICES.items():
            if (chosen := getattr(self, name)) not in choices:
                raise ConfigError(f"{name}={chosen!r} is unknown: choose one of {', '.join(choices)}")
        if not 0 <= self.server_seconds < math.inf:
            raise ConfigError(
                f"server_seconds={self.server_seconds} is not possible: give a finite number of at least 0"
            )
        if not isinstance(self.network, Network):
            raise ConfigError(f"network={shown(self.network)} is none: give Network(latency=0.01)")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads={self.threads} is not possible: at least 1, or none to have it chosen by size")
        check_labels(self.labels, self.workers)
        self._check_changes()

    def __repr__(self) -> str:
        """Leave ``server_seconds`` and ``threads`` out where they have their defaults, as older run directories do."""
        given = [each.name for each in fields(self) if each.repr]
        for name, unasked in (("server_seconds", 0.0), ("threads", None)):
            if getattr(self, name) == unasked:
                given.remove(name)
        return f"SimulatedFleet({', '.join(f'{name}={getattr(self, name)!r}' for name in given)})"

    def _check_changes(self) -> None:
        for change in self.changes:
            if not isinstance(change, Left | Joined):
                raise ConfigError(f"changes: {shown(change)} is no change: give Left(at=20.0, worker=3), or Joined")
        last: dict[int, Left | Joined] = {}
        for change in sorted(self.changes, key=lambda change: change.at):
            if not 0 <= change.worker < self.workers:
                raise ConfigError(f"{change} names no worker: the fleet has workers 0 to {self.workers - 1}")
            if not 0 <= change.at < math.inf:
                raise ConfigError(f"{change} has no possible time: it must be at least 0")
            if change.worker in last and type(last[change.worker]) is type(change):
                raise ConfigError(f"{change} cannot follow {last[change.worker]}: the worker would do it twice")
            last[change.worker] = change

    @property
    def medians(self) -> tuple[float, ...]:
        """What a mini-batch typically takes each worker, without transfers; of ``PerSample`` a sample."""
        return tuple(delay.median for delay in self.worker_delays)

    def sized(self, sizes: BatchSizes) -> "SimulatedFleet":
        """The same workers with the delays of mini-batches of these sizes."""
        pairs = zip(self.worker_delays, sizes.each, strict=True)
        delays = tuple(sized(delay, samples, sizes.mean) for delay, samples in pairs)
        return self if delays == self.worker_delays else replace(self, delays=delays)

    def open(
        self,
        seed: int,
        message_bytes: int = 0,
        cost: Callable[[Ticket], Cost] | None = None,
        sizes: BatchSizes | None = None,
    ) -> SimulatedWorkers:
        """The workers of a run without a model, or of one whose messages have that size, or as each ticket costs."""
        return SimulatedWorkers(self, seed, message_bytes, cost, sizes)

    def launch(self, workload: "Workload", seed: int) -> "tuple[SimulatedWorkers, Contributions]":
        """The workers of a run; what they compute is evaluated when a step asks for it."""
        if workload.aggregation is None:
            workers = self.open(seed, workload.state.message_bytes, sizes=workload.sizes)
        else:
            workers = self.open(seed, cost=workload.aggregation.cost, sizes=workload.sizes)
        return workers, self.inline(workload, seed)[1]

    def inline(self, workload: "Workload", seed: int) -> "tuple[NoInlineWorker, Contributions]":
        """There is nothing to do before a step asks for it."""
        from paceline.learning.gradients.lazy import LazyGradients
        from paceline.learning.models.contributions import LazyModels
        from paceline.learning.threads import Threads

        threads = Threads(self.threads)
        if workload.hands_in_models:
            return NoInlineWorker(), LazyModels(workload, threads)
        return NoInlineWorker(), LazyGradients(workload, fused=self.evaluation == "fused", seed=seed, threads=threads)
