"""Mini-batches of each worker, drawn from its shard with a random stream of its own, whatever the strategy.

Samples that a worker drew but did not use (it was recalled, dropped, or computed only a part of the batch) are put back
and drawn first the next time. Otherwise samples of slow workers would be used less often.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.core.codec import whole
from paceline.core.errors import ConfigError
from paceline.core.stateful import State, Stateful, check_stateful
from paceline.data.partition import Indices, proportional
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


@runtime_checkable
class OfUnequalSizes(Batches, Protocol):
    """Batches that can have another size for each worker."""

    def begin_with(self, sizes: Sequence[int]) -> None:
        """Give each worker mini-batches of its size; called once, before anything is drawn."""
        ...


@runtime_checkable
class Resizable(Batches, Protocol):
    """Batches whose sizes can be changed in the middle of a run."""

    def resize(self, sizes: Mapping[int, int]) -> None:
        """Give workers mini-batches of these sizes; the others draw none."""
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
        return ShardBatches([_Shuffled(shard, batch_size, seed, w) for w, shard in enumerate(shards)], batch_size, seed)


@dataclass(frozen=True)
class Resampled:
    """Each mini-batch is an independent random sample from the shard, without repetition in the batch (as in GSGD)."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return ShardBatches(
            [_Resampled(shard, batch_size, seed, w) for w, shard in enumerate(shards)], batch_size, seed
        )


class ShardBatches:
    """Mini-batches from one infinite iterator per worker; samples that were put back come first.

    When sizes change, the samples are dealt anew in proportion to them: first those that are still to come in the
    current pass, then the others. So all workers come to the end of a pass together, and a pass is one over all
    samples. What a worker draws follows from the seed, the sizes so far and how often it has drawn.
    """

    def __init__(self, sequences: Sequence[Iterator[Indices]], batch_size: int, seed: int = 0) -> None:
        self._sequences = sequences
        self._sizes = [batch_size] * len(sequences)
        self._seed = seed
        self._deals = 0  # how often sizes changed
        self._returned: dict[int, list[Indices]] = {}

    def draw(self, worker: int) -> Indices:
        if worker not in self._returned:
            return next(self._sequences[worker])
        pieces = self._returned.pop(worker)
        size = self._sizes[worker]
        missing = size - sum(map(len, pieces))
        while missing > 0:
            pieces.append(next(self._sequences[worker]))
            missing -= len(pieces[-1])
        samples = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        if missing < 0:
            self._returned[worker] = [samples[missing:]]
        return samples[:size]

    def begin_with(self, sizes: Sequence[int]) -> None:
        self._sizes = list(sizes)
        for sequence, size in zip(self._sequences, sizes, strict=True):
            if not hasattr(sequence, "batch_size"):
                raise ConfigError(f"{type(sequence).__name__} draws mini-batches of one size: give one batch_size")
            sequence.batch_size = size

    def resize(self, sizes: Mapping[int, int]) -> None:
        new = [sizes.get(worker, 0) for worker in range(len(self._sequences))]
        if new == self._sizes:
            return
        dealing = [each for each in self._sequences if isinstance(each, _Shuffled | _Resampled)]
        if len(dealing) < len(self._sequences):
            raise ConfigError("the strategy changes the sizes of mini-batches: use sampling=Shuffled() or Resampled()")
        self._sizes = new
        self._deals += 1
        generator = stream(self._seed, "sizes", self._deals)
        returned = [samples for pieces in self._returned.values() for samples in pieces]
        self._returned = {}
        everything = np.concatenate([each.shard for each in dealing])
        to_come = np.unique(np.concatenate([each.to_come() for each in dealing] + returned))
        if len(to_come) < sum(new):  # not enough for all: the next pass begins
            to_come = np.sort(everything)
        of_shards = proportional(len(everything), new)
        of_pass = _filled(proportional(len(to_come), new), of_shards)
        here = np.split(generator.permutation(to_come), np.cumsum(of_pass)[:-1])
        there = np.split(
            generator.permutation(np.setdiff1d(everything, to_come)),
            np.cumsum([whole - own for whole, own in zip(of_shards, of_pass, strict=True)])[:-1],
        )
        for worker, each in enumerate(dealing):
            each.deal(np.sort(np.concatenate([here[worker], there[worker]])), new[worker], here[worker])

    def put_back(self, worker: int, indices: Indices) -> None:
        if len(indices):
            self._returned.setdefault(worker, []).insert(0, indices)

    def state(self) -> State:
        """The state for a checkpoint, if the iterators of all workers have one."""
        returned = {str(worker): np.concatenate(pieces).tolist() for worker, pieces in self._returned.items()}
        sizes = {"deals": self._deals, "sizes": self._sizes} if self._deals else {}
        return {"returned": returned, "sequences": [sequence.state() for sequence in self._stateful()], **sizes}

    def restore(self, state: State) -> None:
        self._deals = whole(state.get("deals", 0))
        self._sizes = [whole(size) for size in state.get("sizes", self._sizes)]
        self._returned = {int(w): [np.array(samples, dtype=np.int64)] for w, samples in state["returned"].items()}
        shards: list[Indices] = [each.shard for each in self._sequences if isinstance(each, _Shuffled | _Resampled)]
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
        self.shard = shard
        self.batch_size = batch_size
        self._dealt = False  # was the shard dealt anew since the run began?
        self._own_order = True  # is the order one that the generator drew?
        self._generator = stream(seed, "batches", worker)
        self._before = stream_state(self._generator)  # state of the generator before it drew the order
        self._order: Indices = shard[:0]
        self._place = 0

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        end = self._place + self.batch_size
        if end > len(self._order):
            self._before = stream_state(self._generator)
            self._order = self._generator.permutation(self.shard)
            self._own_order = True
            end = self.batch_size
        self._place = end
        return self._order[end - self.batch_size : end]

    def to_come(self) -> Indices:
        """The samples of the current pass that were not drawn yet; none between two passes."""
        return self._order[self._place :] if self._place + self.batch_size <= len(self._order) else self.shard[:0]

    def deal(self, shard: Indices, batch_size: int, to_come: Indices) -> None:
        """Continue with another shard and size: first with what is ``to_come``, in that order."""
        self.shard, self.batch_size, self._order, self._place = shard, batch_size, to_come, 0
        self._before = stream_state(self._generator)
        self._dealt, self._own_order = True, False

    def state(self) -> State:
        dealt = {"shard": self.shard, "size": self.batch_size} if self._dealt else {}
        order = {} if self._own_order else {"order": self._order}
        return {"before": self._before, "place": self._place, **dealt, **order}

    def restore(self, state: State) -> None:
        restore_stream(self._generator, state["before"])
        self._place = whole(state["place"])
        if "shard" in state:
            self.shard, self.batch_size, self._dealt = _indices(state["shard"]), whole(state["size"]), True
        if "order" in state:
            self._order, self._own_order = _indices(state["order"]), False
            self._before = stream_state(self._generator)
        elif self._place:
            self._before = stream_state(self._generator)
            self._order = self._generator.permutation(self.shard)


