"""What a run is made of, from its spec: shards, batches, workers and the server; all of it ends with the run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.core.stateful import Stateful, check_stateful
from paceline.data.batches import Batches, OfUnequalSizes
from paceline.data.partition import Indices, deal
from paceline.data.replicas import ReplicaBatches, shared_shards
from paceline.data.sizes import BatchSizes
from paceline.engine.build import launch
from paceline.engine.loop import seldom_collecting
from paceline.engine.spec import RunSpec
from paceline.fleets.base import Fleet, WorkerGroup
from paceline.fleets.replayed import Replayed
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.learning.generators import own_generators
from paceline.learning.learner import Learner
from paceline.learning.task import Task
from paceline.learning.threads import own_threads
from paceline.learning.workload import Workload, workload_of
from paceline.pruning.shards import PrunedShards, pruned_shards
from paceline.randomness import stream
from paceline.strategies.traits import most_samples, replicas_of


@dataclass(frozen=True)
class Setup:
    """The parts of a run that has begun. An epoch has ``epoch_samples``: what the shards hold in whole batches."""

    workload: Workload
    batches: Batches
    workers: WorkerGroup
    server: Learner
    epoch_samples: int

    @property
    def pruned(self) -> PrunedShards | None:
        return pruned_shards(self.batches)

    def stateful(self, *, needed: bool) -> dict[str, Stateful]:
        """The parts that a checkpoint holds, by their names in it.

        Where one of them has no state, none; a ``ConfigError`` names it if checkpoints are ``needed``.
        """
        parts: dict[str, object] = {
            "server": self.server,
            "sampling": self.batches,
            "crew": self.workers,
            "contributions": self.server.contributions,
        }
        if not needed and not all(isinstance(part, Stateful) for part in parts.values()):
            return {}
        return dict(check_stateful(parts))


@contextmanager
def set_up(task: Task, spec: RunSpec) -> Iterator[Setup]:
    """Start the workers of a run, and end them with it. Random numbers and threads are the run's own meanwhile."""
    size, sizes, seed = spec.batch_size, spec.sizes, spec.seed
    with own_generators(seed):  # data sets may draw random numbers when they are looked at
        replicas = replicas_of(spec.strategy)
        number = len(replicas) or spec.fleet.workers
        dealt = deal(spec.partition, task.training_samples(), number, size, stream(seed, "partition"))
        shards = shared_shards(dealt, replicas) if replicas else dealt
    with _environment(spec.fleet, seed):
        if (most := most_samples(spec.strategy) or 0) > len(task.training_samples()):
            raise ConfigError(
                f"the data set has {len(task.training_samples())} samples, fewer than the {most} that the workers may "
                "have at once: give a smaller total"
            )
        workload = workload_of(task, shards, sizes.largest, sizes, spec.micro_batches)
        batches = _batches(spec, dealt, sizes)
        if replicas:
            batches = ReplicaBatches(batches, replicas)
        _check_losses(workload, batches)
        workers, server = launch(
            spec.strategy, spec.fleet, workload, spec.recipe, batches=batches, seed=seed,
            compensate_delay=spec.compensate_delay,
        )  # fmt: skip
        epoch_samples = sum(
            len(shard) // size * size for shard, size in zip(dealt, sizes.each[: len(dealt)], strict=True)
        )
        try:
            yield Setup(workload, batches, workers, server, epoch_samples)
        finally:
            workers.close()


def _check_losses(workload: Workload, batches: Batches) -> None:
    """Refuse to choose samples by losses of single samples that are known not to be told."""
    pruned = pruned_shards(batches)
    if pruned is not None and pruned.by_losses and workload.loss.state()["separable"] is False:
        raise ConfigError(
            f"FinePruning chooses samples by their losses, and {workload.loss.why_whole}: let the loss, or the step, "
            "return one for each sample, or use RandomPruning"
        )


def _batches(spec: RunSpec, shards: Sequence[Indices], sizes: BatchSizes) -> Batches:
    batches = spec.sampling.open(shards, sizes.each[0], spec.seed)
    if sizes.unequal is not None:
        if not isinstance(batches, OfUnequalSizes):
            raise ConfigError(
                f"{spec.sampling} draws mini-batches of one size, not of {shown(list(sizes.each))}: use "
                "sampling=Shuffled() or Resampled(), or one batch_size"
            )
        batches.begin_with(sizes.each)
    return batches


@contextmanager
def _environment(fleet: Fleet, seed: int) -> Iterator[None]:
    """Random numbers and threads of a run's own; those of the process are as they were when it ends."""
    own = fleet.fleet if isinstance(fleet, Replayed) else fleet
    threads = own_threads(own.threads) if isinstance(own, SimulatedFleet) else nullcontext()
    with seldom_collecting(), own_generators(seed), threads:
        yield
