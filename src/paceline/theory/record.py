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
    """Takes the values of a portion of the paths after the other, block by block of steps."""

    def __init__(self, keep: Keep, every: int, shape: tuple[int, int, int], scale: float) -> None:
        steps, paths, dimensions = shape
        self._scale = scale
        self._every = every
        self._some = slice(0, 0)
        self._end = np.empty((paths, dimensions))
        times = steps // every + 1
        self._paths = np.empty((times, paths, dimensions)) if keep == "paths" else None
        self._mean = np.zeros((times, dimensions)) if keep == "moments" else None
        self._squares = np.zeros((times if keep == "moments" else 0, dimensions))  # of differences from the mean
        self.watches = keep != "end"

    def begin(self, some: slice, now: Floats) -> None:
        """These paths are next, and this is where they begin."""
        self._some = some
        if self.watches:
            self._note(0, now[None])

    def block(self, k: int, values: Floats) -> None:
        """The values after the steps k, k + 1, ..."""
        skipped = -(k + 1) % self._every
        if skipped < len(values):
            self._note((k + 1 + skipped) // self._every, values[skipped :: self._every])

    def finish(self, values: Floats) -> None:
        """Where these paths end."""
        np.multiply(self._scale, values, out=self._end[self._some])

    def solution(self, times: Floats) -> Solution:
        if self._mean is None:
            return Solution(times, self._end, self._paths)
        count = len(self._end)
        variance = self._squares / (count - 1) if count > 1 else np.full_like(self._squares, np.nan)
        return Solution(times, self._end, None, self._mean, variance)

    def _note(self, place: int, values: Floats) -> None:
        values = values if self._scale == 1 else self._scale * values
        if self._paths is not None:
            self._paths[place : place + len(values), self._some] = values
        if self._mean is not None:
            before, added = self._some.start, values.shape[1]
            mean = values.mean(axis=1)
            difference = mean - self._mean[place : place + len(values)]
            self._squares[place : place + len(values)] += np.square(values - mean[:, None]).sum(axis=1)
            self._squares[place : place + len(values)] += difference**2 * (before * added / (before + added))
            self._mean[place : place + len(values)] += difference * (added / (before + added))
