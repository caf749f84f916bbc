"""Speed, waste and staleness by formula, against the simulator: 1,500 updates (seed 1).

Tolerances against the simulator: times 4 %, shares 0.02, unless a test says otherwise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.strategies.asynchronous import Asynchronous
from paceline.theory.runtime.costs import Runtime, runtime
from paceline.trace.measure import Measures, measure

ALIKE: list[Any] = [pl.delays.ShiftedExponential(0.05, 0.02)] * 10
UNLIKE: list[Any] = (
    [pl.delays.LogNormal(1.0, 0.2)] * 3
    + [pl.delays.ShiftedExponential(1.5, 0.5)] * 3
    + [pl.delays.Pareto(2.4, 3.5)] * 2
)
GROUPS = [[0, 1, 2], [3, 4, 5], [6, 7]]
LGC = pl.LiveCompensation(quorum=5, blocks=4)


@pytest.fixture(autouse=True)
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the usual length is enough for these tolerances."""
    monkeypatch.setattr("paceline.theory.runtime.costs.PIECES_OF_WORK", 8_000)


def fleet(delays: Sequence[Any], latency: float = 0.0, **options: Any) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(delays, network=pl.Network(latency=latency), **options)


def simulate(strategy: pl.strategy.Strategy, workers: pl.SimulatedFleet, updates: int = 1500) -> Measures:
    return measure(pl.simulate(strategy, workers, pl.Stop(updates=updates), seed=1))


BY_FORMULA = [
    (pl.Synchronous(), fleet(ALIKE), "exact"),
    (pl.Synchronous(), fleet(UNLIKE, 0.1), "quadrature"),
    (pl.Synchronous(), fleet([pl.delays.ShiftedExponential(0.05, 0.02, h=5)] * 10), "exact"),
    (pl.FastestK(7), fleet(ALIKE), "exact"),
    (pl.FastestK(5), fleet(UNLIKE, 0.1), "quadrature"),
    (pl.FastestK(8, stop_late=False), fleet(UNLIKE), "quadrature"),
    (pl.Asynchronous(), fleet(UNLIKE, 0.1), "exact"),
    (pl.Asynchronous(), fleet([pl.delays.ShiftedExponential(0.5, 0.5, h=5)] * 6), "exact"),
    (pl.LiveCompensation(7, 4), fleet(ALIKE, recall="complete"), "exact"),
    (pl.LiveCompensation(7, 4), fleet(ALIKE, recall="abandon"), "exact"),
    (LGC, fleet(UNLIKE, 0.1, recall="complete"), "quadrature"),
    (pl.Grouped(GROUPS), fleet(UNLIKE, 0.1), "quadrature"),
    (pl.Grouped(GROUPS, inside=pl.FastestK(2)), fleet(UNLIKE), "quadrature"),
    (pl.Grouped(GROUPS, inside=pl.Asynchronous()), fleet(UNLIKE), "exact"),
    (pl.Synchronous(), fleet([pl.delays.Empirical([1.0, 2.0, 4.0])] * 3 + [pl.delays.Constant(1.5)]), "exact"),
]


@pytest.mark.parametrize(("strategy", "workers", "source"), BY_FORMULA, ids=lambda each: str(each)[:50])
def test_formulas_against_the_simulator(
    strategy: pl.strategy.Strategy, workers: pl.SimulatedFleet, source: str
) -> None:
    found, simulated = runtime(strategy, workers), simulate(strategy, workers)
    assert found.updates_per_second.source == source
    if not isinstance(strategy, pl.LiveCompensation):  # what comes too late to be used is counted in a simulation
        assert found.wasted_share.source in ("exact", source)  # 0 is exact
    assert found.seconds_per_update.value == pytest.approx(simulated.seconds / simulated.updates, rel=0.04)
    assert found.mean_staleness.value == pytest.approx(simulated.mean_staleness, rel=0.015, abs=0.01)
    assert found.wasted_share.value == pytest.approx(simulated.wasted_share, abs=0.02)


SIMULATED = [
    (pl.FastestK(5, stop_late=False), fleet(UNLIKE)),
    (LGC, fleet(UNLIKE, recall="block")),
    (LGC, fleet(UNLIKE, 0.1, recall="abandon")),
    (pl.LiveCompensation(5, 4, recall=False), fleet(UNLIKE)),
    (pl.Grouped(GROUPS, inside=pl.LiveCompensation(2, 4)), fleet(UNLIKE, recall="block")),
    (pl.Synchronous(), fleet([pl.delays.Empirical([1.0, 2.0, 4.0], in_order=True)] * 3)),
]


@pytest.mark.parametrize(("strategy", "workers"), SIMULATED, ids=lambda each: str(each)[:50])
def test_where_no_formula_is_known_it_says_simulation(
    strategy: pl.strategy.Strategy, workers: pl.SimulatedFleet
) -> None:
    """Another seed, within 4 of its standard errors and 3 %."""
    found, again = runtime(strategy, workers), simulate(strategy, workers, 1000)
    gap = found.seconds_per_update
    assert gap.source == "simulation"
    assert gap.error is not None
    assert abs(gap.value - again.seconds / again.updates) < 4 * gap.error + 0.03 * gap.value
    assert found.wasted_share.value == pytest.approx(again.wasted_share, abs=0.02)
    assert found.mean_staleness.value == pytest.approx(again.mean_staleness, abs=0.05)


