"""Theorems as functions, time to an accuracy, and the measured distance of the SDDE from the algorithm."""

import math

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.theory import (
    DelayedDescent,
    approximation_error,
    corollary_3_3,
    corollary_4_3,
    group_sgd_bound,
    paper_time_to_epsilon,
    recursion_moments,
    sdde_moments,
    solve_sdde,
    theorem_3_2,
    theorem_3_4,
    theorem_4_1,
    theorem_4_2,
    time_to_epsilon,
)

TOY = {"convexity": 1.0, "smoothness": 1.0, "radius": 1.0, "noise": 1.0, "interval": 0.01}


def test_corollary_4_3_has_the_values_of_the_specification() -> None:
    assert corollary_4_3([2.0, 10.0], **TOY) == pytest.approx([2.10024, 0.77520], abs=5e-6)
    np.testing.assert_array_equal(theorem_4_2([3.0], **TOY), corollary_4_3([3.0], **TOY))
    assert theorem_4_2([3.0], **TOY, delay=0.5) > corollary_4_3([3.0], **TOY)


def test_theorem_4_2_by_hand() -> None:
    """Every symbol with a value of its own: mu = 2, L = 3, D = 1/2, noise 5, delta = 1/4, tau = 7; t = e."""
    height = 5 + 2 * 2 * 3 * 0.25 + 2 * 9 * 0.25 * 7
    found = theorem_4_2(math.e, convexity=2.0, smoothness=3.0, radius=0.5, noise=5.0, interval=0.25, delay=7.0)
    assert float(found) == pytest.approx(1.25 * height / ((math.e - 1) * 4), rel=1e-14)


def test_corollary_4_3_bounds_the_exact_second_moment_and_the_solver_finds_that() -> None:
    """E X^2 = 1/t^2 + .01 (t-1)/t^2; 4,000 paths on the grid of 0.01: 5 standard errors, and 2 % for the grid."""
    descent = DelayedDescent(lambda x: x, 1.0, 1.0, "1/k")
    solution = solve_sdde(
        descent.equation(0.01), step=0.01, steps=900, start=1.0, history=1.0, paths=4000, keep="moments", every=100
    )
    assert solution.mean is not None
    assert solution.variance is not None
    t = solution.times[1:]
    exact = 1 / t**2 + 0.01 * (t - 1) / t**2
    assert exact[[0, 8]] == pytest.approx([0.2525, 0.0109])
    assert (exact <= corollary_4_3(t, **TOY)).all()
    sampled = solution.mean[1:, 0] ** 2 + solution.variance[1:, 0]
    assert sampled == pytest.approx(exact, rel=0.02 + 5 * math.sqrt(2 / 4000))


def test_theorems_of_the_approximation() -> None:
    assert theorem_3_2(100, 3, 4, 1.0) == pytest.approx(0.1 + 0.003 + math.exp(4) / 8)
    assert theorem_3_4(100, 3, 4, 1.0, (2.0, 3.0)) == pytest.approx(2 * 0.103 + 3 * math.e / 2)
    assert corollary_3_3(100, 4, 1.0) == theorem_3_2(100, 0, 4, 1.0)
    with pytest.raises(ConfigError, match=r"10 updates are too few: L \(l \+ 1\) = 22"):
        theorem_3_2(10, 10, 1, 2.0)
    with pytest.raises(ConfigError, match="10 updates are too few: L l = 20"):
        theorem_3_4(10, 10, 1, 2.0)


def test_the_exact_second_moment_decays_as_theorem_4_1_says() -> None:
    """The mean's square falls like e^{2Vt}, V = -2.2366512 (and so faster than without a delay)."""
    mean = sdde_moments(2.0, 10, 0.0, unit=0.005, updates=1600, history=4.0).mean
    found = math.log(mean[1600] / mean[800]) / (800 * 0.005)
    assert found == pytest.approx(-2.236651183, abs=1e-6)
    bound = theorem_4_1([1.0, 2.0], 2.0, 0.05, 0.01, decay=2.0)
    assert bound[0] - bound[1] == pytest.approx(math.exp(-3.8) - math.exp(-7.8))


def test_theorem_4_1_has_its_two_terms() -> None:
    first = [2.0 * math.exp(-2 * 1.5 * (t - 0.2)) for t in (0.5, 3.0)]
    second = 3.0 * 0.01 / (1.5 * 0.2 * 0.2)  # C_6 epsilon / (lambda tau^2)
    bound = theorem_4_1([0.5, 3.0], 2.0, 0.2, 0.01, decay=1.5, constants=(2.0, 3.0))
    assert bound == pytest.approx([first[0] + second, first[1] + second], rel=1e-12)


def test_theorem_4_1_wants_a_stable_equation_and_a_decay_below_its_root() -> None:
    with pytest.raises(ConfigError, match="a decay between 0 and -V = "):
        theorem_4_1(1.0, 40.0, 0.05, 0.01)
    with pytest.raises(ConfigError, match=r"-V = 2\.23665, and not 3"):
        theorem_4_1(1.0, 2.0, 0.05, 0.01, decay=3.0)
    with pytest.raises(ConfigError, match="a delay of 0 and an epsilon"):
        theorem_4_1(1.0, 2.0, 0, 0.01)


