"""The argument ``delays`` of the functions of this package: a number, probabilities, or recorded delays."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError

Delays = int | Mapping[int, float]


def probabilities(delays: Delays) -> NDArray[np.float64]:
    """The probability of each delay 0, 1, ..., up to the largest that occurs.

    ``delays`` is one whole number of updates, or a mapping from delays to probabilities that add up to 1.
    """
    if not isinstance(delays, Mapping):
        delays = {_whole(delays): 1.0}
    elif not delays:
        raise ConfigError("the histogram of delays is empty: give at least one delay, such as {0: 1.0}")
    for delay, share in delays.items():
        if _whole(delay) < 0:
            raise ConfigError(f"a delay of {delay} updates is not possible: at least 0")
        if not 0 <= share <= 1 + 1e-9:
            raise ConfigError(f"the delay {delay} cannot have a probability of {share}: from 0 to 1")
    total = math.fsum(delays.values())
    if abs(total - 1) > 1e-9:
        raise ConfigError(f"the probabilities of the delays add up to {total:.9g}, not to 1: divide each by their sum")
    shares = np.zeros(1 + max(delay for delay, share in delays.items() if share > 0))
    for delay, share in delays.items():
        if share > 0:
            shares[delay] = share
    return shares


def _whole(delay: object) -> int:
    try:
        return operator.index(delay)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(
            f"a delay of {delay!r} is not a whole number of updates: for one between 1 and 2 give {{1: 0.5, 2: 0.5}}"
        ) from None


Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GridDelays:
    """The delay of each grid step: how many steps old the values are that it uses.

    recorded  the delay of each step, if it is the same for all paths
    shares    otherwise the probabilities of the delays 0, 1, ...
    reach     how many steps before the start are needed
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
    """Delays for the solver; a sequence has one delay per step."""
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
            f"{recorded.shape} delays of type {recorded.dtype} do not fit {steps} steps: give one whole number for each"
        )
    if steps == 0:
        return GridDelays(0, 0, 0, None)
    if recorded.min() < 0:
        raise ConfigError(f"a delay of {recorded.min()} steps is not possible: at least 0")
    reach = max(0, int((recorded - np.arange(steps)).max()))
    return GridDelays(int(recorded.min()), int(recorded.max()), reach, recorded.astype(np.intp))
