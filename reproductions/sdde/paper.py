"""``python -m reproductions sdde``: asynchronous SGD and its delay equation, in distribution and not only as one path.

He, Meng, Chen, Ma & Liu, *Differential Equations for Modeling Asynchronous Algorithms*, Sec. 5: the loss
$F(x) = (x+1)^2/2 + (x-1)^2/2$, the step 0.005, 2000 iterations from 4, a delay of 10. The paper shows one path of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.theory import DelayedDescent, Moments, approximation_error, recursion_moments, solve_sdde
from reproductions.pipeline.card import Card, Options

__all__ = ["figures", "reproduce"]
Floats = NDArray[np.float64]
STEP, RATE, SIGMA, DELAY, START, UPDATES = 0.005, 2.0, 2.0, 10, 4.0, 2000
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


def reproduce(options: Options) -> Card:
    """The paper's experiment with 4,000 paths (1,000 if quick), its approximation errors, and its theorems."""
    return reproduce_with(1000 if options.quick else 4000, options.quick)


def reproduce_with(paths: int, quick: bool) -> Card:
    """With any number of paths."""
    from reproductions.sdde.claims import all_claims

    ensembles = {name: ensemble(name, paths) for name in DELAYS}
    by_grid = [_error(updates, 1) for updates in (GRIDS[:-1] if quick else GRIDS)]
    by_batch = [_error(BATCH_GRID, size) for size in BATCHES]
    claims = all_claims(ensembles, by_grid, by_batch, paths)
    rows = [*(_row(each) for each in ensembles.values()), *by_grid, *by_batch]
    settings = {
        "experiment": "F = (x+1)^2/2 + (x-1)^2/2, step 0.005, 2000 iterations, delay 10, from 4",
        "noise": "gradients 2(x+1) and 2(x-1) with equal odds, mini-batches of 1: sigma 2",
        "paths": paths,
        "scale": f"reduced: {paths} of 4000 paths" if quick else "full",
    }
    return Card("sdde", settings, claims, rows)


def ensemble(name: str, paths: int) -> Ensemble:
    """Many paths of a method: sde and sdde by the solver with normal noise, sgd and asgd with real mini-batches."""
    delays, shape = DELAYS[name], (UPDATES, paths, 1)
    descent = DelayedDescent(lambda x: RATE * x, SIGMA, STEP)
    exact = recursion_moments(STEP * RATE, delays, STEP * SIGMA, start=START, updates=UPDATES)
    if name.startswith("sd"):
        solution = solve_sdde(
            descent.equation(), step=STEP, steps=UPDATES, delay=delays, history=START, paths=paths, seed=SEEDS[name],
            keep="paths",
        )  # fmt: skip
        assert solution.paths is not None
        found = solution.paths
    else:
        generator = np.random.Generator(np.random.SFC64(SEEDS[name]))
        found = descent.paths(START, generator.choice([-1.0, 1.0], shape), delays)
    values = found[..., 0]
    return Ensemble(name, exact, values.mean(axis=1), values.var(axis=1, ddof=1), values[:, 0].copy())


def figures(card: Card, directory: Path) -> list[Path]:
    """Fig. 1, the moments, the approximation errors, the bounds, and the limits of the step."""
    from reproductions.sdde.figures import draw

    return draw(card, directory)


def _error(updates: int, batch_size: int) -> dict[str, Any]:
    error = approximation_error(
        updates, DELAY, batch_size, rate=RATE, sigma=SIGMA, start=START, paths=1000, refined=8, seed=updates
    )
    found = {"mean": error.mean, "coupled": error.coupled, "uncoupled": error.uncoupled}
    return {"what": "error", "updates": updates, "batch_size": batch_size, **_rounded(found)}


def _row(each: Ensemble) -> dict[str, Any]:
    return {
        "what": "paths",
        "method": each.name,
        "every": THINNED,
        **_rounded(
            {
                "mean": each.mean[::THINNED],
                "variance": each.variance[::THINNED],
                "exact_mean": each.exact.mean[::THINNED],
                "exact_variance": each.exact.variance[::THINNED],
            }
        ),
        "first_path": [float(f"{value:.5g}") for value in each.first[:: THINNED // 2]],
    }


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Six digits of each number, or of each in a list."""

    def short(value: Any) -> Any:
        return [short(each) for each in value] if np.ndim(value) else float(f"{value:.6g}")

    return {name: short(value) for name, value in values.items()}