def test_bounds_refuse_impossible_numbers() -> None:
    with pytest.raises(ConfigError, match="for times above 1, and not for 1"):
        corollary_4_3([1.0, 2.0], **TOY)
    with pytest.raises(ConfigError, match="a convexity of 2"):
        theorem_4_2(2.0, **{**TOY, "convexity": 2.0})
    with pytest.raises(ConfigError, match=r"at most 1/mu = 0\.5"):
        group_sgd_bound([], step=1.0, smoothness=2.0, convexity=1.0, gamma=0.0, gap=1.0)
    with pytest.raises(ConfigError, match="a convexity of 3"):
        group_sgd_bound([], step=0.1, smoothness=2.0, convexity=3.0, gamma=0.0, gap=1.0)


def test_time_to_epsilon_is_when_the_second_moment_stays_below_it() -> None:
    found = time_to_epsilon(0.01, curvature=2.0, step=0.005, delays=10, noise=2.0, start=4.0, updates_per_second=100.0)
    moments = recursion_moments(0.01, 10, 0.01, start=4.0, updates=2000)
    square = moments.mean**2 + moments.variance
    assert square[found.updates - 1] > 0.01 >= square[found.updates :].max()
    assert found.time == pytest.approx(found.updates * 0.005)
    assert found.seconds == found.updates / 100
    near = time_to_epsilon(0.01, curvature=2.0, step=0.005, delays=10, noise=2.0, start=0.0)
    assert (near.updates, near.time) == (0, 0.0)  # it never is above it


def test_time_to_epsilon_refuses_what_is_never_reached() -> None:
    problem = {"curvature": 2.0, "delays": 10, "noise": 2.0, "start": 4.0}
    with pytest.raises(ConfigError, match=r"0\.005 is never reached: .* causes a variance of 0\.0055547"):
        time_to_epsilon(0.005, step=0.005, **problem)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"not stable in mean square .* at most 0\.0747301"):
        time_to_epsilon(0.01, step=0.1, **problem)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="updates_per_second=0 is not possible"):
        time_to_epsilon(0.01, step=0.005, updates_per_second=0, **problem)  # type: ignore[arg-type]


def test_the_papers_time_is_short_only_in_its_own_units() -> None:
    """A thousandth of the error takes less time of the SDDE, and more than seven times the updates."""
    rough, fine = (paper_time_to_epsilon(epsilon, 2.0, 10) for epsilon in (1e-2, 1e-5))
    assert fine.time < rough.time
    assert fine.updates > 7 * rough.updates
    assert fine.step == pytest.approx((1e-5 / 100) ** (1 / 3))
    with pytest.raises(ConfigError, match=r"an epsilon of 2\.0 is not possible"):
        paper_time_to_epsilon(2.0, 2.0, 10)
    with pytest.raises(ConfigError, match="a delay of 0 updates is not possible"):
        paper_time_to_epsilon(0.01, 2.0, 0)
    with pytest.raises(ConfigError, match="is not stable in the mean"):
        paper_time_to_epsilon(0.01, 80.0, 10)


def slope(x: list[int], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def test_the_sdde_approaches_the_algorithm_with_order_one_in_the_updates() -> None:
    """Better than the theorems' 1/2, exactly in the mean and on one Brownian path; apart from each other, 1/2."""
    grids = [128, 256, 512]
    errors = [approximation_error(updates, 4, 1, paths=1000) for updates in grids]
    assert slope(grids, [each.mean for each in errors]) == pytest.approx(-1, abs=0.05)
    assert slope(grids, [each.coupled for each in errors]) == pytest.approx(-1, abs=0.05)
    assert slope(grids, [each.uncoupled for each in errors]) == pytest.approx(-0.5, abs=0.1)


def test_larger_mini_batches_bring_uncoupled_paths_together_with_order_one_half() -> None:
    """As long as noise is what keeps them apart: the mean error, 0.001 here, does not depend on the batch."""
    sizes = [1, 4, 16]
    errors = [approximation_error(512, 4, size, paths=1000, refined=4) for size in sizes]
    assert slope(sizes, [each.uncoupled for each in errors]) == pytest.approx(-0.5, abs=0.05)
    with pytest.raises(ConfigError, match="batches of 0"):
        approximation_error(10, 1, 0)


def test_without_noise_the_errors_of_an_approximation_are_that_of_euler_s_steps() -> None:
    """Of x' = -2 x(t - l/K) from 4, once by 16 steps for each update and once by one, in a plain loop."""

    def end(steps: int, delay: int) -> float:
        x = [4.0] * (delay + 1)
        for _ in range(steps):
            x.append(x[-1] - 2.0 / steps * x[-1 - delay])
        return x[-1]

    found = approximation_error(8, 2, 1, sigma=0.0, paths=3)
    expected = abs(end(8 * 16, 2 * 16) - end(8, 2))
    assert (found.coupled, found.uncoupled) == pytest.approx((expected, expected), rel=1e-9)
    assert expected > 0.01
