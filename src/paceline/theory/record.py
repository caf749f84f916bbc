"""What is remembered of simulated paths: the end, the moments on the way, or all of it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Keep = Literal["end", "moments", "paths"]


@dataclass(frozen=True, eq=False)
class Solution:
    """What came of the paths. Arrays go by time, path and dimension; what was not kept is None.

    times     the instants of ``paths``, ``mean`` and ``variance``
    end       all paths at the end
    mean      over the paths, at each instant, and ``variance``, without bias
    """

    times: Floats
    end: Floats
    paths: Floats | None = None
    mean: Floats | None = None
    variance: Floats | None = None


class Record:
    """What is remembered of all paths. Portions of them are watched apart, in any order, and put together in theirs."""

    def __init__(self, keep: Keep, every: int, shape: tuple[int, int, int], scale: float) -> None:
        steps, paths, dimensions = shape
        self._every, self._scale = every, scale
        self._end = np.empty((paths, dimensions))
        self._moments = np.empty((0, dimensions)) if keep == "end" else np.zeros((steps // every + 1, dimensions))
        self._paths = np.empty((len(self._moments), paths, dimensions)) if keep == "paths" else None
        self._watches: list[Watch] = []

    def watch(self, some: slice) -> "Watch":
        """For these paths, which come after those of the watches before."""
        paths = None if self._paths is None else self._paths[:, some]
        self._watches.append(Watch(self._every, self._scale, self._end[some], paths, self._moments.copy()))
        return self._watches[-1]

    def solution(self, times: Floats) -> Solution:
        if self._paths is not None or not len(self._moments):
            return Solution(times, self._end, self._paths)
        first, *others = self._watches
        mean, squares, before = first.mean, first.squares, len(first.end)
        for watch in others:
            added = len(watch.end)
            difference = watch.mean - mean
            squares = squares + watch.squares + difference**2 * (before * added / (before + added))
            mean = mean + difference * (added / (before + added))
            before += added
        variance = squares / (before - 1) if before > 1 else np.full_like(squares, np.nan)
        return Solution(times, self._end, None, mean, variance)


class Watch:
    """Takes the values of a portion of the paths, block by block of steps.

    mean     over these paths, at each instant that is kept; ``squares``: the sums of squared differences from it
    """

    def __init__(self, every: int, scale: float, end: Floats, paths: Floats | None, moments: Floats) -> None:
        self.end, self.mean, self.squares = end, moments, moments.copy()
        self.needs_all = len(moments) > 0
        self._every, self._scale, self._paths = every, scale, paths

    def begin(self, now: Floats) -> None:
        """Where these paths begin."""
        if self.needs_all:
            self._note(0, now[None])

    def block(self, k: int, values: Floats) -> None:
        """The values after the steps k, k + 1, ..."""
        skipped = -(k + 1) % self._every
        if skipped < len(values):
            self._note((k + 1 + skipped) // self._every, values[skipped :: self._every])

    def finish(self, values: Floats) -> None:
        """Where these paths end."""
        np.multiply(self._scale, values, out=self.end)

    def _note(self, place: int, values: Floats) -> None:
        values = values if self._scale == 1 else self._scale * values
        places = slice(place, place + len(values))
        if self._paths is not None:
            self._paths[places] = values
            return
        mean = values.mean(axis=1)
        self.mean[places] = mean
        self.squares[places] = np.square(values - mean[:, None]).sum(axis=1)
