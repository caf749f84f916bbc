"""Mini-batches of each worker, drawn from its shard with a random stream of its own, whatever the strategy.

Samples that a worker drew but did not use (it was recalled, dropped, or computed only a part of the batch) are put back
and drawn first the next time. Otherwise samples of slow workers would be used less often.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.core.codec import whole
from paceline.core.stateful import State, Stateful, check_stateful
from paceline.data.partition import Indices
from paceline.randomness import restore_stream, stream, stream_state

Losses = NDArray[np.float32]


class Batches(Protocol):
    """Draws the mini-batches of one run.

    For checkpoints it also needs ``state()`` and ``restore(state)``: ``paceline.core.stateful.Stateful``.
    """

    def draw(self, worker: int) -> Indices:
        """The indices of the next mini-batch of a worker."""
        ...

    def put_back(self, worker: int, indices: Indices) -> None:
        """Return samples that were drawn but not used."""
        ...


@runtime_checkable
class ObservesLosses(Batches, Protocol):
    """Batches that depend on the losses of the samples."""

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        """Report the losses of samples whose gradient was used in an update."""
        ...


@runtime_checkable
class ObservesMembership(Batches, Protocol):
    """Batches that depend on which workers are present."""

    def left(self, worker: int) -> None:
        """Report that a worker has left the run."""
        ...

    def joined(self, worker: int) -> None:
        """Report that a worker, or its replacement, has joined."""
        ...


class Sampling(Protocol):
    """How mini-batches are drawn from the shards: the argument ``sampling`` of ``paceline.train``."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        """The mini-batches of a run whose workers have these shards."""
        ...


@dataclass(frozen=True)
class Shuffled:
    """Each worker iterates over its shard in a new random order every epoch, as ``DataLoader(drop_last=True)`` does."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return ShardBatches([_Shuffled(shard, batch_size, seed, w) for w, shard in enumerate(shards)], batch_size)


@dataclass(frozen=True)
class Resampled:
    """Each mini-batch is an independent random sample from the shard, without repetition in the batch (as in GSGD)."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return ShardBatches([_Resampled(shard, batch_size, seed, w) for w, shard in enumerate(shards)], batch_size)


class ShardBatches:
    """Mini-batches from one infinite iterator per worker; samples that were put back come first."""

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

    def state(self) -> State:
        """The state for a checkpoint, if the iterators of all workers have one."""
        returned = {str(worker): np.concatenate(pieces).tolist() for worker, pieces in self._returned.items()}
        return {"returned": returned, "sequences": [sequence.state() for sequence in self._stateful()]}

    def restore(self, state: State) -> None:
        self._returned = {int(w): [np.array(samples, dtype=np.int64)] for w, samples in state["returned"].items()}
        shards: list[Indices] = [each._shard for each in self._sequences if isinstance(each, _Shuffled | _Resampled)]
        largest = max((int(shard.max()) for shard in shards if len(shard)), default=0)
        for worker, (samples,) in self._returned.items():
            beyond = len(samples) and largest and not 0 <= samples.min() <= samples.max() <= largest
            if not 0 <= worker < len(self._sequences) or samples.ndim != 1 or beyond:
                raise ValueError(f"worker {worker} cannot have put back {samples[:3]}")
        for sequence, each in zip(self._stateful(), state["sequences"], strict=True):
            sequence.restore(each)

    def _stateful(self) -> Iterable[Stateful]:
        return check_stateful({f"sampling of worker {w}": each for w, each in enumerate(self._sequences)}).values()


class _Shuffled:
    """Infinite iterator over one shard: a random order per epoch, and a position in it."""

    def __init__(self, shard: Indices, batch_size: int, seed: int, worker: int) -> None:
        self._shard = shard
        self._batch_size = batch_size
        self._generator = stream(seed, "batches", worker)
        self._before = stream_state(self._generator)  # state of the generator before it drew the order
        self._order: Indices = shard[:0]
        self._place = 0

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        end = self._place + self._batch_size
        if end > len(self._order):
            self._before = stream_state(self._generator)
            self._order = self._generator.permutation(self._shard)
            end = self._batch_size
        self._place = end
        return self._order[end - self._batch_size : end]

    def state(self) -> State:
        return {"before": self._before, "place": self._place}

    def restore(self, state: State) -> None:
        restore_stream(self._generator, state["before"])
        self._place = whole(state["place"])
        if self._place:
            self._before = stream_state(self._generator)
            self._order = self._generator.permutation(self._shard)


class _Resampled:
    """Infinite iterator of independent random batches from one shard."""

    def __init__(self, shard: Indices, batch_size: int, seed: int, worker: int) -> None:
        self._shard = shard
        self._batch_size = batch_size
        self._generator = stream(seed, "batches", worker)

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        return self._shard[self._generator.choice(len(self._shard), size=self._batch_size, replace=False)]

    def state(self) -> State:
        return {"stream": stream_state(self._generator)}

    def restore(self, state: State) -> None:
        restore_stream(self._generator, state["stream"])
