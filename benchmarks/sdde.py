"""The solver of delay equations against its random numbers, and without a delay against other libraries.

    python benchmarks/sdde.py [--save] [--rounds N]

solve / draw        10,000 paths of 2,000 steps with a delay of 10, over drawing as many normal numbers with the same
                    generator on one thread, in blocks that stay in the cache. ``linear``: coefficients are numbers;
                    ``functions``: Python functions; each on one thread and on two
CPU, solve / draw   the same in computing time, that of all threads together
doubled             what twice the paths and twice the steps take
peak MB             memory allocated for 500 and for 4,000 steps
undelayed           dX = -2 X dt + 0.14 dB by Euler's method, in double precision on one core: how many times as long
                    others take for a step of a path. torchsde, diffrax and sdeint: pip install 'paceline[bench]'
load                of the machine when it began: with more than one, others had the caches too
critical_step_ms    the longest of several histograms of delays up to 200, the median over the rounds
"""

import math
import os
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np
import torch
from measuring import interleaved, parse, ratio, save, seconds

from paceline.theory import DelayEquation, critical_step, solve_sdde
from paceline.theory.sdde.paths import IN_CACHE

PATHS, STEPS, DELAY, STEP = 10_000, 2_000, 10, 0.005
RATE, NOISE = 2.0, 2.0 * math.sqrt(STEP)
LINEAR = DelayEquation(-RATE, NOISE)
FUNCTIONS = DelayEquation(lambda t, x: (-RATE * STEP) * x, NOISE * math.sqrt(STEP), unit=STEP)
FEW = 200  # steps of the comparison with others


def solve(
    equation: DelayEquation, *, paths: int = PATHS, steps: int = STEPS, delay: int = DELAY, threads: int = 1
) -> object:
    return solve_sdde(equation, step=STEP, steps=steps, delay=delay, history=4.0, paths=paths, threads=threads)


