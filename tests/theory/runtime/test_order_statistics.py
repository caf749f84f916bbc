"""Means of order statistics: known values, closed forms against quadrature, and against draws."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.delays import Distribution
from paceline.theory.runtime.order_statistics import (
    exponential_order_statistic,
    fewer_done,
    integrate,
    order_statistic_mean,
    order_statistic_means,
    pareto_order_statistic,
)
from test_delays import draws

KNOWN = {5: 0.0629127, 6: 0.0669127, 7: 0.0719127, 8: 0.0785794, 9: 0.0885794, 10: 0.1085794}
UNLIKE: list[Distribution] = [
    *[pl.delays.LogNormal(1.0, 0.2)] * 3,
    *[pl.delays.ShiftedExponential(0.5, 1.0)] * 2,
    pl.delays.Pareto(1.2, 3.0),
    pl.delays.Constant(1.1),
    pl.delays.Empirical([0.7, 1.4, 2.0]),
]


@pytest.mark.parametrize(("rank", "mean"), KNOWN.items())
def test_the_paper_s_workers(rank: int, mean: float) -> None:
    found = order_statistic_means([pl.delays.ShiftedExponential(0.05, 0.02)] * 10, rank)
    assert found.source == "exact"
    assert found.means[-1] == pytest.approx(mean, abs=5e-8)
    variance = 0.0004 * sum(1 / n**2 for n in range(11 - rank, 11))
    assert exponential_order_statistic(0.05, 0.02, 10, rank)[1] == pytest.approx(variance, rel=1e-12)


def test_quadrature_finds_what_is_known_exactly() -> None:
    """A worker that differs by a billionth makes the closed form unusable, and changes nothing else."""
    nearly = [pl.delays.ShiftedExponential(0.05, 0.02)] * 9 + [pl.delays.ShiftedExponential(0.05, 0.02 * (1 + 1e-9))]
    found = order_statistic_means(nearly, 10)
    assert found.source == "quadrature"
    exact = [exponential_order_statistic(0.05, 0.02, 10, rank)[0] for rank in range(1, 11)]
    np.testing.assert_allclose(found.means, exact, rtol=1e-8)
    heavy = order_statistic_means([pl.delays.Pareto(1.0, 1.5)] * 3 + [pl.delays.Pareto(1.0, 1.5 * (1 + 1e-10))], 4)
    np.testing.assert_allclose(heavy.means, [pareto_order_statistic(1.0, 1.5, 4, rank) for rank in range(1, 5)], 1e-7)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_unit_of_time_makes_no_difference(unit: float) -> None:
    """Errors are relative to the means: of microseconds and of days."""
    spread: list[Distribution] = [pl.delays.LogNormal(1.0, 1.5)] * 3 + [pl.delays.ShiftedExponential(0.5, 1.0)]
    scaled: list[Distribution] = [pl.delays.LogNormal(unit, 1.5)] * 3 + [pl.delays.ShiftedExponential(0.5 * unit, unit)]
    means = order_statistic_means(spread, 4).means
    np.testing.assert_allclose(np.asarray(order_statistic_means(scaled, 4).means) / unit, means, rtol=1e-8)


def test_unlike_workers_against_draws() -> None:
    """50,000 draws (seeds 0 to 7): every order statistic within 4 standard errors."""
    found = order_statistic_means(UNLIKE, len(UNLIKE))
    assert found.source == "quadrature"
    drawn = np.sort([draws(delay, 50_000, seed) for seed, delay in enumerate(UNLIKE)], axis=0)
    errors = drawn.std(axis=1) / math.sqrt(50_000)
    assert (np.abs(drawn.mean(axis=1) - found.means) < 4 * errors).all()


def test_constants_and_measured_durations_are_finite_sums() -> None:
    constants = [pl.delays.Constant(1.0)] * 4 + [pl.delays.Constant(2.0)] * 4 + [pl.delays.Constant(3.0)] * 8
    assert order_statistic_means(constants, 16).means.tolist() == pytest.approx([1.0] * 4 + [2.0] * 4 + [3.0] * 8)
    # both values of one worker against both of the other: 1 or 3 against 2 or 4
    measured = order_statistic_means([pl.delays.Empirical([1.0, 3.0]), pl.delays.Empirical([2.0, 4.0])], 2)
    assert (measured.source, measured.means.tolist()) == ("exact", pytest.approx([7 / 4, 13 / 4]))


def test_a_large_fleet_of_workers_that_all_differ() -> None:
    """Like uniform medians: the slowest of 5,000 is that of the draws (seed 0, 400 rounds) within 4 standard errors."""
    medians = np.linspace(1.0, 2.0, 5000)
    found = order_statistic_mean([pl.delays.LogNormal(float(median), 0.3) for median in medians], 5000)
    generator = np.random.default_rng(0)
    drawn = [float((medians * np.exp(0.3 * generator.standard_normal(5000))).max()) for _ in range(400)]
    assert abs(found.value - np.mean(drawn)) < 4 * np.std(drawn) / 20
    alike = order_statistic_mean([pl.delays.LogNormal(1.0, 0.3)] * 40, 40).value
    assert alike == pytest.approx(order_statistic_means([pl.delays.LogNormal(1.0, 0.3)] * 40, 40).means[-1], rel=1e-9)


def test_one_worker_alone_has_its_mean() -> None:
    for delay in dict.fromkeys(UNLIKE):
        assert order_statistic_means([delay], 1).means[0] == pytest.approx(delay.mean_seconds, rel=1e-12)


def test_a_tail_too_heavy_for_a_mean() -> None:
    """P(X > x) = x**-0.9: the slower of two has no mean, the faster one has."""
    found = order_statistic_means([pl.delays.Pareto(1.0, 0.9)] * 2 + [pl.delays.LogNormal(1.0, 1.0)], 3)
    assert found.means[-1] == math.inf
    # the first: 1/2 + e^(1/2) Phi(-1) + (1/2 - e^0.32 Phi(-0.8)) / 0.8; the second by another integrator
    first = 0.5 + math.exp(0.5) * ndtr(-1.0) + (0.5 - math.exp(0.32) * ndtr(-0.8)) / 0.8
    assert found.means[:2].tolist() == pytest.approx([first, 2.58005459], rel=1e-8)
    assert pl.delays.Pareto(1.0, 1.0).mean_seconds == math.inf


@given(st.lists(st.sampled_from(UNLIKE), min_size=1, max_size=6))
def test_the_mean_times_of_all_workers_add_up(delays: list[Distribution]) -> None:
    """Sorted or not, the durations of a round have the same sum; and each is at least the one before."""
    means = order_statistic_means(delays, len(delays)).means
    assert means.sum() == pytest.approx(sum(delay.mean_seconds for delay in delays), rel=1e-6)
    assert (np.diff(means) >= -1e-9).all()


@given(st.lists(st.sampled_from(UNLIKE), min_size=1, max_size=6), st.floats(0.01, 30.0))
def test_how_many_are_done_by_a_time(delays: list[Distribution], seconds: float) -> None:
    """Its mean is the sum of the workers' probabilities; the last rank is the product of them."""
    fewer = fewer_done(delays, len(delays), np.array([seconds]))[0]
    done = [float(delay.cdf(np.array([seconds]))[0]) for delay in delays]
    assert (1 - fewer).sum() == pytest.approx(sum(done), abs=1e-12)
    assert 1 - fewer[-1] == pytest.approx(math.prod(done), abs=1e-12)


