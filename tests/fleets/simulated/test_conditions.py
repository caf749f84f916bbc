"""Workers that are lost and come back, say so before, and are slow together."""

from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest

import paceline as pl
from paceline.core.messages import Arrived, Halt, Joined, Leaving, Left, Recall, Start
from paceline.fleets.simulated.conditions import Slowness
from paceline.randomness import stream
from paceline.trace.measure import measure
from paceline.trace.reading import Trace
from support.updates import arrivals, update_times, updates


def simulated(strategy: pl.strategy.Strategy, seconds: float, **more: Any) -> Trace:
    fleet = pl.SimulatedFleet(more.pop("delays", pl.delays.Constant(1.0)), workers=more.pop("workers", 4), **more)
    return pl.simulate(strategy, fleet, pl.Stop(seconds=seconds), seed=more.pop("seed", 0))


# Lost and back


def test_workers_are_here_for_the_share_of_the_time_that_was_asked_for() -> None:
    """30 of 40 seconds; with 8 workers and 20,000 s the standard error is about a percent."""
    stays, delay = pl.Availability(30.0, 10.0), pl.delays.Constant(50.0)  # durations change nothing: the next test
    trace = simulated(pl.Asynchronous(), 20_000.0, workers=8, availability=stays, delays=delay)
    here, since, changes = 0.0, dict.fromkeys(range(8), 0.0), 0
    for fact in trace:
        if isinstance(fact, Joined):
            since[fact.worker] = fact.at
        elif isinstance(fact, Left):
            here += fact.at - since.pop(fact.worker)
            changes += 1
    here += sum(20_000.0 - each for each in since.values())
    assert here / (8 * 20_000) == pytest.approx(0.75, abs=0.03)
    assert changes == pytest.approx(8 * 20_000 / 40, rel=0.1)


def test_who_comes_and_goes_does_not_depend_on_durations_nor_the_strategy_and_does_on_the_seed() -> None:
    def changes(strategy: pl.strategy.Strategy, delay: pl.delays.Delay, seed: int) -> list[object]:
        fleet = pl.SimulatedFleet(delay, workers=4, availability=pl.Availability(20.0, 5.0, notice=2.0, workers=(0, 3)))
        trace = pl.simulate(strategy, fleet, pl.Stop(seconds=100.0), seed=seed)
        return [fact for fact in trace if isinstance(fact, Joined | Left | Leaving) and fact.at > 0]

    one = changes(pl.Synchronous(), pl.delays.Constant(1.0), 1)
    assert one == changes(pl.Asynchronous(), pl.delays.LogNormal(2.0, 0.5), 1)
    assert one != changes(pl.Synchronous(), pl.delays.Constant(1.0), 2)
    assert {fact.worker for fact in one if isinstance(fact, Joined | Left | Leaving)} == {0, 3}


def test_durations_stay_the_same_whoever_comes_and_goes() -> None:
    """Worker 1 stays: its own draws are those of a fleet in which all stay."""
    delay = pl.delays.LogNormal(1.0, 0.5)
    plain = simulated(pl.Asynchronous(), 60.0, delays=delay)
    others = simulated(pl.Asynchronous(), 60.0, delays=delay, availability=pl.Availability(9.0, 3.0, workers=(0, 2)))
    times = [[each.at for each in arrivals(trace) if each.ticket.worker == 1] for trace in (plain, others)]
    assert times[0] == times[1]


# Notice


def test_a_loss_is_announced_so_long_before_it_happens() -> None:
    trace = simulated(pl.Asynchronous(), 500.0, availability=pl.Availability(20.0, 5.0, notice=3.0))
    told: dict[int, Leaving] = {}
    joined = dict.fromkeys(range(4), 0.0)
    left = 0
    for fact in trace:
        if isinstance(fact, Joined):
            joined[fact.worker] = fact.at
        elif isinstance(fact, Leaving):
            told[fact.worker] = fact
        elif isinstance(fact, Left):
            notice = told.pop(fact.worker)
            assert notice.by == fact.at
            assert notice.at == pytest.approx(max(joined[fact.worker], fact.at - 3.0))
            left += 1
    assert left > 30


