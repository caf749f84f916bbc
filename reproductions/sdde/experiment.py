"""Asynchronous SGD and its delay equation in distribution: many paths of each, and how far apart they are.

He, Meng, Chen, Ma & Liu, *Differential Equations for Modeling Asynchronous Algorithms*, Sec. 5: the loss
$F(x) = (x+1)^2/2 + (x-1)^2/2$, the learning rate 0.005, 2000 iterations from 4, a delay of 10. The paper shows one path
of each.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.theory import DelayedDescent, Moments, approximation_error, recursion_moments, solve_sdde
from reproductions.pipeline.values import rounded

Floats = NDArray[np.float64]
LR, RATE, SIGMA, DELAY, START, UPDATES = 0.005, 2.0, 2.0, 10, 4.0, 2000
WARM_UP = [0] * DELAY + [DELAY] * (UPDATES - DELAY)  # as in the paper: ten undelayed steps first
DELAYS: dict[str, int | list[int]] = {"sde": 0, "sdde": DELAY, "sgd": 0, "asgd": WARM_UP, "asgd_history": DELAY}
SEEDS = {name: number for number, name in enumerate(DELAYS)}
GRIDS = (256, 512, 1024, 2048)  # an order is a limit: here the delay is at most 4 % of the whole time
BATCHES = (1, 4, 16, 64)
BATCH_GRID = 512
THINNED = 10  # updates between the rows that are kept of curves


@dataclass(frozen=True)
class Ensemble:
    """Many paths of one method: their moments beside the exact ones, and the first of them."""

    name: str
    exact: Moments
    mean: Floats
    variance: Floats
    first: Floats


def ensemble(name: str, paths: int, seed: int = 0) -> Ensemble:
    """Many paths of a method: sde and sdde by the solver with normal noise, sgd and asgd with real mini-batches."""
    delays, shape = DELAYS[name], (UPDATES, paths, 1)
    own_seed = SEEDS[name] + len(SEEDS) * seed
    descent = DelayedDescent(lambda x: RATE * x, SIGMA, LR)
    exact = recursion_moments(LR * RATE, delays, LR * SIGMA, start=START, updates=UPDATES)
    if name.startswith("sd"):
        solution = solve_sdde(
            descent.equation(), step=LR, steps=UPDATES, delay=delays, history=START, paths=paths, seed=own_seed,
            keep="paths",
        )  # fmt: skip
        assert solution.paths is not None
        found = solution.paths
    else:
        generator = np.random.Generator(np.random.SFC64(own_seed))
        found = descent.paths(START, generator.choice([-1.0, 1.0], shape), delays)
    values = found[..., 0]
    return Ensemble(name, exact, values.mean(axis=1), values.var(axis=1, ddof=1), values[:, 0].copy())


def error_row(updates: int, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """How far the equation is from the algorithm after so many updates, as a row of the card."""
    error = approximation_error(
        updates, DELAY, batch_size, rate=RATE, sigma=SIGMA, start=START, paths=1000, refined=8, seed=updates + seed
    )
    found = {name: rounded(getattr(error, name), 6) for name in ("mean", "coupled", "uncoupled")}
    return {"what": "error", "updates": updates, "batch_size": batch_size, **found}


def paths_row(each: Ensemble) -> dict[str, Any]:
    """Moments of an ensemble and its first path, as a row of the card."""
    curves = {
        "mean": each.mean,
        "variance": each.variance,
        "exact_mean": each.exact.mean,
        "exact_variance": each.exact.variance,
    }
    return {
        "what": "paths",
        "method": each.name,
        "every": THINNED,
        **{name: [rounded(value, 6) for value in curve[::THINNED]] for name, curve in curves.items()},
        "first_path": [rounded(value) for value in each.first[:: THINNED // 2]],
    }
