"""Limits of the step, against the values of the specification, spectral radii and simulated paths."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.errors import ConfigError
from paceline.theory import (
    critical_step,
    mean_square_critical_step,
    oscillation_limit,
    spectral_radius,
)

histograms = st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any).map(
    lambda counts: {delay: count / sum(counts) for delay, count in enumerate(counts) if count}
)  # fmt: skip
momenta = st.sampled_from([0.0, 0.5, 0.9, 0.99])


@pytest.mark.parametrize(("delay", "limit"), [(0, 2.0), (1, 1.0), (2, 0.61803399), (5, 0.28462968), (10, 0.14946019)])
def test_limits_of_fixed_delays(delay: int, limit: float) -> None:
    assert critical_step(delay) == pytest.approx(limit, abs=5e-9)
    assert critical_step({delay: 1.0}) == critical_step(delay)


@pytest.mark.parametrize("delay", [0, 1, 2, 5, 10, 37, 200])
def test_a_fixed_delay_is_stable_up_to_its_limit_and_not_beyond(delay: int) -> None:
    """L8."""
    limit = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    assert spectral_radius(limit * (1 - 1e-6), delay) < 1 < spectral_radius(limit * (1 + 1e-6), delay)


def test_momentum_makes_the_limit_at_delay_ten_thirteen_times_smaller() -> None:
    assert critical_step(10, momentum=0.9) == pytest.approx(0.0113899, abs=5e-8)
    assert critical_step(10) / critical_step(10, momentum=0.9) == pytest.approx(13.12, abs=0.01)


def test_without_a_delay_momentum_makes_the_limit_larger() -> None:
    """Polyak: 2 (1 + m)."""
    assert critical_step(0, momentum=0.9) == pytest.approx(3.8, abs=1e-12)


@given(histograms, momenta)
@settings(max_examples=60, deadline=None)
def test_every_smaller_step_is_stable_and_the_limit_is_on_the_circle(delays: dict[int, float], momentum: float) -> None:
    limit = critical_step(delays, momentum)
    for part in (0.05, 0.3, 0.6, 0.9, 0.999):
        assert spectral_radius(part * limit, delays, momentum) < 1
    assert spectral_radius(limit, delays, momentum) == pytest.approx(1, abs=1e-6)


def test_a_limit_that_lies_between_two_close_crossings_is_found() -> None:
    """Scanning many histograms with two far delays: no step below the limit is unstable, on a fine grid of steps."""
    generator = np.random.default_rng(5)
    for _ in range(20):
        share = float(generator.uniform(0.02, 0.98))
        delays = {int(generator.integers(0, 4)): share, int(generator.integers(5, 25)): 1 - share}
        limit = critical_step(delays)
        radii = [spectral_radius(limit * part, delays) for part in np.linspace(0.01, 0.999, 60)]
        assert max(radii) < 1


def limit_by_scanning(delays: dict[int, float], momentum: float, points: int = 400_000) -> float:
    """The smallest h with which z - (1 + m) + m / z + h sum_j q_j z^-j has a root on the unit circle, h real."""
    z = np.exp(1j * np.linspace(0, np.pi, points + 1)[1:])
    h = -(z - (1 + momentum) + momentum / z) / sum(share * z**-delay for delay, share in delays.items())
    below, above = h[:-1], h[1:]
    crossed = (np.signbit(below.imag) != np.signbit(above.imag)) & (below.real > 0)
    below, above = below[crossed], above[crossed]
    real = below.real + (above.real - below.real) * below.imag / (below.imag - above.imag)
    return float(min(h[-1].real, real.min(initial=np.inf)))


@pytest.mark.parametrize(
    ("delays", "momentum"),
    [({0: 0.6187, 1: 0.2825, 8: 0.0988}, 0.0), ({0: 0.5, 3: 0.5}, 0.9)],
)
def test_a_limit_of_which_a_coarse_grid_of_frequencies_has_no_trace_is_found(
    delays: dict[int, float], momentum: float
) -> None:
    limit = critical_step(delays, momentum)
    assert limit == pytest.approx(limit_by_scanning(delays, momentum), rel=1e-5)
    assert spectral_radius(limit * (1 - 1e-5), delays, momentum) < 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_hundred_updates_of_delay_take_less_than_50_ms_of_computing(momentum: float) -> None:
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.ones(201))
    delays = dict(enumerate((shares / shares.sum()).tolist()))
    times = []
    for _ in range(5):
        begin = time.process_time()
        critical_step(delays, momentum)
        times.append(time.process_time() - begin)
    assert min(times) < 0.05


@pytest.mark.parametrize("delay", [1, 2, 5, 10, 50])
def test_below_the_oscillation_limit_errors_keep_their_sign_and_above_they_do_not(delay: int) -> None:
    limit = oscillation_limit(delay)
    assert limit == pytest.approx(float(Fraction(delay**delay, (delay + 1) ** (delay + 1))), rel=1e-12)

    def changes_sign(step: float) -> bool:
        path = [1.0] * (delay + 1)
        for _ in range(2000):
            path.append(path[-1] - step * path[-1 - delay])
        return min(path) < 0

    assert not changes_sign(limit)
    assert changes_sign(limit * 1.05)


def test_without_a_delay_nothing_oscillates_up_to_one() -> None:
    assert oscillation_limit(0) == 1.0


def kronecker_radius(step: float, delays: dict[int, float], momentum: float) -> float:
    """The spectral radius of the map of all second moments, by brute force."""
    longest = max(*delays, 1)
    total = np.zeros(((longest + 1) ** 2,) * 2)
    for delay, share in delays.items():
        companion = np.eye(longest + 1, k=-1)
        companion[0, 0] += 1 + momentum
        companion[0, 1] -= momentum
        companion[0, delay] -= step
        total += share * np.kron(companion, companion)
    return float(np.abs(np.linalg.eigvals(total)).max())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("delays", [{0: 0.5, 1: 0.5}, {0: 0.9, 6: 0.1}, {1: 0.2, 2: 0.3, 5: 0.5}])
def test_mean_square_limits_are_those_of_the_map_of_second_moments(delays: dict[int, float], momentum: float) -> None:
    limit = mean_square_critical_step(delays, momentum)
    assert limit < critical_step(delays, momentum)
    assert kronecker_radius(limit, delays, momentum) == pytest.approx(1, abs=1e-9)
    for part in (0.1, 0.5, 0.9, 0.999):
        assert kronecker_radius(limit * part, delays, momentum) < 1


@given(histograms, momenta)
@settings(max_examples=30, deadline=None)
def test_in_mean_square_is_never_looser_than_in_the_mean(delays: dict[int, float], momentum: float) -> None:
    assert 0 < mean_square_critical_step(delays, momentum) <= critical_step(delays, momentum)


def test_delays_that_hardly_vary_have_nearly_the_limit_of_a_fixed_one() -> None:
    delays = {9: 1e-13, 10: 1 - 1e-13}
    assert mean_square_critical_step(delays) == pytest.approx(critical_step(10), rel=1e-6)


def test_for_a_fixed_delay_both_notions_of_stability_agree() -> None:
    assert mean_square_critical_step(7, 0.5) == critical_step(7, 0.5)


@pytest.mark.parametrize(
    ("delays", "message"),
    [
        (-1, "a delay of -1 updates is not possible: at least 0"),
        ({-2: 1.0}, "a delay of -2 updates is not possible"),
        ({}, "the histogram of delays is empty"),
        ({0: 0.5, 3: 0.4}, "add up to 0.9, not to 1"),
        ({0: 1.5, 3: -0.5}, "the delay 0 cannot have a probability of 1.5"),
        ({0: math.nan}, "cannot have a probability of nan"),
        (1.5, "a delay of 1.5 is not a whole number of updates"),
    ],
)
def test_histograms_that_cannot_be_are_refused_with_the_value(delays: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        critical_step(delays)


def test_impossible_momentum_and_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a momentum of 1\.0 is not possible"):
        critical_step(3, momentum=1.0)
    with pytest.raises(ConfigError, match="a learning rate times curvature of -1 is not possible"):
        spectral_radius(-1, 3)
