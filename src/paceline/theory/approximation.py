r"""How far the SDDE is from the algorithm, measured: what Theorems 3.2 and 3.4 bound.

The problem is $F(x) = a x^2 / 2$, sampled so that a stochastic gradient is $a x \pm \sigma_1$ with equal odds; the mean
of a mini-batch of $b$ then has $\sigma = \sigma_1/\sqrt b$. As in the theorems, $\eta = \delta = 1/K$ and the end is
$t = 1$.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.theory.moments import recursion_moments, sdde_moments
from paceline.theory.recursion import DelayedDescent
from paceline.theory.sdde import DelayEquation, solve_sdde

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ApproximationError:
    r"""Between $X(1)$ and $x_K$, in three readings, as the theorems do not say what couples the two.

    mean       $|E X - E x_K|$: exact
    coupled    $E|X - \tilde x_K|$, where $\tilde x$ is the algorithm with the Brownian motion's own noise. Sampled
    uncoupled  $E|X - x_K|$ with mini-batches that have nothing to do with the Brownian motion. Sampled
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
    """After ``updates`` ($K$) with a fixed ``delay`` ($l$) and mini-batches of ``batch_size`` ($b$).

    $X$ is taken from a grid that is ``refined`` so many times, which leaves about a part in so many of ``coupled``.
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
