"""The solver of delay equations: the invariants L1 to L7 and L9, orders of convergence, and what it refuses.

Statistical tests state how many standard errors they allow; their seeds are fixed.
"""

import math
import threading
import tracemalloc
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.theory import DelayedDescent, DelayEquation, recursion_moments, sdde_moments, solve_sdde

Floats = NDArray[np.float64]
STEP, SIGMA, DELAY, START = 0.005, 2.0, 10, 4.0


def gradient(x: Floats) -> Floats:
    """Of the paper's experiment, F = (x+1)^2/2 + (x-1)^2/2."""
    return 2 * x


DESCENT = DelayedDescent(gradient, SIGMA, STEP)


def normals(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape)


@given(st.integers(0, 40), st.floats(1e-4, 0.1), st.floats(0, 3), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_the_scheme_with_the_step_of_the_algorithm_is_the_algorithm(
    delay: int, step: float, sigma: float, steps: int
) -> None:
    """L1: bit for bit, with the same noise; and L7: a constant history is the delay min(k, l)."""
    descent = DelayedDescent(np.sin, sigma, step)
    noise = normals(steps, 3, 2)
    solution = solve_sdde(
        descent.equation(), step=step, steps=steps, delay=delay, history=[1.5, -0.5], paths=3, noise=noise, keep="paths"
    )
    assert solution.paths is not None
    np.testing.assert_array_equal(solution.paths, descent.paths([1.5, -0.5], noise, delay))
    recorded = [min(k, delay) for k in range(steps)]
    np.testing.assert_array_equal(solution.paths, descent.paths([1.5, -0.5], noise, recorded))


def test_without_a_delay_it_is_euler_maruyama() -> None:
    """L2, with coefficients that depend on time and place."""
    equation = DelayEquation(lambda t, x: np.cos(t) - x, lambda t, x: 0.3 + 0.1 * x)
    noise = normals(50, 4, 1)
    solution = solve_sdde(equation, step=0.01, steps=50, history=1.0, paths=4, noise=noise)
    x = np.ones((4, 1))
    for k in range(50):
        x = x + (0.01 * (np.cos(0.01 * k) - x) + (0.3 + 0.1 * x) * 0.1 * noise[k])
    np.testing.assert_allclose(solution.end, x, rtol=1e-13)


def test_without_noise_it_is_delayed_gradient_descent() -> None:
    """L3."""
    path = [START] * (DELAY + 1)
    for _ in range(100):
        path.append(path[-1] - STEP * 2 * path[-1 - DELAY])
    descent = DelayedDescent(gradient, 0.0, STEP)
    solution = solve_sdde(descent.equation(), step=STEP, steps=100, delay=DELAY, history=START)
    assert solution.end[0, 0] == pytest.approx(path[-1], rel=1e-14)


@pytest.mark.parametrize("delay", [DELAY, {0: 0.5, 3: 0.5}])
def test_a_moved_problem_has_moved_paths(delay: "int | dict[int, float]") -> None:
    """L4."""
    moved = DelayedDescent(lambda x: 2 * (x - 7), SIGMA, STEP)
    here = solve_sdde(DESCENT.equation(), step=STEP, steps=200, delay=delay, history=START, paths=5, seed=1)
    there = solve_sdde(moved.equation(), step=STEP, steps=200, delay=delay, history=START + 7, paths=5, seed=1)
    np.testing.assert_allclose(there.end - 7, here.end, atol=1e-12)


def test_a_linear_problem_is_linear_in_start_and_noise() -> None:
    """L5."""

    def end(start: float, noise: Floats) -> Floats:
        return solve_sdde(DESCENT.equation(), step=STEP, steps=60, delay=4, history=start, paths=2, noise=noise).end

    one, two = normals(60, 2, 1, seed=1), normals(60, 2, 1, seed=2)
    np.testing.assert_allclose(end(3 * 1.0 + 2.0, 3 * one + two), 3 * end(1.0, one) + end(2.0, two), rtol=1e-11)


def test_drawn_delays_that_are_always_the_same_are_fixed_ones() -> None:
    """L6."""
    ends = [
        solve_sdde(DESCENT.equation(), step=STEP, steps=300, delay=delay, history=START, paths=7, seed=3).end
        for delay in (6, {6: 1.0}, {0: 0.0, 6: 1.0}, [6] * 300)
    ]
    for other in ends[1:]:
        np.testing.assert_array_equal(other, ends[0])


def test_at_rest_in_the_optimum_it_stays() -> None:
    """L9."""
    descent = DelayedDescent(lambda x: 2 * (x - 1), 0.0, STEP)
    solution = solve_sdde(descent.equation(), step=STEP, steps=500, delay={0: 0.3, 20: 0.7}, history=1.0, paths=3)
    assert (solution.end == 1.0).all()


@pytest.mark.parametrize("decay", ["1/k", "1/sqrt k"])
def test_falling_steps_begin_with_the_first_update(decay: str) -> None:
    """Choices (b) and (c) of delta; their factors are rounded differently."""
    descent = DelayedDescent(gradient, SIGMA, 0.1, decay)  # type: ignore[arg-type]
    interval = 0.25 if decay == "1/k" else None
    noise = normals(200, 3, 1)
    delta = interval or 0.1
    solution = solve_sdde(
        descent.equation(interval), step=delta, steps=200, delay=3, history=START, paths=3, start=delta, noise=noise
    )
    np.testing.assert_allclose(solution.end, descent.paths(START, noise, 3)[-1], rtol=1e-10)


def test_a_linear_equation_given_by_numbers_is_the_one_given_by_functions() -> None:
    numbers = DelayEquation(-2.0, 0.3)
    functions = DelayEquation(lambda t, x: -2 * x, lambda t, x: np.full_like(x, 0.3))
    for kept in ("moments", "paths"):
        one, other = (
            solve_sdde(each, step=0.01, steps=57, delay=5, history=1.0, paths=300, keep=kept, every=7)
            for each in (numbers, functions)
        )
        for name in ("times", "end", "paths", "mean", "variance"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert (mine is None) == (theirs is None)
            if mine is not None:
                np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-14)


def test_moments_are_those_of_the_paths() -> None:
    """Over several portions of paths, with fewer in the last."""
    arguments = {"step": STEP, "steps": 45, "delay": 10, "history": START, "paths": 6001, "seed": 2}
    full = solve_sdde(DESCENT.equation(), keep="paths", **arguments)  # type: ignore[arg-type]
    brief = solve_sdde(DESCENT.equation(), keep="moments", every=9, **arguments)  # type: ignore[arg-type]
    assert full.paths is not None
    assert brief.mean is not None
    assert brief.variance is not None
    np.testing.assert_array_equal(brief.end, full.end)
    np.testing.assert_allclose(brief.times, full.times[::9])
    np.testing.assert_allclose(brief.mean, full.paths.mean(axis=1)[::9], rtol=1e-12)
    np.testing.assert_allclose(brief.variance, full.paths.var(axis=1, ddof=1)[::9], rtol=1e-9, atol=1e-25)


def test_two_paths_have_a_variance_and_one_has_none() -> None:
    arguments = {"step": STEP, "steps": 5, "delay": 10, "history": START, "seed": 2}
    both = solve_sdde(DESCENT.equation(), keep="paths", paths=2, **arguments)  # type: ignore[arg-type]
    two, one = (solve_sdde(DESCENT.equation(), keep="moments", paths=n, **arguments) for n in (2, 1))  # type: ignore[arg-type]
    assert both.paths is not None
    assert two.variance is not None
    assert one.variance is not None
    np.testing.assert_allclose(two.variance, both.paths.var(axis=1, ddof=1), rtol=1e-9, atol=1e-25)
    assert np.isnan(one.variance).all()


@pytest.mark.parametrize("keep", ["end", "moments", "paths"])
@pytest.mark.parametrize("delay", [10, {0: 0.5, 5: 0.5}])
def test_the_result_does_not_depend_on_the_number_of_threads(
    keep: Literal["end", "moments", "paths"], delay: "int | dict[int, float]"
) -> None:
    """Over several portions, to the last bit."""
    one, *others = (
        solve_sdde(
            DESCENT.equation(),
            step=STEP,
            steps=30,
            delay=delay,
            history=START,
            paths=50_001,
            keep=keep,
            threads=threads,
        )
        for threads in (1, 2, 5)
    )
    for other in others:
        for name in ("end", "paths", "mean", "variance"):
            np.testing.assert_array_equal(getattr(other, name), getattr(one, name))


def test_portions_have_noise_of_their_own() -> None:
    """No two of the paths are the same."""
    end = solve_sdde(DelayEquation(-1.0, 1.0), step=0.1, steps=3, delay=10, paths=10_000).end
    assert len(np.unique(end)) == 10_000


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_coefficient_ends_all_threads(threads: int) -> None:
    """It reaches the caller, and no thread is left behind."""

    def drift(t: Floats, x: Floats) -> Floats:
        raise ZeroDivisionError("of the user")

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="of the user"):
        solve_sdde(DelayEquation(drift, 1.0), step=0.1, steps=3, delay=10, paths=20_000, threads=threads)
    assert threading.active_count() == before


