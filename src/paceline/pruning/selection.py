"""Which samples are kept, given how often each stood out: without sorting, in memory of a few bytes a sample."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Ties = Literal["random", "index"]
CHUNK = 1 << 16


def keep_lowest(counts: NDArray[np.uint16], keep: int, generator: np.random.Generator | None) -> Mask:
    """The ``keep`` samples with the smallest counts. The last places are drawn by lot; by index without generator.

    Counts are small whole numbers and massively tied, so a histogram finds the count at which places run out.
    """
    histogram = _histogram(counts)
    enough = int(np.searchsorted(np.cumsum(histogram), keep))  # the smallest count that fills all places
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
    """The ``keep`` samples with the largest counts, the last places likewise."""
    return keep_lowest(counts.max() - counts, keep, generator)


def keep_any(samples: int, keep: int, generator: np.random.Generator) -> Mask:
    """So many at random."""
    kept = np.zeros(samples, dtype=np.bool_)
    kept[:keep] = True
    generator.shuffle(kept)
    return kept


def only_kept(order: NDArray[np.int32], kept: Mask) -> NDArray[np.int32]:
    """The kept samples in their order, made in the memory of ``order``."""
    end = 0
    for begin in range(0, len(order), CHUNK):
        piece = order[begin : begin + CHUNK]
        piece = np.compress(kept.take(piece), piece)  # several times as fast as indexing
        order[end : end + len(piece)] = piece
        end += len(piece)
    return order[:end]


def _histogram(counts: NDArray[np.uint16]) -> NDArray[np.int64]:
    """How many samples have which count, by pieces: all at once would take eight bytes a sample."""
    total = np.zeros(int(counts.max()) + 1, dtype=np.int64)
    for begin in range(0, len(counts), CHUNK):
        total += np.bincount(counts[begin : begin + CHUNK], minlength=len(total))
    return total