def draw() -> None:
    generator = np.random.Generator(np.random.SFC64(1))
    rows = DELAY + 1
    block = np.empty((rows, IN_CACHE // rows))
    for _ in range(PATHS * STEPS // block.size):
        generator.standard_normal(out=block)
    generator.standard_normal(PATHS * STEPS % block.size)


def beside_drawing(rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds, and seconds of computing by all threads together."""
    computing: dict[str, list[float]] = {}

    def noted(name: str, action: Callable[[], object]) -> None:
        begin = time.process_time()
        action()
        computing.setdefault(name, []).append(time.process_time() - begin)

    actions: dict[str, Callable[[], object]] = {"draw": draw}
    for name, equation in (("linear", LINEAR), ("functions", FUNCTIONS)):
        actions[name] = partial(solve, equation)
        actions[f"{name}, 2 threads"] = partial(solve, equation, threads=2)
    wall = interleaved({name: partial(noted, name, action) for name, action in actions.items()}, rounds)
    return wall, {name: each[1:] for name, each in computing.items()}


def peak(steps: int) -> float:
    tracemalloc.start()
    solve(LINEAR, steps=steps)
    top = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return round(top / 1e6, 2)


def with_torchsde() -> Callable[[], object]:
    import torchsde

    class Equation(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def f(self, t: Any, y: Any) -> Any:
            return -RATE * y

        def g(self, t: Any, y: Any) -> Any:
            return torch.full_like(y, NOISE)

    begin, times = (
        torch.full((PATHS, 1), 4.0, dtype=torch.float64),
        torch.tensor([0.0, FEW * STEP], dtype=torch.float64),
    )
    equation = Equation()

    def run() -> object:
        with torch.no_grad():
            return torchsde.sdeint(equation, begin, times, method="euler", dt=STEP)

    return run


def with_diffrax() -> Callable[[], object]:
    import diffrax
    import jax
    import lineax

    jax.config.update("jax_enable_x64", True)

    def integrate(key: Any, begin: Any) -> Any:
        path = diffrax.UnsafeBrownianPath(shape=begin.shape, key=key)
        noise = diffrax.ControlTerm(
            lambda t, y, args: lineax.DiagonalLinearOperator(jax.numpy.full_like(y, NOISE)), path
        )
        terms = diffrax.MultiTerm(diffrax.ODETerm(lambda t, y, args: -RATE * y), noise)
        solution = diffrax.diffeqsolve(
            terms, diffrax.Euler(), 0.0, FEW * STEP, STEP, begin, adjoint=diffrax.ForwardMode(), max_steps=FEW + 10
        )
        return solution.ys

    compiled, begin = jax.jit(integrate), jax.numpy.full((PATHS,), 4.0, dtype="float64")
    return lambda: compiled(jax.random.PRNGKey(0), begin).block_until_ready()


def with_sdeint() -> Callable[[], object]:
    import sdeint

    times, begin = np.linspace(0, FEW * STEP, FEW + 1), np.array([4.0])
    noise = np.array([[NOISE]])
    return lambda: sdeint.itoEuler(lambda y, t: -RATE * y, lambda y, t: noise, begin, times)


def others() -> dict[str, tuple[Callable[[], object], int] | str]:
    """What to run, and how many paths that is; or why not."""
    found: dict[str, tuple[Callable[[], object], int] | str] = {}
    for name, make, paths in (
        ("torchsde", with_torchsde, PATHS),
        ("diffrax", with_diffrax, PATHS),
        ("sdeint", with_sdeint, 1),
    ):
        found[name] = (make(), paths) if find_spec(name) else "not installed: pip install 'paceline[bench]'"
    return found


def undelayed(rounds: int) -> dict[str, float | str]:
    libraries = others()
    runs = {name: each[0] for name, each in libraries.items() if not isinstance(each, str)}
    ours: dict[str, Callable[[], object]] = {
        "linear": lambda: solve(LINEAR, steps=FEW, delay=0),
        "functions": lambda: solve(FUNCTIONS, steps=FEW, delay=0),
    }
    times = interleaved({**ours, **runs}, rounds)
    result: dict[str, float | str] = {}
    for name, each in libraries.items():
        if isinstance(each, str):
            result[name] = each
            continue
        for mine in ours:
            result[f"{name} / {mine}"] = round(ratio(times, name, mine) * PATHS / each[1], 2)
    return result


def critical_step_ms(rounds: int) -> float:
    generator = np.random.default_rng(0)
    histograms = []
    for spread in (0.05, 0.3, 1.0):
        shares = generator.dirichlet(np.full(201, spread))
        histograms.append(dict(enumerate((shares / shares.sum()).tolist())))
    slowest = []
    for _ in range(rounds):
        slowest.append(max(seconds(lambda h=h, m=m: critical_step(h, m)) for h in histograms for m in (0.0, 0.9)))
    return round(1e3 * median(slowest), 2)


def main() -> None:
    torch.set_num_threads(1)
    rounds = parse().rounds
    begun, load = time.perf_counter(), os.getloadavg()[0]
    wall, computing = beside_drawing(rounds)
    doubled = interleaved(
        {
            "once": lambda: solve(LINEAR, steps=500),
            "paths": lambda: solve(LINEAR, paths=2 * PATHS, steps=500),
            "steps": lambda: solve(LINEAR, steps=1000),
        },
        rounds,
    )
    result = {
        "solve / draw": {name: round(ratio(wall, name, "draw"), 3) for name in wall if name != "draw"},
        "CPU, solve / draw": {name: round(ratio(computing, name, "draw"), 3) for name in computing if name != "draw"},
        "draw_ns": round(1e9 * median(wall["draw"]) / (PATHS * STEPS), 2),
        "doubled": {name: round(ratio(doubled, name, "once"), 2) for name in ("paths", "steps")},
        "peak MB": {"500 steps": peak(500), "4000 steps": peak(4000)},
        "undelayed": undelayed(rounds),
        "critical_step_ms": critical_step_ms(rounds),
        "load": round(load, 1),
        "took_s": round(time.perf_counter() - begun, 1),
    }
    save("sdde", result)


if __name__ == "__main__":
    main()
