"""Exact moments, against the values of the specification, closed forms, and each other."""

import math

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.theory import (
    discrete_stationary_variance,
    recursion_moments,
    sdde_moments,
    sdde_stationary_variance,
    stationary_variance,
)

STEP, RATE, SIGMA, DELAY, START = 0.005, 2.0, 2.0, 10, 4.0
RANDOM = {0: 0.3, 4: 0.5, 10: 0.2}


def test_means_of_the_specification() -> None:
    mean = recursion_moments(scaled_step=STEP * RATE, delays=DELAY, noise=0.0, start=START, updates=50).mean
    assert mean[[10, 20, 50]] == pytest.approx([3.6, 3.218, 2.2959537], abs=5e-8)


def test_the_papers_warm_up_differs_from_a_history_by_at_most_0_0175283() -> None:
    history = recursion_moments(STEP * RATE, DELAY, 0.0, start=START, updates=2000).mean
    warm_up = recursion_moments(STEP * RATE, [0] * 10 + [10] * 1990, 0.0, start=START, updates=2000).mean
    gap = np.abs(history - warm_up)
    assert gap.max() == pytest.approx(0.0175283, abs=5e-8)
    assert gap.argmax() == 10


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("delays", [0, 1, DELAY, RANDOM])
def test_the_variance_settles_at_the_stationary_one(delays: "int | dict[int, float]", momentum: float) -> None:
    step = 0.008
    variance = recursion_moments(step, delays, 0.1, start=0.0, updates=4000, momentum=momentum).variance
    assert variance[-1] == pytest.approx(discrete_stationary_variance(step, delays, 0.1, momentum), rel=1e-9)


def test_the_method_of_steps_has_the_polynomials_of_the_first_delays() -> None:
    """X = 4 (1 - at) for t <= tau, then + 4 a^2 (t - tau)^2 / 2; the variance is s^2 t at first."""
    found = sdde_moments(RATE, DELAY, 0.3, unit=STEP, updates=20, history=START)
    t = STEP * np.arange(21)
    mean = START * (1 - RATE * t + np.where(t > 0.05, RATE**2 * (t - 0.05) ** 2 / 2, 0))
    assert found.mean == pytest.approx(mean, abs=1e-13)
    assert found.variance[:11] == pytest.approx(0.09 * t[:11], abs=1e-15)


def test_without_a_delay_it_is_ornstein_uhlenbeck() -> None:
    found = sdde_moments(RATE, 0, 0.3, unit=0.1, updates=30, history=START)
    t = 0.1 * np.arange(31)
    assert found.mean == pytest.approx(START * np.exp(-RATE * t), rel=1e-12)
    assert found.variance == pytest.approx(0.09 * (1 - np.exp(-2 * RATE * t)) / (2 * RATE), rel=1e-12)


def test_a_history_that_is_a_function() -> None:
    """X(t) = t before 0: then X' = -(t - 1) up to 1."""
    found = sdde_moments(1.0, 4, 0.0, unit=0.25, updates=4, history=lambda t: t)
    t = 0.25 * np.arange(5)
    assert found.mean == pytest.approx(t - t**2 / 2, abs=1e-14)


def test_the_variance_of_the_equation_settles_at_its_closed_form() -> None:
    noise = math.sqrt(STEP) * SIGMA
    exact = stationary_variance(RATE, DELAY * STEP, noise)
    assert sdde_stationary_variance(RATE, DELAY, noise, unit=STEP) == pytest.approx(exact, rel=1e-11)
    assert sdde_moments(RATE, DELAY, noise, unit=STEP, updates=2000, history=0.0).variance[-1] == pytest.approx(exact)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_equation_is_the_limit_of_the_recursion_with_random_delays_and_momentum(momentum: float) -> None:
    """Delays in updates stay as they are while the step goes to 0, so both tend to the same: with order 1."""
    gaps = []
    for step in (0.002, 0.001):
        discrete = discrete_stationary_variance(RATE * step, RANDOM, SIGMA * step, momentum)
        continuous = sdde_stationary_variance(RATE, RANDOM, SIGMA * math.sqrt(step), unit=step, momentum=momentum)
        gaps.append(abs(discrete / continuous - 1))
    assert gaps[0] < 0.05
    assert gaps[1] < 0.62 * gaps[0]


def test_an_unstable_equation_has_no_stationary_variance() -> None:
    with pytest.raises(ConfigError, match=r"the rate 40 with delays up to 10 of 0\.005 is unstable"):
        sdde_stationary_variance(40.0, 10, 1.0, unit=0.005)
    with pytest.raises(ConfigError, match="a unit of 0, a rate of"):
        sdde_moments(1.0, 1, 1.0, unit=0, updates=3, history=1.0)
    with pytest.raises(ConfigError, match=r"a momentum of 1\.5 is not possible"):
        recursion_moments(0.1, 1, 1.0, start=0.0, updates=3, momentum=1.5)
