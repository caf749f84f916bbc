"""Roots of delay equations, and the variance that noise keeps up."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_discrete_lyapunov

from paceline.core.errors import ConfigError
from paceline.theory import discrete_stationary_variance, dominant_root, stationary_variance

STEP, RATE, SIGMA, DELAY = 0.005, 2.0, 2.0, 10


@pytest.mark.parametrize(
    ("product", "root"),
    [(0.1, -0.1118326), (0.2, -0.2591711), (0.5, -0.7940236), (math.pi / 2, 0.0)],
)
def test_dominant_roots_of_the_specification(product: float, root: float) -> None:
    assert dominant_root(product, 1.0) == pytest.approx(root, abs=5e-8)
    assert 3 * dominant_root(product / 3, 3.0) == pytest.approx(root, abs=5e-8)


def test_the_double_root_at_one_over_e() -> None:
    """A double root is only known to the square root of rounding."""
    assert dominant_root(1 / math.e, 1.0) == pytest.approx(-1, abs=1e-7)


def test_the_experiments_root() -> None:
    assert dominant_root(RATE, DELAY * STEP) == pytest.approx(-2.236651183, abs=5e-10)
    assert dominant_root(RATE, 0.0) == -2


@given(st.floats(0.01, 3), st.floats(0.01, 3))
@settings(max_examples=50, deadline=None)
def test_a_root_solves_its_equation_and_its_sign_tells_stability(rate: float, delay: float) -> None:
    root = dominant_root(rate, delay)
    assert (root < 0) == (rate * delay < math.pi / 2)
    if rate * delay < 1 / math.e - 1e-6:  # then it is real
        assert root + rate * math.exp(-root * delay) == pytest.approx(0, abs=1e-8)


def test_a_matrix_is_its_eigenvalues() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    matrix = turn @ np.diag([0.5, 1.0, 2.0]) @ turn.T
    assert dominant_root(matrix, 0.1) == pytest.approx(dominant_root(0.5, 0.1), abs=1e-12)
    rotation = np.array([[1.0, -2.0], [2.0, 1.0]])  # 1 +- 2i: stable without a delay, unstable with a long one
    assert dominant_root(rotation, 0.0) == pytest.approx(-1)
    assert dominant_root(rotation, 2.0) > 0


def test_stationary_variances_of_the_experiment() -> None:
    assert stationary_variance(RATE, DELAY * STEP, STEP**0.5 * SIGMA) == pytest.approx(0.00552677795, abs=5e-12)
    assert discrete_stationary_variance(STEP * RATE, DELAY, STEP * SIGMA) == pytest.approx(0.00555469948, abs=5e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("delay", [0, 1, 4, 10])
def test_the_discrete_variance_solves_the_lyapunov_equation(delay: int, momentum: float) -> None:
    size = max(delay, 1) + 1
    companion = np.eye(size, k=-1)
    companion[0, 0] += 1 + momentum
    companion[0, 1] -= momentum
    companion[0, delay] -= 0.03
    noise = np.zeros((size, size))
    noise[0, 0] = 0.2**2
    exact = solve_discrete_lyapunov(companion, noise)[0, 0]
    assert discrete_stationary_variance(0.03, delay, 0.2, momentum) == pytest.approx(exact, rel=1e-9)


def test_the_discrete_variance_with_random_delays_solves_the_equation_of_all_second_moments() -> None:
    delays, step, size = {0: 0.6, 2: 0.1, 5: 0.3}, 0.2, 6
    total = np.zeros((size**2, size**2))
    for delay, share in delays.items():
        companion = np.eye(size, k=-1)
        companion[0, 0] += 1
        companion[0, delay] -= step
        total += share * np.kron(companion, companion)
    noise = np.zeros(size**2)
    noise[0] = 0.1**2
    exact = np.linalg.solve(np.eye(size**2) - total, noise)[0]
    assert discrete_stationary_variance(step, delays, 0.1) == pytest.approx(exact, rel=1e-9)


def test_the_covariance_of_a_matrix_is_that_of_its_response() -> None:
    """Against the integral of the response on a grid of 0.001: first order, so 3 per mille are left."""
    rate, noise = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.0, 0.2], [0.0, 0.5]])
    step, delay = 0.001, 300
    response = [np.eye(2)]
    for k in range(15_000):
        response.append(response[-1] - (step * rate @ response[k - delay] if k >= delay else 0))
    moved = np.array(response) @ noise
    exact = np.einsum("kij,klj->il", moved, moved) * step
    assert stationary_variance(rate, 0.3, noise) == pytest.approx(exact, rel=0.02, abs=2e-3)
    apart = stationary_variance(np.diag([2.0, 1.0]), 0.3, np.eye(2))
    assert np.diag(apart) == pytest.approx([stationary_variance(2.0, 0.3, 1.0), stationary_variance(1.0, 0.3, 1.0)])


def test_systems_without_a_stationary_variance_are_refused_with_the_values() -> None:
    with pytest.raises(ConfigError, match=r"rate 40 with the delay 0\.05 is unstable"):
        stationary_variance(40.0, 0.05, 1.0)
    with pytest.raises(ConfigError, match="the smallest is -1"):
        stationary_variance(-1.0, 0.05, 1.0)
    with pytest.raises(ConfigError, match=r"a rate of shape \(2, 3\) is not possible"):
        stationary_variance(np.ones((2, 3)), 0.05, 1.0)
    with pytest.raises(ConfigError, match="is not symmetric"):
        stationary_variance(np.array([[1.0, 1.0], [0.0, 1.0]]), 0.05, np.eye(2))
    with pytest.raises(ConfigError, match=r"0\.2 is not stable in mean square, .* less than 0\.14946"):
        discrete_stationary_variance(0.2, 10, 1.0)
    with pytest.raises(ConfigError, match="a learning rate times curvature of 2 is not stable in mean square"):
        discrete_stationary_variance(2.0, 0, 1.0)  # exactly at the limit
    with pytest.raises(ConfigError, match=r"a delay of -0\.1 is not possible"):
        dominant_root(1.0, -0.1)
    with pytest.raises(ConfigError, match=r"a noise of -1\.0 is not possible"):
        discrete_stationary_variance(0.1, 1, -1.0)
