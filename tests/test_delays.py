"""Distributions of durations: their means and quantiles, the holding period, and what is refused."""

import math
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.delays import Delay
from support.updates import arrivals

COUNT = 20_000


def draws(delay: Delay, count: int = COUNT, seed: int = 0) -> NDArray[np.float64]:
    return np.array(list(islice(delay.durations(np.random.default_rng(seed)), count)))


QUANTILES: list[tuple[Delay, Callable[[float], float]]] = [
    (pl.delays.ShiftedExponential(0.05, 0.02), lambda q: 0.05 - 0.02 * math.log(1 - q)),
    (pl.delays.ShiftedExponential(0.0, 3.0), lambda q: -3.0 * math.log(1 - q)),
    (pl.delays.LogNormal(2.0, 0.5), lambda q: 2.0 * math.exp(0.5 * {0.1: -1.2815516, 0.5: 0.0, 0.9: 1.2815516}[q])),
    (pl.delays.Pareto(1.5, 3.0), lambda q: 1.5 * (1 - q) ** (-1 / 3.0)),
]


@pytest.mark.parametrize(("delay", "quantile"), QUANTILES, ids=[repr(delay) for delay, _ in QUANTILES])
def test_a_tenth_a_half_and_nine_tenths_are_below_the_quantiles(
    delay: Delay, quantile: Callable[[float], float]
) -> None:
    """20,000 draws (seed 0): each share to 0.01, three standard errors."""
    drawn = draws(delay)
    for q in (0.1, 0.5, 0.9):
        assert (drawn < quantile(q)).mean() == pytest.approx(q, abs=0.01)


@pytest.mark.parametrize(
    ("delay", "mean"),
    [
        (pl.delays.Constant(2.5), 2.5),
        (pl.delays.ShiftedExponential(0.05, 0.02), 0.07),
        (pl.delays.LogNormal(2.0, 0.5), 2.0 * math.exp(0.125)),
        (pl.delays.Pareto(1.5, 3.0), 1.5 * 3 / 2),
        (pl.delays.Empirical([1.0, 2.0, 6.0]), 3.0),
        (pl.delays.Empirical([1.0, 2.0, 6.0], in_order=True), 3.0),
    ],
    ids=repr,
)
def test_the_mean(delay: Delay, mean: float) -> None:
    """20,000 draws (seed 0): to 2 %."""
    assert draws(delay).mean() == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize(
    ("delay", "median"),
    [
        (pl.delays.Constant(2.5), 2.5),
        (pl.delays.ShiftedExponential(1.0, 2.0), 1.0 + 2.0 * math.log(2)),
        (pl.delays.LogNormal(2.0, 0.5), 2.0),
        (pl.delays.Pareto(1.5, 1.0), 3.0),
        (pl.delays.Empirical([5.0, 1.0, 2.0]), 2.0),
        (pl.delays.Empirical([5.0, 1.0, 2.0, 3.0]), 2.5),
    ],
    ids=repr,
)
def test_the_median_is_exact(delay: Delay, median: float) -> None:
    assert delay.median == pytest.approx(median, rel=1e-15)


def test_every_duration_is_a_positive_plain_float() -> None:
    for delay in (*(delay for delay, _ in QUANTILES), pl.delays.Constant(1.0), pl.delays.Empirical([1.0, 2.0])):
        drawn = list(islice(delay.durations(np.random.default_rng(1)), 1000))
        assert {type(value) for value in drawn} == {float}
        assert min(drawn) > 0


def test_pareto_never_falls_below_its_minimum_and_the_exponential_not_below_its_shift() -> None:
    assert draws(pl.delays.Pareto(1.5, 0.5)).min() >= 1.5
    assert draws(pl.delays.ShiftedExponential(0.05, 0.02)).min() >= 0.05


@pytest.mark.parametrize("h", [1, 3, 10, 100])
def test_a_duration_is_held_for_h_pieces_of_work_and_then_drawn_anew(h: int) -> None:
    held = draws(pl.delays.ShiftedExponential(0.05, 0.02, h=h), count=200 * h).reshape(200, h)
    assert (held == held[:, :1]).all()
    assert len(np.unique(held[:, 0])) == 200


def test_the_holding_period_leaves_the_distribution_alone() -> None:
    """The same generator gives the same values, each h times."""
    once, held = (
        draws(pl.delays.ShiftedExponential(0.05, 0.02), 100),
        draws(pl.delays.ShiftedExponential(0.05, 0.02, h=7), 700),
    )
    assert held[::7].tolist() == once.tolist()


