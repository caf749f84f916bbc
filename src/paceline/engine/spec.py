"""One value for a run: everything that its result depends on, besides the task and the code."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.data.batches import Sampling, Shuffled
from paceline.data.partition import Equal, Partition
from paceline.data.sizes import BatchSizes, read_sizes
from paceline.engine.arguments import batch_size_of, check_arguments, first_sizes, sizes_for, strategy_for, whole
from paceline.engine.limits import Every, Stop
from paceline.fleets.base import Fleet
from paceline.learning.gradients.compensation import check_single
from paceline.learning.optimizers import MakeOptimizer, MakeScheduler, Recipe
from paceline.learning.task import Task
from paceline.strategies.traits import deals_sizes, replicas_of

CODE: dict[str, Any] = {"compared": False}  # functions cannot be compared; a checkpoint has what they made


@dataclass(frozen=True)
class RunSpec:
    """Everything that the result of a run depends on, besides the task and the code; see ``train`` for the fields.

    It is kept in ``config.json`` as data. A run is resumed or replayed only with a spec that is the same field by
    field. A new field needs a default, which is what runs had that were begun before it.
    """

    strategy: Strategy
    fleet: Fleet
    stop: Stop
    training_samples: int
    optimizer: MakeOptimizer = field(metadata=CODE)
    scheduler: MakeScheduler | None = field(default=None, metadata=CODE)
    clip_norm: float | None = None
    batch_size: int | tuple[int, ...] = 32
    partition: Partition = field(default_factory=Equal)
    sampling: Sampling = field(default_factory=Shuffled)
    every: Every | None = None
    seed: int = 0
    micro_batches: int = 1
    compensate_delay: float = 0.0

    @classmethod
    def of(
        cls, task: Task, *, strategy: Strategy | str, fleet: Fleet, optimizer: MakeOptimizer, stop: Stop | None = None,
        batch_size: int | Sequence[int] | None = None, partition: Partition = Equal(), sampling: Sampling = Shuffled(),
        scheduler: MakeScheduler | None = None, clip_norm: float | None = None, every: Every | None = None,
        seed: int = 0, micro_batches: int = 1, compensate_delay: float = 0.0,
    ) -> "RunSpec":  # fmt: skip
        """The spec of a run from what a user gave, checked."""
        check_arguments(
            task=task, scheduler=scheduler, clip_norm=clip_norm, stop=stop, every=every, partition=partition,
            sampling=sampling, compensate_delay=compensate_delay,
        )  # fmt: skip
        check_arguments(fleet=fleet)
        size = batch_size_of(batch_size, fleet.workers)
        rule = strategy_for(strategy, fleet, size)
        if batch_size is None and deals_sizes(rule):
            check_fits(rule, fleet.workers, None)
            size = read_sizes(first_sizes(rule, fleet.workers), fleet.workers)
        spec = cls(
            strategy=rule,
            fleet=fleet,
            stop=_earliest(stop, rule),
            training_samples=len(task.training_samples()),
            optimizer=optimizer,
            scheduler=scheduler,
            clip_norm=None if clip_norm is None else float(clip_norm),
            batch_size=size,
            partition=partition,
            sampling=sampling,
            every=every,
            seed=whole("seed", seed),
            micro_batches=whole("micro_batches", micro_batches),
            compensate_delay=float(compensate_delay),
        )
        _ = spec.recipe
        if spec.micro_batches > max(spec.sizes.each):
            raise ConfigError(
                f"micro_batches={spec.micro_batches} leaves some without a sample: mini-batches have at most "
                f"{max(spec.sizes.each)}"
            )
        if not 0 <= spec.compensate_delay < math.inf:
            raise ConfigError(
                f"compensate_delay={compensate_delay} is not possible: at least 0 and finite, such as 0.04"
            )
        if spec.compensate_delay:
            check_single(rule, fleet.workers)
        if replicas_of(rule) and spec.sizes.unequal is not None:
            raise ConfigError(
                f"{type(rule).__name__} lets workers compute the same mini-batches, which so have one size: give one "
                f"batch_size, such as {max(spec.sizes.each)}"
            )
        if spec.sizes.vary and not isinstance(partition, Equal):
            raise ConfigError(
                f"{type(rule).__name__} deals the samples anew when sizes change, which {partition} does not allow: "
                "use partition=Equal(), or give batch_size=[...] and Synchronous()"
            )
        return spec

    @property
    def sizes(self) -> BatchSizes:
        """How many samples the mini-batches of each worker have."""
        return sizes_for(self.strategy, self.fleet.workers, self.batch_size)

    @property
    def recipe(self) -> Recipe:
        """How a step along the combined gradient is made."""
        return Recipe(self.optimizer, self.scheduler, self.clip_norm)


def _earliest(stop: Stop | None, strategy: Strategy) -> Stop:
    """What was asked for, but no more updates than the strategy makes."""
    rounds: int | None = getattr(strategy, "rounds", None)
    if stop is None and rounds is None:
        raise ConfigError("a run needs an end: give stop=Stop(updates= | epochs= | seconds= | target= | metric=)")
    if stop is None or rounds is None:
        return stop or Stop(updates=rounds)
    return replace(stop, updates=rounds if stop.updates is None else min(stop.updates, rounds))
