"""Which epochs are pruned, and how many samples each epoch trains on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.core.errors import ConfigError

Attenuate = Literal["window", "epoch"]
MOST_EPOCHS = 65_535  # in a window: counts have two bytes


@dataclass(frozen=True)
class Schedule:
    r"""Which epochs are pruned: the later part of each window, and there ``count`` epochs of each ``block``.

    Epoch $e = 1, 2, \dots$ is pruned if

    $$p(e) \ge a_{j(e)} \quad\text{and}\quad e \bmod r < c,$$

    where $r$ is ``block`` and $c$ ``count``. With a fixed ``window`` ($w$), $p(e) = e \bmod w$ and $j(e) = \lfloor e/w
    \rfloor$, as the paper has it: epoch $w$ is the first of the second window. With ``windows``, the lengths of the
    periods in which the learning rate stays the same, $p(e)$ counts from the first epoch of a period; the last period
    has no end. Counts are reset where $p(e) = 0$.

    $a_0$ is ``start`` and $a_{j+1} = \lfloor a_j / \text{attenuation} \rfloor$, but at least 1, because right after a
    reset there are no counts. ``attenuate="epoch"`` follows the algorithm literally: it divides at every epoch after
    the first window, down to 0. After epoch ``until`` nothing is pruned.

    *Data Fine-Pruning*, Algorithm 2 and Sec. 4.3.
    """

    start: int
    block: int
    count: int
    window: int | None = None
    windows: tuple[int, ...] = ()
    attenuation: float = 1.0
    attenuate: Attenuate = "window"
    until: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "block", "count", "window", "until"):
            check_whole(name, getattr(self, name))
        lengths = self._lengths()
        if min(lengths) < 1 or max(lengths) > MOST_EPOCHS:
            raise ConfigError(f"windows of {list(lengths)} epochs are not possible: 1 to {MOST_EPOCHS:,} each")
        longest = max(lengths)
        if not 1 <= self.start <= longest:
            raise ConfigError(
                f"start={self.start} is outside the window of {longest} epochs: 1 to {longest} (which prunes none)"
            )
        if self.block < 1:
            raise ConfigError(f"block={self.block} epochs are not possible: at least 1")
        if not 0 <= self.count <= self.block:
            raise ConfigError(f"count={self.count} is beyond the block of {self.block} epochs: 0 to {self.block}")
        if not 1 <= self.attenuation < math.inf:
            raise ConfigError(f"attenuation={self.attenuation} would move the start later: at least 1 (no change)")
        if self.attenuate not in ("window", "epoch"):
            raise ConfigError(f'attenuate={self.attenuate!r} is unknown: choose "window" or "epoch"')
        if self.until is not None and self.until < 0:
            raise ConfigError(f"until={self.until} is not an epoch: 0 (which prunes none) or more")

    def _lengths(self) -> tuple[int, ...]:
        if (self.window is None) == (not self.windows):
            raise ConfigError("give either window, such as window=60, or windows, such as windows=(60, 60, 40, 40)")
        return self.windows if self.window is None else (self.window,)

    def position(self, epoch: int) -> tuple[int, int]:
        """The number of an epoch's window, from 0, and the epoch's position in it, from 0."""
        if self.window is not None:
            return divmod(epoch, self.window)
        number, first = 0, 1
        while number < len(self.windows) - 1 and epoch >= first + self.windows[number]:
            first += self.windows[number]
            number += 1
        return number, epoch - first

    def resets(self, epoch: int) -> bool:
        """Does a new window begin with this epoch?"""
        return self.position(epoch)[1] == 0

    def pruned(self, epoch: int) -> bool:
        """Are samples left out of this epoch (from 1)?"""
        if self.until is not None and epoch > self.until:
            return False
        number, position = self.position(epoch)
        if self.attenuate == "window":
            start = max(1, self._start_after(number))
        else:
            start = self._start_after(max(0, epoch - self._lengths()[0]))
        return position >= start and epoch % self.block < self.count

    def _start_after(self, divisions: int) -> int:
        start = self.start
        for _ in range(divisions if self.attenuation > 1 else 0):
            if start == 0:
                break
            start = int(start / self.attenuation)
        return start


@dataclass(frozen=True)
class Plan:
    """How many samples each epoch trains on; an upper bound if ``exact`` is False, because the losses decide."""

    samples: int
    sizes: tuple[int, ...]
    pruned_epochs: tuple[int, ...]  # from 1
    exact: bool = True

    @property
    def epochs(self) -> int:
        return len(self.sizes)

    @property
    def saved_samples(self) -> int:
        return self.samples * self.epochs - sum(self.sizes)

    @property
    def saved(self) -> float:
        """The share of samples that is left out, over all epochs."""
        return self.saved_samples / (self.samples * self.epochs)

    def size(self, epoch: int) -> int:
        """The number of samples in an epoch (from 1)."""
        if not 1 <= epoch <= self.epochs:
            raise ConfigError(f"epoch {epoch} is not in the plan: 1 to {self.epochs}")
        return self.sizes[epoch - 1]

    def steps(self, batch_size: int, *, drop_last: bool = False, ranks: int = 1) -> tuple[int, ...]:
        """Training steps (mini-batches) in each epoch, for one of ``ranks`` processes."""
        if batch_size < 1 or ranks < 1:
            raise ConfigError(f"batch_size={batch_size}, ranks={ranks}: each is at least 1")
        mine = (size // ranks for size in self.sizes)
        return tuple(size // batch_size if drop_last else math.ceil(size / batch_size) for size in mine)

    def total_steps(self, batch_size: int, *, drop_last: bool = False, ranks: int = 1) -> int:
        """Training steps (mini-batches) in all epochs, such as for ``OneCycleLR(total_steps=...)``."""
        return sum(self.steps(batch_size, drop_last=drop_last, ranks=ranks))


def pruned_number(fraction: float, samples: int) -> int:
    """The number of samples to leave out; at least one sample is kept."""
    return min(round(fraction * samples), samples - 1)


def check_whole(name: str, value: object) -> None:
    """Raise ``ConfigError`` unless the value is a whole number or None."""
    if value is not None and not hasattr(value, "__index__"):
        raise ConfigError(f"{name}={value!r} is not possible: a whole number, such as 2")


def check_fraction(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise ConfigError(f"fraction={fraction} of the samples cannot be left out: at least 0 and less than 1")


def check_epochs(epochs: int) -> None:
    if epochs < 1:
        raise ConfigError(f"a plan for {epochs} epochs is not possible: at least 1")


def plan_of(schedule: Schedule, fraction: float, samples: int, epochs: int) -> Plan:
    """The plan of a rule that leaves out the same number of samples in every pruned epoch."""
    check_epochs(epochs)
    kept = samples - pruned_number(fraction, samples)
    pruned = [schedule.pruned(epoch) for epoch in range(1, epochs + 1)]
    return Plan(samples, _sizes(pruned, samples, kept), _numbers(pruned))


def _sizes(pruned: Sequence[bool], samples: int, kept: int) -> tuple[int, ...]:
    return tuple(kept if each else samples for each in pruned)


def _numbers(pruned: Sequence[bool]) -> tuple[int, ...]:
    return tuple(epoch for epoch, each in enumerate(pruned, start=1) if each)
