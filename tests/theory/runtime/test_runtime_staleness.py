"""The distribution of staleness by renewal theory, against closed forms and the simulator."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import paceline as pl
from paceline.theory.runtime.costs import Ages, runtime
from paceline.theory.runtime.renewal import clocks_of, exponential_staleness, renewal_staleness
from support.updates import updates

MIXED: list[Any] = (
    [pl.delays.LogNormal(1.0, 0.2)] * 3
    + [pl.delays.ShiftedExponential(1.5, 0.5)] * 3
    + [pl.delays.Pareto(2.4, 3.5)] * 2
)
GROUPS = [[0, 1, 2], [3, 4, 5], [6, 7]]


def histogram(strategy: pl.strategy.Strategy, fleet: pl.SimulatedFleet, length: int) -> NDArray[np.float64]:
    """The share of each staleness over 8,000 updates (seed 2); the last takes all that are larger."""
    found = np.zeros(length)
    for update in updates(pl.simulate(strategy, fleet, pl.Stop(updates=8_000), seed=2)):
        for age in update.ages:
            found[min(age, length - 1)] += 1 / len(update.ages) / 8_000
    return found


def as_array(ages: Ages, length: int) -> NDArray[np.float64]:
    found = np.zeros(length)
    for age, share in ages.shares.items():
        found[min(age, length - 1)] += share
    return found


@pytest.mark.parametrize(
    ("strategy", "fleet"),
    [
        (pl.Asynchronous(), pl.SimulatedFleet(MIXED)),
        (pl.Asynchronous(), pl.SimulatedFleet(MIXED, network=pl.Network(latency=0.2))),
        (pl.Asynchronous(), pl.SimulatedFleet([*MIXED, pl.delays.Constant(1.7)])),
        (pl.Grouped(GROUPS), pl.SimulatedFleet(MIXED)),
        (pl.Grouped(GROUPS, inside=pl.FastestK(2)), pl.SimulatedFleet(MIXED)),
    ],
    ids=lambda each: str(each)[:60],
)
def test_the_distribution_against_the_simulator(strategy: pl.strategy.Strategy, fleet: pl.SimulatedFleet) -> None:
    """The distribution functions differ by less than 0.02 everywhere; the mean is that of the clocks less one."""
    found = runtime(strategy, fleet)
    assert found.staleness.source == "quadrature"
    length = max(found.staleness.shares) + 2
    simulated, predicted = histogram(strategy, fleet, length), as_array(found.staleness, length)
    assert np.abs(np.cumsum(simulated) - np.cumsum(predicted)).max() < 0.02
    assert found.staleness.mean == pytest.approx(found.mean_staleness.value, rel=1e-3)


@pytest.mark.parametrize("means", [[1.0] * 6, [1.0] * 3 + [4.0] * 2, [0.5, 1.0, 10.0]], ids=str)
def test_memoryless_workers_are_geometric(means: list[float]) -> None:
    """The convolutions find the closed form to 0.0005, and its mean to 0.1 %."""
    fleet = pl.SimulatedFleet([pl.delays.ShiftedExponential(0.0, mean) for mean in means])
    clocks = clocks_of(pl.Asynchronous(), fleet, 0.0)
    assert clocks is not None
    closed, convolved = exponential_staleness(clocks), renewal_staleness(clocks)
    assert closed is not None
    assert convolved is not None
    both = min(len(closed), len(convolved))
    np.testing.assert_allclose(convolved[:both], closed[:both], atol=5e-4)
    assert closed @ np.arange(len(closed)) == pytest.approx(len(means) - 1, rel=1e-6)
    assert convolved @ np.arange(len(convolved)) == pytest.approx(len(means) - 1, rel=1e-3)
    assert runtime(pl.Asynchronous(), fleet).staleness.source == "exact"
    shares = np.array(means) ** -1.0 / sum(1 / mean for mean in means)
    assert closed[0] == pytest.approx((shares**2).sum(), rel=1e-9)


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_the_distribution_does_not_depend_on_the_unit_of_time(unit: float) -> None:
    """Nor does the grid on which it is computed: narrow delays, of which a coarser one would find something else."""

    def found(scale: float) -> NDArray[np.float64]:
        fleet = pl.SimulatedFleet([pl.delays.LogNormal(each * scale, 0.02) for each in (1.0, 1.3, 2.1)])
        clocks = clocks_of(pl.Asynchronous(), fleet, 0.0)
        assert clocks is not None
        shares = renewal_staleness(clocks)
        assert shares is not None
        return shares

    np.testing.assert_allclose(found(unit), found(1.0), rtol=0, atol=1e-6)


@given(st.lists(st.sampled_from(sorted({*MIXED}, key=repr)), min_size=2, max_size=5), st.sampled_from([0.0, 0.3]))
def test_the_mean_is_the_number_of_the_others(delays: list[Any], latency: float) -> None:
    fleet = pl.SimulatedFleet(delays, network=pl.Network(latency=latency))
    ages = runtime(pl.Asynchronous(), fleet).staleness
    assert ages.mean == pytest.approx(len(delays) - 1, rel=2e-3)
    assert sum(ages.shares.values()) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    "delays",
    [
        [pl.delays.Constant(1.0)] * 4,
        [pl.delays.Empirical([1.0, 2.0])] * 3,
        [pl.delays.ShiftedExponential(0.5, 0.5, h=10)] * 4,
        [pl.delays.Pareto(1.0, 1.1)] * 4,
    ],
    ids=str,
)
def test_clocks_in_step_held_durations_and_the_heaviest_tails_are_simulated(delays: list[Any]) -> None:
    assert runtime(pl.Asynchronous(), pl.SimulatedFleet(delays)).staleness.source == "simulation"


def test_equal_workers_in_order_are_stale_by_all_others() -> None:
    """Staleness P-1 after the first round: of 16,000 pieces of work the first 4 are less stale."""
    ages = runtime(pl.Asynchronous(), pl.SimulatedFleet([pl.delays.Constant(1.0)] * 4)).staleness
    assert ages.shares[3] > 0.999
    assert ages.quantile(0.5) == ages.quantile(0.99) == 3


def test_quantiles() -> None:
    ages = Ages({0: 0.5, 2: 0.4, 7: 0.1}, "exact")
    assert [ages.quantile(p) for p in (0.1, 0.5, 0.6, 0.9, 0.95, 1.0)] == [0, 0, 2, 2, 7, 7]
    assert ages.mean == pytest.approx(1.5)