def test_the_papers_known_values() -> None:
    """LGC: 0.0719 s against 0.1086 s. Group SGD: 2, 11 and 52 updates in 6 units of time; staleness 0, 2, 15."""
    full, some = (runtime(s, fleet(ALIKE)).seconds_per_update.value for s in (pl.Synchronous(), pl.FastestK(7)))
    assert (full, some) == pytest.approx((0.1085794, 0.0719127), abs=5e-8)
    assert 100 * (1 - some / full) == pytest.approx(33.769, abs=5e-4)
    workers = fleet([pl.delays.Constant(1.0)] * 4 + [pl.delays.Constant(2.0)] * 4 + [pl.delays.Constant(3.0)] * 8)
    grouped = pl.Grouped([range(4), range(4, 8), range(8, 16)])
    for strategy, updates, staleness in ((pl.Synchronous(), 2, 0), (grouped, 11, 2), (pl.Asynchronous(), 52, 15)):
        found = runtime(strategy, workers)
        assert 6 * found.updates_per_second.value == pytest.approx(updates)
        assert found.mean_staleness.value == staleness
        assert {found.updates_per_second.source, found.mean_staleness.source} == {"exact"}


def test_arrivals_told_together_are_less_stale() -> None:
    """The steady means of the specification, 10.115 and 1.4545, by simulation: to 0.5 %."""
    workers = fleet(
        [pl.delays.Constant(1.0)] * 4 + [pl.delays.Constant(2.0)] * 4 + [pl.delays.Constant(3.0)] * 8, ties="batch"
    )
    alone = runtime(pl.Asynchronous(), workers)
    groups = runtime(pl.Grouped([range(4), range(4, 8), range(8, 16)]), workers)
    assert alone.mean_staleness.source == groups.mean_staleness.source == "simulation"
    assert alone.mean_staleness.value == pytest.approx(10.115, rel=0.005)
    assert groups.mean_staleness.value == pytest.approx(1.4545, rel=0.005)


def test_messages_take_time() -> None:
    workers = pl.SimulatedFleet([pl.delays.Constant(1.0)] * 2, network=pl.Network(latency=0.1, bandwidth=1000.0))
    assert runtime(pl.Synchronous(), workers).seconds_per_update.value == pytest.approx(1.2)
    assert runtime(pl.Synchronous(), workers, message_bytes=200).seconds_per_update.value == pytest.approx(1.6)


def test_a_worker_without_a_mean_never_counts_in_the_long_run() -> None:
    workers = fleet([pl.delays.Constant(1.0), pl.delays.Pareto(1.0, 0.8)])
    found = runtime(pl.Synchronous(), workers)
    assert (found.updates_per_second.value, found.seconds_per_update.value) == (0.0, math.inf)
    assert runtime(pl.Asynchronous(), workers).updates_per_second.value == 1.0
    assert runtime(pl.FastestK(1), workers).updates_per_second.value == pytest.approx(1.0)


def weights(found: Runtime) -> dict[int, float]:
    return dict(found.weights.by_age)


def test_compensation_cancels_in_the_weights_but_not_in_the_staleness() -> None:
    """Whole gradients of late workers leave no net weight on the round before; scaled partial ones less than none."""
    whole = runtime(LGC, fleet(UNLIKE, recall="complete"))
    assert (dict(whole.staleness.shares), whole.staleness.source) == ({0: 5 / 8, 1: 3 / 8}, "exact")
    assert (weights(whole), whole.weights_source) == ({0: 1.0}, "exact")
    for recall in ("block", "abandon"):
        partial = runtime(LGC, fleet(UNLIKE, recall=recall))
        assert weights(partial)[0] == pytest.approx(1.0)
        assert -3 / 8 < weights(partial)[1] < -0.02
        assert partial.weights_source == "simulation"
    unscaled = runtime(pl.LiveCompensation(5, 4, scale=False), fleet(UNLIKE, recall="block"))
    assert weights(unscaled) == {0: 1.0}


@dataclass(frozen=True)
class Mine(Asynchronous):
    """A rule of one's own, of which nothing is known."""


@dataclass(frozen=True)
class Uneven:
    """A delay of one's own, which can only be drawn."""

    median: float = 1.0

    def durations(self, generator: Any) -> Any:
        while True:
            yield float(generator.uniform(0.5, 1.5))


def test_rules_and_delays_of_ones_own_are_simulated() -> None:
    """Five workers with uniform delays: 5 updates a second, mean staleness 4, to 2 %."""
    for strategy, workers in (
        (Mine(), fleet([pl.delays.LogNormal(1.0, 0.1)] * 5)),
        (pl.Asynchronous(), fleet([Uneven()] * 5)),
    ):
        found = runtime(strategy, workers)
        assert found.updates_per_second.source == found.staleness.source == "simulation"
        assert found.updates_per_second.value == pytest.approx(5.0, rel=0.02)
        assert found.mean_staleness.value == pytest.approx(4.0, rel=0.02)
        assert (found.weights_source, found.weights.by_gap) == ("simulation", {0: 1.0})


def test_workers_that_leave_are_left_out() -> None:
    gone = runtime(pl.FastestK(2, stop_late=False), fleet(UNLIKE, changes=[pl.Left(1.0, 0)]))
    stays = runtime(pl.FastestK(2, stop_late=False), fleet(UNLIKE))
    assert gone == stays


def test_a_strategy_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="a quorum of 11 does not fit 10 workers"):
        runtime(pl.FastestK(11), fleet(ALIKE))
    with pytest.raises(ConfigError, match="groups miss worker 9"):
        runtime(pl.Grouped([range(9)]), fleet(ALIKE))