class _Resampled:
    """Infinite iterator of independent random batches from one shard."""

    def __init__(self, shard: Indices, batch_size: int, seed: int, worker: int) -> None:
        self.shard = shard
        self.batch_size = batch_size
        self._dealt = False
        self._generator = stream(seed, "batches", worker)

    def __iter__(self) -> Iterator[Indices]:
        return self

    def __next__(self) -> Indices:
        return self.shard[self._generator.choice(len(self.shard), size=self.batch_size, replace=False)]

    def to_come(self) -> Indices:
        """There are no passes."""
        return self.shard[:0]

    def deal(self, shard: Indices, batch_size: int, to_come: Indices) -> None:
        self.shard, self.batch_size, self._dealt = shard, batch_size, True

    def state(self) -> State:
        dealt = {"shard": self.shard, "size": self.batch_size} if self._dealt else {}
        return {"stream": stream_state(self._generator), **dealt}

    def restore(self, state: State) -> None:
        restore_stream(self._generator, state["stream"])
        if "shard" in state:
            self.shard, self.batch_size, self._dealt = _indices(state["shard"]), whole(state["size"]), True


def _filled(counts: Sequence[int], rooms: Sequence[int]) -> list[int]:
    """The counts with the same sum, none larger than its room: what does not fit goes where there is some left."""
    fitting = [min(count, room) for count, room in zip(counts, rooms, strict=True)]
    left = sum(counts) - sum(fitting)
    for place, room in enumerate(rooms):
        more = min(left, room - fitting[place])
        fitting[place] += more
        left -= more
    return fitting


def _indices(value: object) -> Indices:
    indices = np.asarray(value)
    if indices.ndim != 1 or (len(indices) and (indices.dtype.kind != "i" or indices.min() < 0)):
        raise ValueError("a shard is a list of samples")
    return indices.astype(np.int64)
