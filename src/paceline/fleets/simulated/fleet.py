"""Workers on a virtual clock: deterministic, and as fast as the gradients can be computed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import ConfigError
from paceline.core.fields import MOST_SECONDS, check_fields, check_most, shown
from paceline.core.messages import Joined, Leaving, Left, Ticket
from paceline.data.sizes import BatchSizes
from paceline.delays import Delay, Hourly, SlowSpells, check_delay, sized
from paceline.fleets.base import NoInlineWorker, check_labels, check_number, check_threads
from paceline.fleets.simulated.cluster import WIRES, Machines
from paceline.fleets.simulated.conditions import Availability
from paceline.fleets.simulated.workers import SimulatedWorkers
from paceline.learning.cost import Cost

if TYPE_CHECKING:
    from paceline.learning.contributions import Contributions
    from paceline.learning.workload import Workload

__all__ = ["Network", "SimulatedFleet", "SimulatedWorkers"]
LEAST_BANDWIDTH = 1e-3  # bytes a second
MOST_PRICE = 1e12  # of a second
CHOICES = {
    "recall": ("complete", "block", "abandon"),
    "ties": ("index", "reverse", "batch"),
    "evaluation": ("fused", "exact"),
    "wire": tuple(WIRES),
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
        check_most(self, MOST_SECONDS, "latency")
        if not self.bandwidth >= LEAST_BANDWIDTH:
            raise ConfigError(
                f"a bandwidth of {self.bandwidth} is not possible: more than 0 bytes a second, at least "
                f"{LEAST_BANDWIDTH:g}"
            )

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
             itself (``exact``: slower; the same to rounding, but that dropout has the random numbers of processes)
    ties     whose turn it is of those that arrive at one instant: by ``index``, ``reverse``, or all at once (``batch``)
    labels   one for each worker, if groups are to be formed by them
    server_seconds  what the one server takes for each contribution, one after the other in the order in which they come
    threads  of torch; by default one for small passes and those that torch is set to for large ones
    machines  workers on machines with links that they share, instead of ``network`` and ``server_seconds``
    wire     ``bfloat16`` for messages of half the size; what is computed stays the same
    availability  workers that are lost and come back at random
    slowness  workers that are slow together: ``delays.SlowSpells`` and ``delays.Hourly``
    prices   of a second of each worker, or one for all, for the price of a run in its summary
    """

    delays: Delay | Sequence[Delay]
    workers: int = 0
    network: Network = Network()
    recall: Literal["complete", "block", "abandon"] = "block"
    changes: Sequence[Left | Joined | Leaving] = ()
    ties: Literal["index", "reverse", "batch"] = "index"
    evaluation: Literal["fused", "exact"] = "fused"
    labels: Sequence[str] = field(default=(), repr=False)  # no part of a run but by the groups that come of them
    server_seconds: float = 0.0
    threads: int | None = None
    machines: Machines | None = None
    wire: Literal["float32", "bfloat16"] = "float32"
    availability: Availability | None = None
    slowness: Sequence[SlowSpells | Hourly] = ()
    prices: float | Sequence[float] = ()
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
        check_most(self, MOST_SECONDS, "server_seconds")
        if not isinstance(self.network, Network):
            raise ConfigError(f"network={shown(self.network)} is none: give Network(latency=0.01)")
        check_threads(self.threads)
        check_labels(self.labels, self.workers)
        self._check_changes()
        self._check_machines()
        self._check_conditions()

    def __repr__(self) -> str:
        """Leave newer fields out where they have their defaults, as older run directories do."""
        newer = ("server_seconds", "threads", "machines", "wire", "availability", "slowness", "prices")
        given = [each.name for each in fields(self) if each.repr]
        given = [name for name in given if name not in newer or getattr(self, name) != getattr(SimulatedFleet, name)]
        return f"SimulatedFleet({', '.join(f'{name}={getattr(self, name)!r}' for name in given)})"

    def _check_machines(self) -> None:
        if self.machines is None:
            return
        if not isinstance(self.machines, Machines):
            raise ConfigError(f"machines={shown(self.machines)} are none: give Machines(workers_each=8)")
        for name in ("network", "server_seconds"):
            if getattr(self, name) != getattr(SimulatedFleet, name):
                raise ConfigError(
                    f"machines have links and a server of their own: leave {name}={shown(getattr(self, name))} out, "
                    "and give Machines(gigabits=..., latency=..., sum_seconds=..., step_seconds=...)"
                )

    def _check_conditions(self) -> None:
        if not isinstance(self.availability, Availability | None):
            raise ConfigError(f"availability={shown(self.availability)} is none: give Availability(3600.0, 60.0)")
        for worker in self.comes_and_goes:
            if not 0 <= worker < self.workers:
                raise ConfigError(f"availability names worker {worker}: the fleet has workers 0 to {self.workers - 1}")
            if any(change.worker == worker for change in self.changes):
                raise ConfigError(f"worker {worker} leaves or joins by changes and by availability: choose one of them")
        if isinstance(self.slowness, str) or not isinstance(self.slowness, Sequence):
            raise ConfigError(f"slowness={shown(self.slowness)} is no list: give [SlowSpells(3.0, 60.0, 600.0)]")
        for each in self.slowness:
            if not isinstance(each, SlowSpells | Hourly):
                raise ConfigError(f"slowness: {shown(each)} is none: give SlowSpells(3.0, 60.0, 600.0), or Hourly")
        prices = self.prices if isinstance(self.prices, Sequence) else (self.prices,)
        for price in prices:
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price <= MOST_PRICE:
                raise ConfigError(
                    f"prices: {shown(price)} is no price of a second: a number of at least 0, and at most "
                    f"{MOST_PRICE:g}"
                )
        if isinstance(self.prices, Sequence) and len(prices) not in (0, self.workers):
            raise ConfigError(f"{len(prices)} prices for {self.workers} workers: give one for each, or one for all")

    @property
    def worker_prices(self) -> tuple[float, ...]:
        """The price of a second of each worker; none if no prices are given."""
        if isinstance(self.prices, Sequence):
            return tuple(map(float, self.prices))
        return (float(self.prices),) * self.workers

    @property
    def comes_and_goes(self) -> Sequence[int]:
        """The workers that are lost and come back at random."""
        return () if self.availability is None else self.availability.workers or range(self.workers)

    def machine_of(self, worker: int) -> int:
        """The machine that a worker is on; its own, if nothing is said of machines."""
        return worker if self.machines is None else self.machines.machine(worker)

    def message_seconds(self, message_bytes: int) -> float:
        """What a message of a size takes that has its links for itself."""
        return self.network.seconds(math.ceil(message_bytes * WIRES[self.wire]))

    def _check_changes(self) -> None:
        if isinstance(self.changes, str) or not isinstance(self.changes, Sequence):
            raise ConfigError(f"changes={shown(self.changes)} is no list: give [Left(at=20.0, worker=3)]")
        for change in self.changes:
            if not isinstance(change, Left | Joined | Leaving):
                raise ConfigError(f"changes: {shown(change)} is no change: give Left(at=20.0, worker=3), or Joined")
        last: dict[int, Left | Joined | Leaving] = {}
        for change in sorted(self.changes, key=lambda change: change.at):
            if not 0 <= change.worker < self.workers:
                raise ConfigError(f"{change} names no worker: the fleet has workers 0 to {self.workers - 1}")
            if not 0 <= change.at <= MOST_SECONDS:
                raise ConfigError(
                    f"{shown(change)} has no possible time: it must be at least 0, and at most {MOST_SECONDS:g}"
                )
            before = last.get(change.worker)
            if isinstance(change, Leaving) and not change.at <= change.by <= MOST_SECONDS:
                raise ConfigError(
                    f"{change} names no time to come: by={change.by} must be at least {change.at:g}, and at most "
                    f"{MOST_SECONDS:g}"
                )
            if type(before) is type(change) or (isinstance(before, Leaving) and isinstance(change, Joined)):
                raise ConfigError(f"{change} cannot follow {before}: the worker would do it twice")
            if isinstance(before, Left) and isinstance(change, Leaving):
                raise ConfigError(f"{change} cannot follow {before}: the worker is not there")
            last[change.worker] = change
        for change in last.values():
            if isinstance(change, Leaving):
                raise ConfigError(f"{change} is not followed by Left(at={change.by}, worker={change.worker}): add it")

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
        if self.machines is not None:
            if workload.aggregation is not None and "distilled_steps" in workload.aggregation.kinds:
                raise ConfigError(
                    "machines send sums of what their workers hand in, and an ensemble needs every model: leave "
                    "machines out, and give Network(latency, bandwidth)"
                )
            workers = self.open(seed, workload.state.message_bytes, sizes=workload.sizes)
        elif workload.aggregation is None:
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
