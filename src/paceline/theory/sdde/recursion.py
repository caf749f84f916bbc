r"""Stochastic gradient descent with delayed gradients, for many paths at a time.

$$x_{k+1} = x_k + \big( -\eta u_k \nabla F(x_{k-l_k}) + \eta u_k \sigma z_k \big) \tag{5}$$

with noise $z_k$ of mean 0 and variance 1. With normal noise this is, bit for bit, the Euler-Maruyama scheme of its
``equation`` with the grid step $\delta$; with the noise of mini-batches it is the algorithm (Eqs. 3 and 4).

He et al., *Differential Equations for Modeling Asynchronous Algorithms*, Secs. 2.1 and 3.1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.core.errors import ConfigError
from paceline.theory.sdde.moments import recursion_moments, sdde_moments
from paceline.theory.sdde.paths import DelayEquation, solve_sdde
from paceline.theory.stability.delays import Delays, grid_delays

Floats = NDArray[np.float64]
Gradient = Callable[[Floats], Floats]
Choice = Literal["constant", "1/k", "1/sqrt k"]
FACTORS: dict[Choice, Callable[[float], float]] = {
    "constant": lambda k: 1.0,
    "1/k": lambda k: 1.0 / k,
    "1/sqrt k": lambda k: 1.0 / math.sqrt(k),
}


@dataclass(frozen=True)
class DelayedDescent:
    r"""SGD with delayed gradients: the gradient $\nabla F$ of arrays (path, dimension), and the learning rates.

    sigma   $\sigma$, the standard deviation of a stochastic gradient
    step    $\eta$, the learning rate
    decay   $u_k$: ``constant`` (choice (a) of the paper), ``1/k`` (b) or ``1/sqrt k`` (c). The last two start at k = 1
    warm_up the delay of the first updates: with ``history``, the values before the first are all $x_0$ (the delay is
            $\min(k, l)$, and the SDDE has a constant history); with ``undelayed``, the first $l$ updates have no
            delay, as in the experiment of the paper
    """

    gradient: Gradient
    sigma: float
    step: float
    decay: Choice = "constant"
    warm_up: Literal["history", "undelayed"] = "history"

    def __post_init__(self) -> None:
        if not 0 < self.step < math.inf:
            raise ConfigError(f"a learning rate of {self.step} is not possible: positive and finite")
        if not 0 <= self.sigma < math.inf:
            raise ConfigError(f"a noise of {self.sigma} is not possible: at least 0, and finite")
        for name, chosen, known in (
            ("decay", self.decay, [*FACTORS]),
            ("warm_up", self.warm_up, ["history", "undelayed"]),
        ):
            if chosen not in known:
                raise ConfigError(f"{name}={chosen!r} is unknown: choose one of {', '.join(known)}")

    @property
    def first(self) -> int:
        """The index of the first update: 1 if $u_0$ would be infinite."""
        return 0 if self.decay == "constant" else 1

    def paths(self, start: ArrayLike, noise: Floats, delays: Delays | Sequence[int] = 0, seed: int = 0) -> Floats:
        r"""$x_0, x_1, \dots$ by update, path and dimension, one update for each row of ``noise`` ($z$).

        delays  a number of updates; a mapping from delays to probabilities, drawn for each update and path with
                ``seed``; or the recorded delay of each update
        """
        if noise.ndim != 3:
            raise ConfigError(f"noise of shape {noise.shape} must have the axes update, path, dimension")
        updates, paths, _ = noise.shape
        lags = self._lags(delays, updates, paths, seed)
        values = np.empty((updates + 1, *noise.shape[1:]))
        values[0] = start
        for k, normal in enumerate(noise):
            scaled = self.step * FACTORS[self.decay](k + self.first)
            delayed = values[np.maximum(k - lags[k], 0), np.arange(paths)]  # before x_0 was x_0
            values[k + 1] = values[k] + (-scaled * self.gradient(delayed) + (scaled * self.sigma) * normal)
        return values

    def equation(self, interval: float | None = None) -> DelayEquation:
        r"""The SDDE whose Euler-Maruyama scheme this is, $x_k \approx X(k\delta)$:

        $$dX = -\frac{\eta}{\delta}\, U(t)\, \nabla F(X(t-\theta))\,dt
        + \frac{\eta}{\sqrt\delta}\, U(t)\, \sigma\,dB. \tag{6}$$

        interval  $\delta$, the time of an update; by default $\eta$, as for choices (a) and (c)

        $U = 1$, $\delta/t$ or $\sqrt{\delta/t}$; solve the last two from $t = \delta$ (``start=interval``).
        """
        delta = self.step if interval is None else interval
        gradient, step, decay = self.gradient, self.step, self.decay

        def factor(t: Floats) -> Floats | float:
            if decay == "constant":
                return step
            return step * (delta / t if decay == "1/k" else np.sqrt(delta / t))

        if decay == "constant":
            return DelayEquation(lambda t, x: -step * gradient(x), step * self.sigma, delta)
        return DelayEquation(
            lambda t, x: -factor(t) * gradient(x), lambda t, x: np.broadcast_to(factor(t) * self.sigma, x.shape), delta
        )

    def _lags(self, delays: Delays | Sequence[int], updates: int, paths: int, seed: int) -> NDArray[np.intp]:
        """The delay of each update and path."""
        known = grid_delays(delays, updates)
        if known.recorded is not None:
            lags = np.broadcast_to(known.recorded[:, None], (updates, paths))
        elif known.shares is not None:
            stream = np.random.Generator(np.random.SFC64(seed))
            lags = stream.choice(len(known.shares), size=(updates, paths), p=known.shares)
        else:
            lags = np.full((updates, paths), known.longest)
        if self.warm_up == "undelayed":
            lags = np.where(np.arange(updates)[:, None] < known.longest, 0, lags)
        return lags


@dataclass(frozen=True)
class ApproximationError:
    r"""Distance between $X(1)$ and $x_K$, in three readings, because the theorems do not say how they are coupled.

    mean       $|E X - E x_K|$: exact
    coupled    $E|X - \tilde x_K|$, where $\tilde x$ is the algorithm with the Brownian motion's own noise. Sampled
    uncoupled  $E|X - x_K|$ with mini-batches that are independent of the Brownian motion. Sampled
    """

    mean: float
    coupled: float
    uncoupled: float


def approximation_error(
    updates: int,
    delay: int,
    batch_size: int,
    *,
    rate: float = 2.0,
    sigma: float = 2.0,
    start: float = 4.0,
    paths: int = 2000,
    refined: int = 16,
    seed: int = 0,
) -> ApproximationError:
    """The error after ``updates`` ($K$) with a fixed ``delay`` ($l$) and mini-batches of ``batch_size`` ($b$).

    $X$ is computed on a grid that is ``refined`` times finer: the relative error of ``coupled`` is about 1/``refined``.
    """
    if updates < 1 or batch_size < 1 or refined < 2:
        raise ConfigError(f"cannot compare {updates} updates of batches of {batch_size}, refined {refined} times")
    step, noise = 1 / updates, sigma / math.sqrt(batch_size)
    generator = np.random.Generator(np.random.SFC64(seed))
    fine = generator.standard_normal((updates * refined, paths, 1))
    coarse = fine.reshape(updates, refined, paths, 1).sum(axis=1) / math.sqrt(refined)
    equation = DelayEquation(-rate, math.sqrt(step) * noise)
    descent = DelayedDescent(lambda x: rate * x, noise, step)
    exact = solve_sdde(
        equation, step=step / refined, steps=updates * refined, delay=delay * refined, history=start, paths=paths,
        noise=fine,
    ).end  # fmt: skip
    heads = generator.binomial(batch_size, 0.5, (updates, paths, 1))
    batches: Floats = np.asarray((2.0 * heads - batch_size) / math.sqrt(batch_size), dtype=np.float64)
    continuous = sdde_moments(rate, delay, math.sqrt(step) * noise, unit=step, updates=updates, history=start).mean[-1]
    discrete = recursion_moments(rate * step, delay, step * noise, start=start, updates=updates).mean[-1]
    return ApproximationError(
        mean=float(abs(continuous - discrete)),
        coupled=float(np.abs(exact - descent.paths(start, coarse, delay)[-1]).mean()),
        uncoupled=float(np.abs(exact - descent.paths(start, batches, delay)[-1]).mean()),
    )
