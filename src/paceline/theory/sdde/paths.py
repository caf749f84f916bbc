r"""Paths of stochastic differential delay equations by the Euler-Maruyama method, many at a time.

$$dX(t) = f\big(t, X(t-\theta)\big)\,dt + g\big(t, X(t-\theta)\big)\,dB(t)$$

on the grid $t_k = t_0 + k\,\Delta$, with a delay of whole grid steps, $\theta = l_k \Delta$:

$$X_{k+1} = X_k + \big( f(t_k, X_{k-l_k})\,\Delta + g(t_k, X_{k-l_k})\,\sqrt\Delta\,z_k \big).$$

The method converges with strong order 1/2, or 1 if $g$ is constant, and with weak order 1. Without a delay it is the
Euler-Maruyama method of ordinary stochastic differential equations.

Both coefficients depend only on the delayed value, as those of asynchronous SGD do. So a block of $\min_k l_k + 1$
steps is computed at once, for chunks of paths that fit into the processor's cache. Most of the time goes into random
numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.core.errors import ConfigError
from paceline.theory.stability.delays import GridDelays, grid_delays

Floats = NDArray[np.float64]
Keep = Literal["end", "moments", "paths"]


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of ``solve_sdde``. Arrays have the axes time, path, dimension; those that were not kept are None.

    times     the times of ``paths``, ``mean`` and ``variance``
    end       the values of all paths at the end
    mean      over the paths, at each time; so is ``variance``, which is unbiased
    """

    times: Floats
    end: Floats
    paths: Floats | None = None
    mean: Floats | None = None
    variance: Floats | None = None


