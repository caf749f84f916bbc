"""The mini-batches of each worker: one random stream a worker, the same whatever the strategy.

What a worker was given but did not compute (it was stopped, dropped, or handed in a part) goes back and is drawn first
the next time; otherwise the data of slow workers would be seen less often.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.randomness import stream
from paceline.sampling.partition import Indices

Losses = NDArray[np.float32]


class Batches(Protocol):
    """The mini-batches of one run."""

    def draw(self, worker: int) -> Indices:
        """The next mini-batch of a worker."""
        ...

    def put_back(self, worker: int, indices: Indices) -> None:
        """These samples were drawn, but not used."""
        ...


@runtime_checkable
class Watchful(Batches, Protocol):
    """Mini-batches that are chosen by how the samples perform."""

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        """The losses that these samples had when their gradient was used."""
        ...


@runtime_checkable
class Attentive(Batches, Protocol):
    """Mini-batches that depend on who is here."""

    def left(self, worker: int) -> None: ...

    def joined(self, worker: int) -> None: ...


class Sampling(Protocol):
    """A rule by which workers choose mini-batches from their shards."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches: ...


@dataclass(frozen=True)
class Shuffled:
    """Every worker goes through its shard in a new random order each epoch; an incomplete last batch is left out."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return ShardBatches([_shuffled(shard, batch_size, seed, w) for w, shard in enumerate(shards)], batch_size)


@dataclass(frozen=True)
class Resampled:
    """Every mini-batch is drawn afresh from the whole shard, without repetition inside the batch (as in GSGD)."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return ShardBatches([_resampled(shard, batch_size, seed, w) for w, shard in enumerate(shards)], batch_size)


class ShardBatches:
    """Mini-batches from one endless sequence a worker, with what was put back first."""

    def __init__(self, sequences: Sequence[Iterator[Indices]], batch_size: int) -> None:
        self._sequences = sequences
        self._batch_size = batch_size
        self._returned: dict[int, list[Indices]] = {}

    def draw(self, worker: int) -> Indices:
        if worker not in self._returned:
            return next(self._sequences[worker])
        pieces = self._returned.pop(worker)
        missing = self._batch_size - sum(map(len, pieces))
        while missing > 0:
            pieces.append(next(self._sequences[worker]))
            missing -= len(pieces[-1])
        samples = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        if missing < 0:
            self._returned[worker] = [samples[missing:]]
        return samples[: self._batch_size]

    def put_back(self, worker: int, indices: Indices) -> None:
        if len(indices):
            self._returned.setdefault(worker, []).insert(0, indices)


def _shuffled(shard: Indices, batch_size: int, seed: int, worker: int) -> Iterator[Indices]:
    generator = stream(seed, "batches", worker)
    while True:
        order = generator.permutation(shard)
        for begin in range(0, len(order) - batch_size + 1, batch_size):
            yield order[begin : begin + batch_size]


def _resampled(shard: Indices, batch_size: int, seed: int, worker: int) -> Iterator[Indices]:
    generator = stream(seed, "batches", worker)
    while True:
        yield shard[generator.choice(len(shard), size=batch_size, replace=False)]
