"""Delays of whole grid steps: one, drawn for each step and path, or recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.theory.histogram import Delays, probabilities

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GridDelays:
    """How many steps old the values are that a step uses.

    recorded  the delay of each step, where they are the same for all paths
    shares    the probabilities of the delays 0, 1, ... otherwise
    reach     how far before the start the past is needed, in steps
    """

    shortest: int
    longest: int
    reach: int
    recorded: NDArray[np.intp] | None
    shares: Floats | None = None

    def take(self, ring: Floats, k: int, count: int, stream: np.random.Generator) -> Floats:
        """The delayed values of the steps k, k + 1, ..., where the value of the time j is in row j - 1 of the ring."""
        if self.recorded is None and self.shares is None:
            begin = (k - self.longest - 1) % len(ring)
            if begin + count <= len(ring):
                return ring[begin : begin + count]
            return ring.take(np.arange(begin, begin + count) % len(ring), axis=0)
        if self.recorded is not None:
            return ring.take((np.arange(k, k + count) - self.recorded[k : k + count] - 1) % len(ring), axis=0)
        assert self.shares is not None
        paths = ring.shape[1]
        drawn = np.searchsorted(self.shares.cumsum()[:-1], stream.random((count, paths)), side="right")
        rows = (np.arange(k, k + count)[:, None] - drawn - 1) % len(ring)
        chosen: Floats = ring[rows, np.arange(paths)]
        return chosen


def grid_delays(delays: Delays | Sequence[int], steps: int) -> GridDelays:
    """Delays as the solver takes them; a sequence has one for each of its steps."""
    if isinstance(delays, Sequence | np.ndarray):
        return _recorded(delays, steps)
    shares = probabilities(delays)
    (possible,) = shares.nonzero()
    shortest, longest = int(possible[0]), len(shares) - 1
    drawn = isinstance(delays, Mapping) and shortest < longest
    return GridDelays(shortest, longest, longest, None, shares if drawn else None)


def _recorded(delays: Sequence[int], steps: int) -> GridDelays:
    recorded = np.asarray(delays)
    if recorded.shape != (steps,) or not (steps == 0 or np.issubdtype(recorded.dtype, np.integer)):
        raise ConfigError(
            f"{recorded.shape} delays of type {recorded.dtype} do not go with {steps} steps: one whole number each"
        )
    if steps == 0:
        return GridDelays(0, 0, 0, None)
    if recorded.min() < 0:
        raise ConfigError(f"a delay of {recorded.min()} steps is not possible: at least 0")
    reach = max(0, int((recorded - np.arange(steps)).max()))
    return GridDelays(int(recorded.min()), int(recorded.max()), reach, recorded.astype(np.intp))
