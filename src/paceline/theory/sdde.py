r"""Paths of stochastic differential delay equations by the Euler-Maruyama method, many at a time.

$$dX(t) = f\big(t, X(t-\theta)\big)\,dt + g\big(t, X(t-\theta)\big)\,dB(t)$$

on the grid $t_k = t_0 + k\,\Delta$, with a delay of whole grid steps, $\theta = l_k \Delta$:

$$X_{k+1} = X_k + \big( f(t_k, X_{k-l_k})\,\Delta + g(t_k, X_{k-l_k})\,\sqrt\Delta\,z_k \big).$$

The method converges with strong order 1/2, or 1 if $g$ is constant, and with weak order 1. Without a delay it is the
Euler-Maruyama method of ordinary stochastic differential equations.

Both coefficients depend on the delayed value only, as those of asynchronous SGD do. So a block of $\min_k l_k + 1$
steps can be worked on at once, and paths in portions that stay in the processor's cache: what is left to pay for is
the random numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import daxpy

from paceline.core.errors import ConfigError
from paceline.theory.grid_delays import GridDelays, grid_delays
from paceline.theory.record import Keep, Record, Solution

Floats = NDArray[np.float64]
Coefficient = Callable[[Floats, Floats], ArrayLike]
MOST_ROWS = 16  # steps worked on at once
FEWEST_PATHS = 250  # worked on together: below it the calls cost more than the numbers
TINY = 1e-100  # noise below it cannot be a unit
IN_CACHE = 36_000  # numbers in a block: three of these fit a second-level cache of 1 MB


@dataclass(frozen=True)
class DelayEquation:
    r"""$dX = f\,dt + g\,dB$, with coefficients of the delayed value.

    drift      $f(t, x)$ as a function of arrays: ``t`` has the shape (steps, 1, 1), ``x`` has
               (steps, paths, dimensions), and so has the result. A number $c$ stands for $f = c\,x$
    diffusion  $g(t, x)$ in the same way: a factor for each dimension, of the shape of ``x``, or a matrix for each, with
               one more dimension at the end. A number or a matrix stands for a constant $g$
    unit       the time in which the coefficients count: over a step $\Delta$ they are multiplied with $\Delta$/unit and
               $\sqrt{\Delta/\text{unit}}$. Coefficients of one update of an algorithm have the time of an update here,
               so that a step of that length has no rounding of its own
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
) -> Solution:
    r"""Paths of ``equation`` over ``steps`` grid steps of the length ``step``, from the time ``start`` on.

    delay    in grid steps: a number; a mapping from delays to probabilities, drawn anew for each step and path; or the
             delay of each step, as it was recorded
    history  the past, $X(t)$ for $t \le$ ``start``: one value (or vector) for all times, a function of time, or
             rows, the last of which is the value at ``start``
    seed     of the normal numbers, and of the delays, which have a stream of their own
    noise    standard normal numbers to use instead, by step, path and dimension
    keep     what to remember beside the ``end``: mean and variance at each instant (``moments``) or all ``paths``.
             Memory does not depend on the number of steps otherwise
    every    keep each so many steps only

    An equation that is not stable runs off to infinity without a warning.
    """
    _check(step, steps, paths, every, keep)
    lags = grid_delays(delay, steps)
    past = _past(history, lags.reach, start, step, paths)
    dimensions = past.shape[-1]
    if noise is not None and noise.shape != (steps, paths, dimensions):
        raise ConfigError(f"noise of shape {noise.shape} cannot drive paths of shape {(steps, paths, dimensions)}")
    scheme = _Scheme(equation, step, start, lags)
    scale = scheme.noise_scale or 1.0
    streams = [np.random.Generator(np.random.SFC64(each)) for each in np.random.SeedSequence(seed).spawn(2)]
    record = Record(keep, every, (steps, paths, dimensions), scale)
    portion = max(FEWEST_PATHS, IN_CACHE // (scheme.rows * dimensions))
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, paths, portion):
            some = slice(begin, min(begin + portion, paths))
            scaled = past[:, some] / scale
            record.begin(some, scaled[-1])
            scheme.run(scaled, steps, streams, None if noise is None else noise[:, some], record)
    return record.solution(start + step * np.arange(0, steps + 1, every, dtype=np.float64))