def test_matrices_of_noise() -> None:
    """A constant matrix, and the same as a function; the covariance of one step is G G^T (4 standard errors)."""
    matrix = np.array([[1.0, 0.0], [0.8, 0.6]])
    ends = [
        solve_sdde(DelayEquation(lambda t, x: 0 * x, noise), step=1.0, steps=1, history=[0.0, 0.0], paths=20_000).end
        for noise in (matrix, lambda t, x: np.broadcast_to(matrix, (*x.shape, 2)))
    ]
    np.testing.assert_allclose(ends[0], ends[1])
    assert np.cov(ends[0].T) == pytest.approx(matrix @ matrix.T, abs=4 * math.sqrt(2 / 20_000))


def test_recorded_delays_and_given_histories() -> None:
    delays, past = [2, 0, 1, 3, 0, 5], [0.5, 0.7, 1.0]
    equation = DelayEquation(lambda t, x: -0.1 * x, 0.0)
    values = [*past]
    for delay in delays:
        values.append(values[-1] - 0.1 * values[-1 - delay])
    solution = solve_sdde(equation, step=1.0, steps=6, delay=delays, history=np.array(past)[:, None], keep="paths")
    assert solution.paths is not None
    np.testing.assert_allclose(solution.paths[:, 0, 0], values[2:], rtol=1e-14)
    of_time = solve_sdde(equation, step=1.0, steps=6, delay=delays, history=lambda t: past[int(t) + 2])
    np.testing.assert_array_equal(of_time.end, solution.end)


