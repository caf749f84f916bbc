"""What a pruning rule stores about each sample, and which samples it keeps: counts, last losses, random choice."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.pruning.schedule import Schedule

Mask = NDArray[np.bool_]
Ties = Literal["random", "index"]
CHUNK = 1 << 16


def keep_lowest(counts: NDArray[np.uint16], keep: int, generator: np.random.Generator | None) -> Mask:
    """A mask of the ``keep`` samples with the smallest counts; ties are random, or by index without generator.

    Counts are small whole numbers with many ties, so a histogram finds the largest count that is kept.
    """
    histogram = _histogram(counts)
    enough = int(np.searchsorted(np.cumsum(histogram), keep))  # the largest count that is kept
    kept: Mask = counts <= enough
    among = np.zeros(int(histogram[enough]), dtype=np.bool_)
    among[: keep - int(histogram[:enough].sum())] = True
    if generator is not None:
        generator.shuffle(among)
    for begin in range(0, len(counts), CHUNK):
        tied = counts[begin : begin + CHUNK] == enough
        number = int(tied.sum())
        kept[begin : begin + CHUNK][tied] = among[:number]
        among = among[number:]
    return kept


def keep_highest(counts: NDArray[np.uint16], keep: int, generator: np.random.Generator | None) -> Mask:
    """A mask of the ``keep`` samples with the largest counts, with ties as in ``keep_lowest``."""
    return keep_lowest(counts.max() - counts, keep, generator)


def keep_any(samples: int, keep: int, generator: np.random.Generator) -> Mask:
    """A mask of ``keep`` samples chosen at random."""
    kept = np.zeros(samples, dtype=np.bool_)
    kept[:keep] = True
    generator.shuffle(kept)
    return kept


def only_kept(order: NDArray[np.int32], kept: Mask) -> NDArray[np.int32]:
    """The kept samples in the order of ``order``, whose memory is reused."""
    end = 0
    for begin in range(0, len(order), CHUNK):
        piece = order[begin : begin + CHUNK]
        piece = np.compress(kept.take(piece), piece)  # several times faster than indexing
        order[end : end + len(piece)] = piece
        end += len(piece)
    return order[:end]


def _histogram(counts: NDArray[np.uint16]) -> NDArray[np.int64]:
    """The number of samples with each count, in chunks: at once it would take eight bytes per sample."""
    total = np.zeros(int(counts.max()) + 1, dtype=np.int64)
    for begin in range(0, len(counts), CHUNK):
        total += np.bincount(counts[begin : begin + CHUNK], minlength=len(total))
    return total


Marks = NDArray[np.uint8]
Floats = NDArray[np.float32]
Mean = float | NDArray[np.float64]
Arrays = dict[str, NDArray[np.generic]]
Minimum = Callable[[NDArray[np.generic]], None]  # all-reduce over the processes, in place
STANDS_OUT, UNSEEN = 1, 2


class Memory(Protocol):
    """What a rule stores about the samples of one dataset."""

    def enter(self, epoch: int, generator: np.random.Generator) -> Mask | None:
        """Start an epoch (from 1), and return a mask of the samples that it keeps, or None for all."""
        ...

    def observe(self, indices: Indices, losses: Floats, mean: Mean) -> Mask | bool:
        """Observe losses, and return which samples stand out; ``mean`` is the mean loss of the batch of each sample."""
        ...

    def merge(self, marks: Marks, minimum: Minimum) -> None:
        """Combine what the processes of ``torch.distributed`` have stored in this epoch, except for their marks."""
        ...

    def count(self, places: Indices | slice, standing_out: Mask | bool) -> None:
        """Count the samples that stand out."""
        ...

    def weights(self, indices: Indices) -> Floats:
        """The weights of samples of this epoch, to multiply their losses with."""
        ...

    def state(self) -> Arrays:
        """All stored arrays, of fixed shapes; not copies."""
        ...


def refill(arrays: Arrays, saved: Mapping[str, Any]) -> None:
    """Copy saved arrays into ``arrays``, all or none; shapes and types must match."""
    found = {name: np.asarray(saved[name]) for name in arrays}
    for name, own in arrays.items():
        if (found[name].dtype, found[name].shape) != (own.dtype, own.shape):
            raise ConfigError(
                f"the state has {name} of {found[name].shape} {found[name].dtype}, not {own.shape} {own.dtype}"
            )
    for name, own in arrays.items():
        own[:] = found[name]


class Counting:
    """Memory of ``FinePruning``: how often each sample stood out since the last reset (Algorithm 1)."""

    def __init__(
        self, schedule: Schedule, samples: int, kept: int, tolerance: float, ties: Ties, *, highest: bool
    ) -> None:
        self.counts = np.zeros(samples, dtype=np.uint16)
        self._schedule = schedule
        self._kept = kept
        self._factor = 1.0 + tolerance
        self._at_random = ties == "random"
        self._choose = keep_highest if highest else keep_lowest

    def enter(self, epoch: int, generator: np.random.Generator) -> Mask | None:
        if self._schedule.resets(epoch):
            self.counts[:] = 0
        if self._kept == len(self.counts) or not self._schedule.pruned(epoch):
            return None
        return self._choose(self.counts, self._kept, generator if self._at_random else None)

    def observe(self, indices: Indices, losses: Floats, mean: Mean) -> Mask:
        above: Mask = losses >= mean * self._factor
        return above

    def merge(self, marks: Marks, minimum: Minimum) -> None:
        pass

    def count(self, places: Indices | slice, standing_out: Mask | bool) -> None:
        self.counts[places] += standing_out

    def weights(self, indices: Indices) -> Floats:
        return np.ones(len(indices), dtype=np.float32)

    def state(self) -> Arrays:
        return {"counts": self.counts}


class Blind:
    """Memory of ``RandomPruning``, the control: it stores nothing."""

    def __init__(self, schedule: Schedule, samples: int, kept: int) -> None:
        self._schedule = schedule
        self._samples = samples
        self._kept = kept

    def enter(self, epoch: int, generator: np.random.Generator) -> Mask | None:
        if self._kept == self._samples or not self._schedule.pruned(epoch):
            return None
        return keep_any(self._samples, self._kept, generator)

    def observe(self, indices: Indices, losses: Floats, mean: Mean) -> bool:
        return False

    def merge(self, marks: Marks, minimum: Minimum) -> None:
        pass

    def count(self, places: Indices | slice, standing_out: Mask | bool) -> None:
        pass

    def weights(self, indices: Indices) -> Floats:
        return np.ones(len(indices), dtype=np.float32)

    def state(self) -> Arrays:
        return {}


class Scores:
    """Memory of ``SoftPruning``: the last loss of each sample (NaN if none), and which samples are well learnt."""

    def __init__(self, samples: int, fraction: float, until: int | None) -> None:
        self.scores = np.full(samples, np.nan, dtype=np.float32)
        self._well_learnt = np.zeros(samples, dtype=np.bool_)
        self._fraction = fraction
        self._until = until

    def enter(self, epoch: int, generator: np.random.Generator) -> Mask | None:
        known = ~np.isnan(self.scores)
        if not self._fraction or not known.any() or (self._until is not None and epoch > self._until):
            self._well_learnt[:] = False
            return None
        mean = np.mean(self.scores, where=known, dtype=np.float64)
        np.less(self.scores, mean, out=self._well_learnt)
        kept = ~self._well_learnt
        draws = generator.random(int(self._well_learnt.sum()), dtype=np.float32)
        kept[self._well_learnt] = draws >= self._fraction
        if not kept.any():  # only if all losses are equal up to rounding
            kept[0] = True
        return kept

    def observe(self, indices: Indices, losses: Floats, mean: Mean) -> bool:
        self.scores[indices] = losses
        return False

    def merge(self, marks: Marks, minimum: Minimum) -> None:
        new = np.where(marks != UNSEEN, self.scores, np.float32(np.inf))
        minimum(new)
        self.scores = np.where(np.isposinf(new), self.scores, new)

    def count(self, places: Indices | slice, standing_out: Mask | bool) -> None:
        pass

    def weights(self, indices: Indices) -> Floats:
        more = np.float32(1 / (1 - self._fraction))
        return np.where(self._well_learnt[indices], more, np.float32(1))

    def state(self) -> Arrays:
        return {"scores": self.scores, "well_learnt": self._well_learnt}