@pytest.mark.parametrize("delay", list(dict.fromkeys(UNLIKE)), ids=repr)
def test_the_distribution_function_is_that_of_the_draws(delay: Distribution) -> None:
    """20,000 draws (seed 0): the share below each of five times to 0.01, three standard errors."""
    drawn = draws(delay)
    times = np.array([0.6, 1.0, 1.3, 2.0, 5.0])
    np.testing.assert_allclose(delay.cdf(times), [(drawn <= time).mean() for time in times], atol=0.011)
    assert delay.cdf(np.array([0.0, 1e12])).tolist() == pytest.approx([0.0, 1.0])
    assert drawn.mean() == pytest.approx(delay.mean_seconds, rel=0.02)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no 4th of 3 workers: choose 1 to 3"):
        order_statistic_means([pl.delays.Constant(1.0)] * 3, 4)


def test_integrals_with_a_corner_and_a_spike() -> None:
    def function(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.stack([np.abs(x - 1 / 3), np.exp(-((x - 0.7) ** 2) / 2e-6)], axis=1)

    found, error = integrate(function, [0.0, 0.7, 1.0], 1e-9)
    np.testing.assert_allclose(found, [5 / 18, math.sqrt(2e-6 * math.pi)], rtol=1e-7)
    assert error < 1e-8