@pytest.mark.parametrize("delay", [0, 10, {0: 0.5, 5: 0.25, 10: 0.25}, [k % 7 for k in range(400)]])
def test_simulated_moments_are_the_exact_ones(delay: "int | dict[int, float] | list[int]") -> None:
    """4,000 paths: each mean within 4.5 standard errors, each variance within 5 (402 correlated looks each)."""
    paths, updates = 4000, 400
    past = 4.0
    solution = solve_sdde(
        DESCENT.equation(), step=STEP, steps=updates, delay=delay, history=past, paths=paths, seed=11, keep="moments"
    )
    exact = recursion_moments(2 * STEP, delay, STEP * SIGMA, start=START, updates=updates)
    assert solution.mean is not None
    assert solution.variance is not None
    error = np.sqrt(exact.variance[1:] / paths)
    assert (np.abs(solution.mean[1:, 0] - exact.mean[1:]) < 4.5 * error).all()
    assert solution.variance[1:, 0] == pytest.approx(exact.variance[1:], rel=5 * math.sqrt(2 / paths))


def slope(steps: list[int], errors: list[float]) -> float:
    return -float(np.polyfit(np.log(steps), np.log(errors), 1)[0])


def strong_errors(equation: DelayEquation, grids: list[int], finest: int) -> list[float]:
    """E|X - X_coarse| at time 1 on the same Brownian paths, with a delay of a quarter."""
    noise = normals(finest, 2000, 1, seed=7)

    def end(grid: int) -> Floats:
        coarse = noise.reshape(grid, finest // grid, 2000, 1).sum(axis=1) / math.sqrt(finest // grid)
        return solve_sdde(
            equation, step=1 / grid, steps=grid, delay=grid // 4, history=lambda t: 1 + t, paths=2000, noise=coarse
        ).end

    best = end(finest)
    return [float(np.abs(end(grid) - best).mean()) for grid in grids]


GRIDS = [8, 16, 32, 64]


@pytest.mark.parametrize(
    ("diffusion", "order"),
    [(lambda t, x: 1.5 * x, 0.5), (lambda t, x: 0.5 + 0 * x, 1.0)],
    ids=["multiplicative", "additive"],
)
def test_strong_order(diffusion: Callable[[Floats, Floats], Floats], order: float) -> None:
    """1/2, or 1 with additive noise; 2,000 paths and a reference 32 times as fine leave 0.15."""
    errors = strong_errors(DelayEquation(lambda t, x: -x, diffusion), GRIDS, 2048)
    assert slope(GRIDS, errors) == pytest.approx(order, abs=0.15)


def test_weak_order_is_one() -> None:
    """Of the mean and of the variance, which are known exactly on both sides: no sampling."""
    mean, variance = [], []
    for grid in GRIDS:
        exact = sdde_moments(2.0, grid // 4, 1.0, unit=1 / grid, updates=grid, history=1.0)
        scheme = recursion_moments(2.0 / grid, grid // 4, grid**-0.5, start=1.0, updates=grid)
        mean.append(abs(exact.mean[-1] - scheme.mean[-1]))
        variance.append(abs(exact.variance[-1] - scheme.variance[-1]))
    assert slope(GRIDS, mean) == pytest.approx(1, abs=0.1)
    assert slope(GRIDS, variance) == pytest.approx(1, abs=0.2)


def test_memory_does_not_grow_with_the_steps() -> None:
    peaks = []
    for steps in (500, 4000):
        tracemalloc.start()
        solve_sdde(DelayEquation(-1.0, 1.0), step=0.001, steps=steps, delay=10, history=1.0, paths=3000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 0.0}, "a grid step of 0.0 is not possible"),
        ({"steps": -1}, "every=1, steps=-1"),
        ({"delay": -3}, "a delay of -3 updates is not possible"),
        ({"delay": [0, -1, 0, 0, 0]}, "a delay of -1 steps is not possible"),
        ({"delay": [1, 2]}, "delays of type int64 do not fit 5 steps"),
        ({"delay": 2, "history": [[1.0], [2.0]]}, "reaches 2 steps back, but the history has 2 rows: give 3"),
        ({"history": math.nan}, "the history is not finite"),
        ({"noise": np.zeros((4, 1, 1))}, r"noise of shape \(4, 1, 1\) cannot drive paths of shape \(5, 1, 1\)"),
        ({"threads": 0}, "0 threads cannot solve anything: at least 1"),
        ({"keep": "everything"}, "cannot keep 'everything'"),
    ],
)
def test_what_cannot_be_solved_is_refused_with_the_value(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        solve_sdde(DelayEquation(-1.0, 1.0), **{"step": 0.1, "steps": 5, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("diffusion", [np.ones(2), np.ones((3, 2)), lambda t, x: np.ones(2)])
def test_noise_that_does_not_go_with_the_dimensions_is_refused(diffusion: Floats) -> None:
    with pytest.raises(ConfigError, match=r"a diffusion of shape \(.*2.*\) does not fit 2 dimensions"):
        solve_sdde(DelayEquation(-1.0, diffusion), step=0.1, steps=3, history=[1.0, 2.0])


def test_impossible_descents_are_refused() -> None:
    with pytest.raises(ConfigError, match="a learning rate of -1 is not possible"):
        DelayedDescent(gradient, 1.0, -1)
    with pytest.raises(ConfigError, match="decay='1/k2' is unknown"):
        DelayedDescent(gradient, 1.0, 1, "1/k2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"noise of shape \(3,\)"):
        DESCENT.paths(1.0, np.zeros(3))
    with pytest.raises(ConfigError, match="a unit of time of 0 is not possible"):
        DelayEquation(1.0, 1.0, unit=0)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_an_undelayed_start_lasts_as_many_updates_as_the_delay(delay: int) -> None:
    """F(x) = x^2/2 with a step of 0.3: the first l updates know the newest x, all others that of l updates ago."""
    noise = np.zeros((10, 1, 1))
    made = DelayedDescent(lambda x: x, 0.0, 0.3, warm_up="undelayed").paths(1.0, noise, delay)[:, 0, 0]
    x = [1.0]
    for k in range(10):
        x.append(x[k] - 0.3 * (x[k] if k < delay else x[k - delay]))
    assert made == pytest.approx(x, rel=1e-12)


def test_an_undelayed_start_is_as_long_as_the_longest_of_random_or_recorded_delays() -> None:
    start = DelayedDescent(lambda x: x, 0.0, 0.3, warm_up="undelayed")
    for delays in ({1: 0.5, 3: 0.5}, [1, 3, 2, 0, 1, 2, 3, 3]):
        made = start.paths(1.0, np.zeros((8, 6, 1)), delays, seed=1)[:, :, 0]
        np.testing.assert_allclose(made[:4], np.tile(0.7 ** np.arange(4.0), (6, 1)).T, rtol=1e-12)
        late = made[4] - made[3] + 0.3 * made[3]  # of update 3, zero if it knew the newest
        assert np.abs(late).max() > 1e-3 if isinstance(delays, dict) else np.abs(late).max() < 1e-12