def test_the_holding_period_multiplies_the_variance_of_the_total() -> None:
    """Over 400 runs of 100 pieces (seeds 0..399): h = 10 gives ten times the variance of h = 1, to 30 %."""
    once, held = (
        np.var([draws(pl.delays.ShiftedExponential(0.05, 0.02, h=h), 100, seed).sum() for seed in range(400)])
        for h in (1, 10)
    )
    assert held / once == pytest.approx(10, rel=0.3)


def test_draws_are_independent_of_each_other_and_of_another_stream() -> None:
    """20,000 draws: correlations below 0.03, four standard errors."""
    one, two = (
        draws(pl.delays.ShiftedExponential(0.0, 1.0), seed=0),
        draws(pl.delays.ShiftedExponential(0.0, 1.0), seed=1),
    )
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.03
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.03


def test_the_workers_of_a_fleet_draw_independently() -> None:
    """Each worker's 2,000 first rounds under one seed: all pairs correlate less than 0.1."""
    fleet = pl.SimulatedFleet(pl.delays.ShiftedExponential(0.5, 1.0), workers=4)
    found: dict[int, list[float]] = {worker: [0.0] for worker in range(4)}
    for arrived in arrivals(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(updates=6000), seed=3)):
        found[arrived.ticket.worker].append(arrived.at)
    shortest = min(map(len, found.values()))
    durations = np.array([np.diff(times[:shortest]) for times in found.values()])
    assert durations.shape[1] > 1300
    assert (np.abs(np.corrcoef(durations) - np.eye(4)) < 0.1).all()


def test_empirical_goes_through_its_values_in_order_again_and_again() -> None:
    assert draws(pl.delays.Empirical([3.0, 1.0, 2.0], in_order=True), 7).tolist() == [3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]


def test_empirical_draws_its_values_as_often_as_they_occur() -> None:
    """20,000 draws (seed 0): 1 : 3 : 1, each share to 0.02."""
    values, counts = np.unique(draws(pl.delays.Empirical([1.0, 2.0, 2.0, 2.0, 7.0])), return_counts=True)
    assert values.tolist() == [1.0, 2.0, 7.0]
    assert counts / COUNT == pytest.approx([0.2, 0.6, 0.2], abs=0.02)


def test_delays_are_values_that_can_be_compared_hashed_and_made_from_whole_numbers() -> None:
    assert pl.delays.Empirical([1, 2]) == pl.delays.Empirical((1.0, 2.0))
    assert (
        len(
            {
                pl.delays.Constant(1.0),
                pl.delays.Constant(1.0),
                pl.delays.ShiftedExponential(0.0, 1.0),
                pl.delays.Empirical([1, 2]),
            }
        )
        == 3
    )
    assert draws(pl.delays.Constant(2), 3).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "make",
    [
        pl.delays.Constant,
        lambda value: pl.delays.ShiftedExponential(0.0, value),
        lambda value: pl.delays.LogNormal(value, 1.0),
        lambda value: pl.delays.LogNormal(1.0, value),
        lambda value: pl.delays.Pareto(value, 1.0),
        lambda value: pl.delays.Pareto(1.0, value),
        lambda value: pl.delays.Empirical([1.0, value]),
    ],
)
def test_zero_negative_nan_and_infinity_are_refused(make: Callable[[float], Delay], value: float) -> None:
    with pytest.raises(ConfigError, match=f"{value}"):
        make(value)


def test_other_impossible_delays_are_refused() -> None:
    with pytest.raises(ConfigError, match="none"):
        pl.delays.Empirical([])
    with pytest.raises(ConfigError, match="holding period"):
        pl.delays.ShiftedExponential(0.0, 1.0, h=0)
    for shift in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="shift"):
            pl.delays.ShiftedExponential(shift, 1.0)


def test_durations_are_read_back_from_a_trace_without_the_transfers() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(3.0)], network=pl.Network(latency=0.25))
    trace = pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=7.0))
    assert pl.delays.Empirical.from_trace(trace, worker=1).values == (3.0, 3.0)
    assert pl.delays.Empirical.from_trace(trace).median == 1.0


def test_a_trace_without_finished_work_gives_no_delay() -> None:
    trace = pl.simulate(pl.Synchronous(), pl.SimulatedFleet([pl.delays.Constant(9.0)]), pl.Stop(seconds=1.0))
    with pytest.raises(pl.ConfigError, match="no finished work of worker 0"):
        pl.delays.Empirical.from_trace(trace, worker=0)