class Record:
    """Collects what is kept of all paths. Chunks of paths are recorded separately, in any order, then combined."""

    def __init__(self, keep: Keep, every: int, shape: tuple[int, int, int], scale: float) -> None:
        steps, paths, dimensions = shape
        self._every, self._scale = every, scale
        self._end = np.empty((paths, dimensions))
        self._moments = np.empty((0, dimensions)) if keep == "end" else np.zeros((steps // every + 1, dimensions))
        self._paths = np.empty((len(self._moments), paths, dimensions)) if keep == "paths" else None
        self._watches: list[Watch] = []

    def watch(self, some: slice) -> "Watch":
        """A recorder for the next chunk of paths."""
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
    """Records a chunk of the paths, one block of steps after the other.

    mean     over these paths, at each time that is kept; ``squares``: the sums of squared differences from it
    """

    def __init__(self, every: int, scale: float, end: Floats, paths: Floats | None, moments: Floats) -> None:
        self.end, self.mean, self.squares = end, moments, moments.copy()
        self.needs_all = len(moments) > 0
        self._every, self._scale, self._paths = every, scale, paths

    def begin(self, now: Floats) -> None:
        """Record the values of these paths at the start."""
        if self.needs_all:
            self._note(0, now[None])

    def block(self, k: int, values: Floats) -> None:
        """Record the values after the steps k, k + 1, ..."""
        skipped = -(k + 1) % self._every
        if skipped < len(values):
            self._note((k + 1 + skipped) // self._every, values[skipped :: self._every])

    def finish(self, values: Floats) -> None:
        """Record the values of these paths at the end."""
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


Coefficient = Callable[[Floats, Floats], ArrayLike]
Streams = tuple[np.random.Generator, np.random.Generator]  # of normal numbers, and of delays
MOST_ROWS = 16  # steps computed at once
FEWEST_PATHS = 250  # in a chunk: with fewer, the overhead of calls dominates
TINY = 1e-100  # smaller noise is not used as a unit
IN_CACHE = 24_000  # numbers in a block: five of these fit a second-level cache of 1 MB


@dataclass(frozen=True)
class DelayEquation:
    r"""$dX = f\,dt + g\,dB$, with coefficients of the delayed value.

    drift      $f(t, x)$ as a function of arrays: ``t`` has the shape (steps, 1, 1), ``x`` has
               (steps, paths, dimensions), and so has the result. A number $c$ stands for $f = c\,x$
    diffusion  $g(t, x)$ in the same way: a factor for each dimension, of the shape of ``x``, or a matrix for each, with
               one more dimension at the end. A number or a matrix stands for a constant $g$
    unit       the unit of time of the coefficients: over a step $\Delta$ they are multiplied by $\Delta$/unit and
               $\sqrt{\Delta/\text{unit}}$. For coefficients per update of an algorithm, the time of an update; then a
               step of that length adds no rounding errors
    """

    drift: Coefficient | float
    diffusion: Coefficient | float | Floats
    unit: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.unit < math.inf:
            raise ConfigError(f"a unit of time of {self.unit} is not possible: positive and finite")


def solve_sdde(
    equation: DelayEquation,
    *,
    step: float,
    steps: int,
    delay: int | Mapping[int, float] | Sequence[int] = 0,
    history: ArrayLike | Callable[[float], ArrayLike] = 0.0,
    paths: int = 1,
    start: float = 0.0,
    seed: int = 0,
    noise: Floats | None = None,
    keep: Keep = "end",
    every: int = 1,
    threads: int = 1,
) -> Solution:
    r"""Paths of ``equation`` over ``steps`` grid steps of the length ``step``, from the time ``start``.

    delay    in grid steps: a number; a mapping from delays to probabilities, drawn for each step and path; or a
             sequence with the delay of each step
    history  the past, $X(t)$ for $t \le$ ``start``: one value (or vector) for all times, a function of time, or
             rows, the last of which is the value at ``start``
    seed     random seed of the normal numbers, and of the delays, which have their own stream
    noise    standard normal numbers to use instead, by step, path and dimension
    keep     what to keep besides the ``end``: mean and variance at each time (``moments``) or all ``paths``.
             Otherwise memory does not depend on the number of steps
    every    keep every n-th step only
    threads  number of threads. The result has the same bits for any number; with several, the functions of the equation
             are called from several threads

    The paths of an unstable equation go to infinity without a warning.
    """
    _check(step, steps, paths, every, keep)
    if threads < 1:
        raise ConfigError(f"{threads} threads cannot solve anything: at least 1")
    lags = grid_delays(delay, steps)
    past = _past(history, lags.reach, start, step, paths)
    dimensions = past.shape[-1]
    if noise is not None and noise.shape != (steps, paths, dimensions):
        raise ConfigError(f"noise of shape {noise.shape} cannot drive paths of shape {(steps, paths, dimensions)}")
    scheme = _Scheme(equation, step, start, steps, lags, dimensions)
    scale = scheme.noise_scale or 1.0
    record = Record(keep, every, (steps, paths, dimensions), scale)
    portions = _portions(paths, max(FEWEST_PATHS, IN_CACHE // (scheme.rows * dimensions)))
    streams = _streams(seed, len(portions))
    watches = [record.watch(some) for some in portions]

    def follow(some: slice, streams: Streams, watch: Watch) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # each thread has its own settings
            scheme.run(past[:, some] / scale, None if noise is None else noise[:, some], streams, watch)

    if threads == 1:
        for each in zip(portions, streams, watches, strict=True):
            follow(*each)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(follow, portions, streams, watches))  # an error cancels the rest
    with np.errstate(over="ignore", invalid="ignore"):
        return record.solution(start + step * np.arange(0, steps + 1, every, dtype=np.float64))


@dataclass(frozen=True, eq=False)
class _Scheme:
    """The Euler-Maruyama method for a chunk of the paths, with everything that is the same for all blocks."""

    equation: DelayEquation
    step: float
    start: float
    steps: int
    lags: GridDelays
    dimensions: int

    @cached_property
    def rows(self) -> int:
        """The number of steps in a block: all their delayed values are known when it starts."""
        return min(self.lags.shortest + 1, MOST_ROWS)

    @cached_property
    def noise_scale(self) -> float | None:
        """The unit in which noise is standard normal, for linear equations with constant noise: it saves a pass."""
        if callable(self.equation.drift) or callable(self.equation.diffusion) or np.ndim(self.equation.diffusion):
            return None
        scale = float(self.equation.diffusion) * math.sqrt(self._ratio)
        return scale if abs(scale) > TINY else None

    @cached_property
    def _ratio(self) -> float:
        return self.step / self.equation.unit

    @cached_property
    def _offsets(self) -> Floats:
        """The times of the steps of a block, relative to the first."""
        offsets: Floats = self.step * np.arange(self.rows, dtype=np.float64).reshape(-1, 1, 1)
        return offsets

    @cached_property
    def _constant(self) -> Floats | None:
        """The factor of the normal numbers, if it is the same for all steps."""
        return None if callable(self.equation.diffusion) else self._factors(self.equation.diffusion)

    def run(self, past: Floats, noise: Floats | None, streams: Streams, watch: Watch) -> None:
        """Draw normal numbers, and turn them into increments and then into values, in place."""
        blocks = -(-(self.lags.longest + 1) // self.rows) + 1
        ring = np.empty((blocks * self.rows, *past.shape[1:]))  # X_k is in row k - 1, modulo its length
        for age in range(self.lags.reach + 1):
            ring[-age - 1] = past[-age - 1]
        values = list(ring)
        before = [values[-1], *values[:-1]]
        watch.begin(values[-1])
        for k in range(0, self.steps, self.rows):
            first = k % len(ring)
            rows = slice(first, first + min(self.rows, self.steps - k))
            new = ring[rows]
            if noise is None:
                streams[0].standard_normal(out=new)
            else:
                new[...] = noise[k : k + len(new)]
            self._increments(k, self.lags.take(ring, k, len(new), streams[1]), new)
            for _ in map(np.add, before[rows], values[rows], values[rows]):
                pass  # each increment becomes a value in place
            if watch.needs_all:
                watch.block(k, new)
        watch.finish(values[(self.steps - 1) % len(ring)])

    def _increments(self, k: int, delayed: Floats, normal: Floats) -> None:
        """Turn the normal numbers of the steps k, k + 1, ... into increments, in place."""
        drift, diffusion, ratio = self.equation.drift, self.equation.diffusion, self._ratio
        if self.noise_scale is not None:
            assert not callable(drift)
            normal += drift * ratio * delayed
            return
        times: Floats = self._offsets[: len(normal)] + (self.start + self.step * k)
        factors = self._factors(diffusion(times, delayed)) if callable(diffusion) else self._constant
        assert factors is not None
        if factors.ndim in (0, normal.ndim):
            np.multiply(normal, factors, normal)
        else:
            normal[...] = np.einsum("...ij,...j->...i", factors, normal)
        if not callable(drift):
            normal += drift * ratio * delayed
        elif ratio == 1:
            np.add(normal, drift(times, delayed), normal)
        else:
            normal += np.multiply(ratio, drift(times, delayed))

    def _factors(self, diffusion: ArrayLike) -> Floats:
        """The diffusion over one step, after checking its shape."""
        found, dimensions = np.asarray(diffusion, dtype=np.float64), self.dimensions
        if found.ndim not in (0, 3) and found.shape[-2:] != (dimensions, dimensions):
            raise ConfigError(
                f"a diffusion of shape {found.shape} does not fit {dimensions} dimensions: a factor or matrix"
            )
        return found if self._ratio == 1 else math.sqrt(self._ratio) * found


def _portions(paths: int, most: int) -> list[slice]:
    """Chunks of nearly equal size, of at most ``most`` paths."""
    count = -(-paths // most)
    edges = [paths * number // count for number in range(count + 1)]
    return [slice(*each) for each in pairwise(edges)]


def _streams(seed: int, portions: int) -> list[Streams]:
    """Random streams for each chunk, so that the result does not depend on the order of threads."""
    each = [np.random.Generator(np.random.SFC64(child)) for child in np.random.SeedSequence(seed).spawn(2 * portions)]
    return list(zip(each[::2], each[1::2], strict=True))


def _past(
    history: ArrayLike | Callable[[float], ArrayLike], reach: int, start: float, step: float, paths: int
) -> Floats:
    """The values at the grid times before the start that are needed: by time, path and dimension."""
    if callable(history):
        rows = np.array([np.atleast_1d(history(start - age * step)) for age in range(reach, -1, -1)], dtype=np.float64)
    else:
        rows = np.asarray(history, dtype=np.float64)
        if rows.ndim < 2:  # one value for all times
            rows = np.broadcast_to(np.atleast_1d(rows), (reach + 1, rows.size))
    rows = rows[:, None, :] if rows.ndim == 2 else rows
    if rows.ndim != 3 or rows.shape[1] not in (1, paths) or not rows.size:
        raise ConfigError(f"a history of shape {rows.shape} does not fit {paths} paths: rows by time, then values")
    if len(rows) <= reach:
        raise ConfigError(
            f"the delay reaches {reach} steps back, but the history has {len(rows)} rows: give {reach + 1}, or a value"
        )
    if not np.isfinite(rows).all():
        raise ConfigError("the history is not finite")
    return np.broadcast_to(rows, (len(rows), paths, rows.shape[2]))


def _check(step: float, steps: int, paths: int, every: int, keep: str) -> None:
    if not 0 < step < math.inf:
        raise ConfigError(f"a grid step of {step} is not possible: positive and finite")
    if steps < 0 or paths < 1 or every < 1:
        raise ConfigError(f"every={every}, steps={steps}, paths={paths} is not possible: at least 1, 0 and 1")
    if keep not in ("end", "moments", "paths"):
        raise ConfigError(f"cannot keep {keep!r}: choose end, moments or paths")