def test_who_is_leaving_gets_no_more_work_and_what_it_has_still_counts() -> None:
    """At 1.5 worker 1 says that it is gone at 4: its second mini-batch arrives at 2, and it gets no third."""
    trace = simulated(pl.Synchronous(), 4.0, workers=2, changes=[Leaving(1.5, 1, by=4.0), Left(4.0, 1)])
    assert [fact.ticket.worker for fact in trace if isinstance(fact, Start)] == [0, 1, 0, 1, 0, 0, 0]
    assert [sorted(each.workers) for each in updates(trace)] == [[0, 1], [0, 1], [0], [0]]
    assert not [fact for fact in trace if isinstance(fact, Halt)]


@pytest.mark.parametrize(("recall", "done", "at"), [("block", 3, 1.5), ("abandon", 2, 1.25)])
def test_live_compensation_recalls_who_is_leaving_and_makes_up_for_it_one_step_later(
    recall: Any, done: int, at: float
) -> None:
    """Worker 2 has done two and a half of its four blocks when it says that it is leaving; the others take a second."""
    delays = [pl.delays.Constant(each) for each in (1.75, 1.75, 2.0)]
    trace = simulated(
        pl.LiveCompensation(2, blocks=4), 4.0, delays=delays, workers=3, recall=recall,
        changes=[Leaving(1.25, 2, by=1.6), Left(1.6, 2)],
    )  # fmt: skip
    recalled = [fact.ticket for fact in trace if isinstance(fact, Recall)]
    assert [(each.serial, each.worker) for each in recalled] == [(2, 2)]
    assert [(each.at, each.done) for each in arrivals(trace) if each.ticket == recalled[0]] == [(at, done)]
    first, second = updates(trace)[:2]
    assert recalled[0] not in first.step.weights
    assert second.step.weights[recalled[0]] == pl.strategy.mean([recalled[0]])[recalled[0]] * done / 4 / 3


def test_a_notice_without_a_loss_and_one_of_somebody_who_is_away_are_refused() -> None:
    refused: list[tuple[list[Left | Joined | Leaving], str]] = [
        ([Leaving(1.0, 0, by=2.0)], r"is not followed by Left\(at=2.0, worker=0\): add it"),
        ([Left(1.0, 0), Leaving(2.0, 0, by=3.0)], "the worker is not there"),
        ([Leaving(2.0, 0, by=1.0), Left(3.0, 0)], "names no time to come"),
    ]
    for changes, why in refused:
        with pytest.raises(pl.ConfigError, match=why):
            pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, changes=changes)


# Slow together


def test_an_hour_has_the_factor_of_its_place() -> None:
    """A second a mini-batch in the first 3 s, two in the next 3, and so on."""
    trace = simulated(pl.Asynchronous(), 13.0, workers=1, slowness=[pl.delays.Hourly([1.0, 2.0], hour=3.0)])
    assert update_times(trace) == [1, 2, 3, 5, 7, 8, 9, 11, 13]


def test_the_workers_of_a_machine_are_slow_together_and_machines_are_not() -> None:
    """Drawn alone, each pair of a machine would take the same time as seldom as two of different machines."""
    trace = simulated(
        pl.Asynchronous(), 3000.0, workers=4, machines=pl.Machines(2),
        slowness=[pl.delays.SlowSpells(3.0, lasts=20.0, every=60.0)],
    )  # fmt: skip
    took: dict[int, list[tuple[float, float]]] = {worker: [] for worker in range(4)}
    for worker in range(4):
        times = [0.0, *(each.at for each in arrivals(trace) if each.ticket.worker == worker)]
        took[worker] = [(start, end - start) for start, end in pairwise(times)]
    assert took[0] == took[1]
    assert took[2] == took[3]
    assert took[0] != took[2]
    slow = sum(seconds for _, seconds in took[0] if seconds > 2) / 3000
    assert slow == pytest.approx(0.25, abs=0.08)
    assert {round(seconds, 6) for _, seconds in took[0]} == {1.0, 3.0}


