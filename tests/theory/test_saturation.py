"""Machines with shared links: what has a formula, and where a server has no more time."""

from dataclasses import replace

import pytest

import paceline as pl
from paceline.delays import Constant, LogNormal
from paceline.prediction.what_if import Survey, recorded_fleet, what_if
from paceline.theory.runtime.costs import runtime, simulated


@pytest.fixture(autouse=True)
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the usual length is enough here."""
    monkeypatch.setattr("paceline.theory.runtime.costs.PIECES_OF_WORK", 3_000)


MACHINES = pl.Machines(8, gigabits=8, latency=0.001, sum_seconds=0.02, step_seconds=0.03, message_bytes=10**8)


def test_a_synchronous_round_on_machines_has_a_formula_that_the_simulator_agrees_with() -> None:
    """Four messages of latency, twice three messages of 0.1 s on one link, three sums and a step."""
    fleet = pl.SimulatedFleet(LogNormal(0.1, 0.2), workers=24, machines=MACHINES)
    found = runtime(pl.Synchronous(), fleet)
    assert found.updates_per_second.source == "quadrature"
    computing = runtime(pl.Synchronous(), pl.SimulatedFleet(LogNormal(0.1, 0.2), workers=24)).seconds_per_update.value
    expected = computing + 4 * 0.001 + 2 * 0.3 + 3 * 0.02 + 0.03
    assert found.seconds_per_update.value == pytest.approx(expected, rel=1e-9)
    assert simulated(pl.Synchronous(), fleet).seconds_per_update.value == pytest.approx(expected, rel=0.01)


def test_rules_whose_rounds_overlap_on_shared_links_are_simulated() -> None:
    fleet = pl.SimulatedFleet(Constant(0.1), workers=16, machines=MACHINES)
    for strategy in (pl.Asynchronous(), pl.FastestK(12), pl.Grouped([[*range(8)], [*range(8, 16)]])):
        assert runtime(strategy, fleet).updates_per_second.source == "simulation"


@pytest.mark.parametrize("shards", [1, 4])
def test_groups_by_machine_saturate_where_the_formula_says(shards: int) -> None:
    """A round alone over the time of the busiest part; far beyond it, updates come as fast as that part allows."""
    machines = replace(MACHINES, shards=shards)
    groups = pl.Grouped([[*range(first, first + 8)] for first in range(0, 320, 8)])
    fleet = pl.SimulatedFleet(Constant(0.1), workers=320, machines=machines)
    found = runtime(groups, fleet)
    alone = 0.1 + 4 * 0.001 + 2 * 0.1 + 0.05 / shards
    assert found.saturation is not None
    assert found.saturation.busiest == "the server's link for sums"
    assert found.saturation.workers.source == "exact"
    assert found.saturation.workers.value == pytest.approx(8 * alone / (0.1 / shards))
    assert found.saturation.updates_per_second.value == pytest.approx(10.0 * shards)
    assert found.updates_per_second.value == pytest.approx(10.0 * shards, rel=0.1)


def test_the_saturation_of_one_server_that_takes_time_is_that_of_the_page() -> None:
    fleet = pl.SimulatedFleet(Constant(0.1), workers=10, network=pl.Network(latency=0.01), server_seconds=0.02)
    found = runtime(pl.Asynchronous(), fleet).saturation
    assert found is not None
    assert found.busiest == "the server"
    assert found.workers.value == pytest.approx((0.1 + 0.02 + 0.02) / 0.02)
    assert runtime(pl.Synchronous(), fleet).saturation is None
    assert runtime(pl.Asynchronous(), pl.SimulatedFleet(Constant(0.1), workers=10)).saturation is None


def test_a_recorded_run_on_machines_is_asked_about_on_the_same_machines() -> None:
    fleet = pl.SimulatedFleet(Constant(0.1), workers=16, machines=MACHINES, prices=2.0)
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(updates=20))
    survey = Survey(trace)
    assert survey.durations[3].seconds[0] == pytest.approx(0.1)
    assert recorded_fleet(survey).machines == MACHINES
    (again,) = what_if(survey, {"ssgd": pl.Synchronous()})
    assert again.measures.updates == survey.measures.updates
    assert again.measures.bytes_between_machines == survey.measures.bytes_between_machines
    assert again.measures.price == pytest.approx(2.0 * 16 * survey.measures.seconds)
