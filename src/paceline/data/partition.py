"""Partition of the training samples: one shard, an array of indices, per worker."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields

Indices = NDArray[np.int64]


class Labelled(Protocol):
    """Samples with a length and targets; ``targets()`` may have to load every sample."""

    def __len__(self) -> int: ...

    def targets(self) -> NDArray[Any]: ...


class Partition(Protocol):
    """Splits the training samples between the workers: the argument ``partition`` of ``paceline.train``."""

    def shards(self, samples: Labelled, workers: int, generator: np.random.Generator) -> Sequence[Indices]:
        """One array of indices per worker; no index twice."""
        ...


@dataclass(frozen=True)
class Equal:
    """Random (IID) split into shards whose sizes differ by at most one.

    Where workers have mini-batches of unequal sizes, shards are in proportion to these: all workers come to the end of
    their shards together.
    """

    def shards(self, samples: Labelled, workers: int, generator: np.random.Generator) -> Sequence[Indices]:
        return _sorted(np.array_split(generator.permutation(len(samples)), workers))

    def in_proportion(
        self, samples: Labelled, sizes: Sequence[int], generator: np.random.Generator
    ) -> Sequence[Indices]:
        """Shards in proportion to these sizes of mini-batches."""
        ends = np.cumsum(proportional(len(samples), sizes))[:-1]
        return _sorted(np.split(generator.permutation(len(samples)), ends))


def proportional(count: int, sizes: Sequence[int]) -> list[int]:
    """Whole numbers with the sum ``count``, each less than one away from its share in proportion to the sizes.

    As long as ``count`` is no smaller than all sizes together, none is smaller than its size.
    """
    total = sum(sizes)
    ends = [count * end // total for end in accumulate(sizes, initial=0)]
    return [end - begin for begin, end in pairwise(ends)]


@dataclass(frozen=True)
class Pathological:
    r"""Non-IID($c$) split: every worker has samples of ``classes_per_worker`` ($c$) classes only.

    With as many classes as workers, worker $i$ has the classes $i, \dots, i+c-1$ (modulo their number), so that each
    class is split evenly between exactly $c$ workers; with $c$ = all classes this is a stratified IID split. With
    other numbers of workers the classes are assigned in turn in the same way.

    Xu, *Live Gradient Compensation*, Sec. III-A.
    """

    classes_per_worker: int

    def __post_init__(self) -> None:
        check_fields(self)

    def shards(self, samples: Labelled, workers: int, generator: np.random.Generator) -> Sequence[Indices]:
        targets, classes = _classes(samples)
        here, count = self.classes_per_worker, len(classes)
        if not 1 <= here <= count:
            raise ConfigError(f"{self} does not fit {count} classes: choose 1 to {count}")
        if here * workers < count:
            needed = math.ceil(count / workers)
            raise ConfigError(f"{self} leaves classes out: {workers} workers need at least {needed} each for {count}")
        offset = [worker * count // workers if workers < count else worker for worker in range(workers)]
        holders: list[list[int]] = [[] for _ in classes]
        for worker in range(workers):
            for k in range(here):
                holders[(offset[worker] + k) % count].append(worker)
        dealt: list[list[Indices]] = [[] for _ in range(workers)]
        for number, label in enumerate(classes):
            mine = generator.permutation(np.flatnonzero(targets == label))
            for worker, piece in zip(holders[number], np.array_split(mine, len(holders[number])), strict=True):
                dealt[worker].append(piece)
        return _sorted([np.concatenate(pieces) for pieces in dealt])


@dataclass(frozen=True)
class Dirichlet:
    r"""Non-IID split: each class is divided in proportions drawn from Dirichlet($\alpha$); small $\alpha$ is skewed."""

    alpha: float

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"{self}: alpha must be positive and finite")

    def shards(self, samples: Labelled, workers: int, generator: np.random.Generator) -> Sequence[Indices]:
        dealt: list[list[Indices]] = [[] for _ in range(workers)]
        targets, classes = _classes(samples)
        for label in classes:
            mine = generator.permutation(np.flatnonzero(targets == label))
            shares = generator.dirichlet(np.full(workers, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(mine)).astype(np.int64)
            for worker, piece in enumerate(np.split(mine, cuts)):
                dealt[worker].append(piece)
        return _sorted([np.concatenate(pieces) for pieces in dealt])


def deal(
    partition: Partition,
    samples: Labelled,
    workers: int,
    batch_size: int | Sequence[int],
    generator: np.random.Generator,
) -> Sequence[Indices]:
    """The shards of a partition, after checking that every worker can fill one mini-batch."""
    sizes = [batch_size] * workers if isinstance(batch_size, int) else [*batch_size]
    largest = max(sizes)
    if min(sizes) < 1:
        raise ConfigError(f"batch_size={batch_size} is not possible: at least 1")
    if len(samples) < largest:
        raise ConfigError(f"the data set has {len(samples)} samples, fewer than one batch of {largest}")
    if isinstance(partition, Equal) and min(sizes) < largest:
        shards = partition.in_proportion(samples, sizes, generator)
    else:
        shards = partition.shards(samples, workers, generator)
    _check_dealt(partition, shards, len(samples), workers)
    smallest = min(range(workers), key=lambda worker: len(shards[worker]) / sizes[worker])
    if (own := len(shards[smallest])) < sizes[smallest]:
        what = "empty" if own == 0 else f"with {own} samples, fewer than one batch of {sizes[smallest]}"
        raise ConfigError(
            f"{partition} leaves worker {smallest} {what}: "
            f"use fewer workers than {workers}, a smaller batch, or a more even partition"
        )
    return shards


def _check_dealt(partition: Partition, shards: Sequence[Indices], samples: int, workers: int) -> None:
    if len(shards) != workers:
        raise ConfigError(f"{partition} made {len(shards)} shards for {workers} workers: it must make one for each")
    dealt = np.concatenate([np.asarray(shard) for shard in shards])
    if len(dealt) and not (np.issubdtype(dealt.dtype, np.integer) and dealt.min() >= 0 and dealt.max() < samples):
        raise ConfigError(
            f"{partition} returned indices that do not exist: whole numbers from 0 to {samples - 1} are valid"
        )
    if len(np.unique(dealt)) < len(dealt):
        raise ConfigError(f"{partition} returned a sample twice: each may go to one worker only")


def _classes(samples: Labelled) -> tuple[NDArray[Any], NDArray[Any]]:
    targets = samples.targets()
    if targets.ndim != 1 or not (np.issubdtype(targets.dtype, np.integer) or targets.dtype == np.bool_):
        raise ConfigError(f"this partition needs one class label per sample, not targets of shape {targets.shape}")
    return targets, np.unique(targets)


def _sorted(shards: Sequence[Indices]) -> Sequence[Indices]:
    return [np.sort(shard).astype(np.int64, copy=False) for shard in shards]
