"""How many samples the mini-batches of each worker have: the one place that is asked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.trace.format import MOST_SAMPLES


@dataclass(frozen=True)
class BatchSizes:
    """The samples of each worker's mini-batches. ``vary``: these are the first ones, and a strategy changes them."""

    each: tuple[int, ...]
    vary: bool = False

    def __post_init__(self) -> None:
        if (largest := max(self.each, default=0)) > MOST_SAMPLES:
            raise ConfigError(f"batch_size={shown(largest)} is not possible: at most {MOST_SAMPLES:,} samples")

    @classmethod
    def of(cls, batch_size: int | Sequence[int], workers: int, *, vary: bool = False) -> "BatchSizes":
        """The sizes of so many workers."""
        return cls((batch_size,) * workers if isinstance(batch_size, int) else tuple(batch_size), vary)

    @property
    def unequal(self) -> Mapping[int, int] | None:
        """The size of each worker; None where all have the same, and keep it."""
        return None if len({*self.each}) == 1 else dict(enumerate(self.each))

    @property
    def largest(self) -> int:
        """The most samples that one mini-batch can have."""
        return sum(self.each) if self.vary else max(self.each)

    @property
    def mean(self) -> float:
        """What a duration is for, where a delay says nothing of samples."""
        return sum(self.each) / len(self.each)


def read_sizes(value: Iterable[Any], workers: int) -> int | tuple[int, ...]:
    """A list that a user gave as ``batch_size``, one for each worker; a number where all are equal."""
    sizes = list(value)
    if len(sizes) != workers:
        raise ConfigError(
            f"batch_size={shown(sizes)} has {len(sizes)} sizes for {workers} workers: give one for each, or one for all"
        )
    for worker, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise ConfigError(
                f"batch_size={shown(sizes)} leaves worker {worker} without samples: give whole numbers of at least 1"
            )
    found = tuple(map(int, sizes))
    return found[0] if len({*found}) == 1 else found