def test_slowness_is_a_function_of_the_time_whatever_was_asked_before() -> None:
    spells = [pl.delays.SlowSpells(3.0, 2.0, 5.0), pl.delays.SlowSpells(2.0, 1.0, 4.0, together="fleet")]
    forward, back = Slowness(spells, seed=5), Slowness(spells, seed=5)
    times = [each / 3 for each in range(150)]
    one = [forward.factor(machine, at) for at in times for machine in (0, 1)]
    two = [back.factor(machine, at) for at in reversed(times) for machine in (1, 0)]
    assert one == two[::-1]
    assert {*one} == {1.0, 2.0, 3.0, 6.0}
    together = Slowness(spells[1:], seed=5)
    assert [together.factor(0, at) for at in times] == [together.factor(1, at) for at in times]


# Blocks of a recording


def test_blocks_keep_the_order_of_what_followed_each_other() -> None:
    values = [float(each) for each in range(1, 11)]
    drawn = list(islice(pl.delays.Empirical(values, block=4).durations(stream(0, "delay")), 400))
    for start in range(0, 400, 4):
        block = drawn[start : start + 4]
        assert all(later == earlier % 10 + 1 for earlier, later in pairwise(block))
    assert {*drawn[::4]} == {*values}
    plain = pl.delays.Empirical(values)
    assert [*islice(plain.durations(stream(0, "delay")), 9)] == [
        *islice(pl.delays.Empirical(values, block=1).durations(stream(0, "delay")), 9)
    ]
    assert np.mean(drawn) == pytest.approx(5.5, abs=0.5)


# Prices


def test_the_price_counts_the_seconds_in_which_a_worker_is_here() -> None:
    """Worker 0 for 10 s at 2; worker 1 for 4 s and from 8 to 10 at 5."""
    trace = simulated(pl.Asynchronous(), 10.0, workers=2, prices=[2.0, 5.0], changes=[Left(4.0, 1), Joined(8.0, 1)])
    assert trace.about["prices"] == [2.0, 5.0]
    assert measure(trace).price == 2.0 * 10 + 5.0 * (4 + 2)
    assert isinstance([*trace][-1], Arrived | Start)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"availability": 3.0}, r"give Availability\(3600.0, 60.0\)"),
        ({"availability": pl.Availability(1.0, 1.0, workers=(7,))}, "availability names worker 7: the fleet has"),
        ({"availability": pl.Availability(1.0, 1.0), "changes": [Left(1.0, 0)]}, "choose one of them"),
        ({"slowness": pl.delays.Hourly([1.0])}, "is no list: give"),
        ({"slowness": [3.0]}, "slowness: 3.0 is none"),
        ({"prices": [1.0]}, "1 prices for 2 workers: give one for each, or one for all"),
        ({"prices": -1.0}, "prices: -1.0 is no price"),
    ],
)
def test_conditions_that_cannot_be_are_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(pl.ConfigError, match=why):
        pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, **more)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: pl.Availability(0.0, 1.0),
        lambda: pl.Availability(1.0, 1.0, notice=-1.0),
        lambda: pl.delays.SlowSpells(0.0, 1.0, 1.0),
        lambda: pl.delays.Hourly([]),
        lambda: pl.delays.Hourly([1.0], hour=0.0),
        lambda: pl.delays.Empirical([1.0], block=0),
        lambda: pl.delays.Empirical([1.0], in_order=True, block=2),
    ],
)
def test_impossible_conditions_are_refused(wrong: Any) -> None:
    with pytest.raises(pl.ConfigError):
        wrong()