@dataclass(frozen=True)
class _Scheme:
    """The method for a portion of the paths."""

    equation: DelayEquation
    step: float
    start: float
    lags: GridDelays

    @cached_property
    def rows(self) -> int:
        """Steps of a block: the delayed values of all of them are known when it begins."""
        return min(self.lags.shortest + 1, MOST_ROWS)

    @cached_property
    def noise_scale(self) -> float | None:
        """In units of this the noise is standard: one pass less over a linear equation with constant noise."""
        diffusion = self.equation.diffusion
        if callable(self.equation.drift) or callable(diffusion) or np.ndim(diffusion):
            return None
        scale = float(diffusion) * math.sqrt(self.step / self.equation.unit)
        return scale if abs(scale) > TINY else None

    def run(
        self,
        past: Floats,
        steps: int,
        streams: Sequence[np.random.Generator],
        noise: Floats | None,
        record: Record,
    ) -> None:
        """Normal numbers are drawn to where the values will be, and become increments and then values in place."""
        blocks = -(-(self.lags.longest + 1) // self.rows) + 1
        ring = np.empty((blocks * self.rows, *past.shape[1:]))  # X_k is in row k - 1, modulo its length
        for age in range(self.lags.reach + 1):
            ring[-age - 1] = past[-age - 1]
        values, add = list(ring), np.add
        for k in range(0, steps, self.rows):
            count = min(self.rows, steps - k)
            first = k % len(ring)
            new = ring[first : first + count]
            if noise is None:
                streams[0].standard_normal(out=new)
            else:
                new[...] = noise[k : k + count]
            delayed = self.lags.take(ring, k, count, streams[1])
            self._increments(k, delayed, new)
            for row in range(first, first + count):
                add(values[row - 1], values[row], values[row])
            if record.watches:
                record.block(k, new)
        record.finish(values[(steps - 1) % len(ring)])

    def _increments(self, k: int, delayed: Floats, normal: Floats) -> None:
        """Turn the normal numbers of the steps from k on into the steps' increments."""
        equation, ratio = self.equation, self.step / self.equation.unit
        if self.noise_scale is not None:
            assert not callable(equation.drift)
            daxpy(delayed.reshape(-1), normal.reshape(-1), a=equation.drift * ratio)  # adds to the normal numbers
            return
        times: Floats = self.start + self.step * np.arange(k, k + len(normal), dtype=np.float64).reshape(-1, 1, 1)
        scale = math.sqrt(ratio)
        diffusion = equation.diffusion(times, delayed) if callable(equation.diffusion) else equation.diffusion
        dimensions, shape = normal.shape[-1], np.shape(diffusion)
        if len(shape) not in (0, normal.ndim) and shape[-2:] != (dimensions, dimensions):
            raise ConfigError(
                f"a diffusion of shape {shape} does not go with {dimensions} dimensions: a factor or matrix"
            )
        if len(shape) in (0, normal.ndim):
            np.multiply(normal, diffusion if scale == 1 else np.multiply(scale, diffusion), normal)
        else:
            normal[...] = scale * np.einsum("...ij,...j->...i", np.asarray(diffusion), normal)
        if callable(equation.drift):
            drift = np.asarray(equation.drift(times, delayed))
            normal += drift if ratio == 1 else ratio * drift
        else:
            normal += np.multiply(equation.drift * ratio, delayed)


def _past(
    history: ArrayLike | Callable[[float], ArrayLike], reach: int, start: float, step: float, paths: int
) -> Floats:
    """The values at the last grid times up to the start, as many as are needed: by time, path and dimension."""
    if callable(history):
        rows = np.array([np.atleast_1d(history(start - age * step)) for age in range(reach, -1, -1)], dtype=np.float64)
    else:
        rows = np.asarray(history, dtype=np.float64)
        if rows.ndim < 2:  # one value for all times
            rows = np.broadcast_to(np.atleast_1d(rows), (reach + 1, rows.size))
    rows = rows[:, None, :] if rows.ndim == 2 else rows
    if rows.ndim != 3 or rows.shape[1] not in (1, paths) or not rows.size:
        raise ConfigError(f"a history of shape {rows.shape} does not go with {paths} paths: rows by time, then values")
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
        raise ConfigError(f"cannot keep each {every} of {steps} steps of {paths} paths: at least 1 of 0 of 1")
    if keep not in ("end", "moments", "paths"):
        raise ConfigError(f"cannot keep {keep!r}: choose end, moments or paths")
