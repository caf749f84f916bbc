"""The invariants M1-M7 and the known values of the Group SGD specification."""

from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.core.messages import Step
from paceline.delays import Delay
from support.digits import digits_task, rows, train, weights
from support.updates import update_times, updates

DELAYS = [pl.delays.Constant(1.0)] * 4 + [pl.delays.Constant(2.0)] * 4 + [pl.delays.Constant(3.0)] * 8
GROUPS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]
SSGD, GSGD, ASGD = pl.Synchronous(), pl.Grouped(GROUPS), pl.Asynchronous()
PERIOD = 6.0
Ties = Literal["index", "reverse", "batch"]
TIES: tuple[Ties, ...] = ("index", "reverse", "batch")


def paper_fleet(ties: Ties = "index") -> pl.SimulatedFleet:
    return pl.SimulatedFleet(DELAYS, ties=ties)


def steady_staleness(strategy: pl.strategy.Strategy, ties: Ties) -> Fraction:
    """The exact mean over the updates of the second to the fifth period."""
    trace = pl.simulate(strategy, paper_fleet(ties), pl.Stop(seconds=5 * PERIOD))
    steady = [update.staleness for update in updates(trace) if update.at > PERIOD]
    return sum(steady, Fraction(0)) / len(steady)


def group_of(step: Step) -> int:
    (group,) = {number for number, group in enumerate(GROUPS) for ticket in step.weights if ticket.worker in group}
    return group


def test_m1_one_group_is_ssgd_bit_for_bit() -> None:
    grouped = train(digits_task(), pl.Grouped([list(range(16))]), paper_fleet(), updates=12)
    synchronous = train(digits_task(), SSGD, paper_fleet(), updates=12)
    assert torch.equal(weights(grouped.model), weights(synchronous.model))
    assert rows(grouped) == rows(synchronous)
    assert list(grouped.trace) == list(synchronous.trace)


def test_m2_singletons_are_asgd_bit_for_bit() -> None:
    grouped = train(digits_task(), pl.Grouped([[worker] for worker in range(16)]), paper_fleet(), updates=120)
    asynchronous = train(digits_task(), ASGD, paper_fleet(), updates=120)
    assert torch.equal(weights(grouped.model), weights(asynchronous.model))
    assert rows(grouped) == rows(asynchronous)
    assert list(grouped.trace) == list(asynchronous.trace)


@st.composite
def fleets_with_ties(draw: st.DrawFn) -> pl.SimulatedFleet:
    """Few durations, so that many arrive together, some for the first time since the last update and others not."""
    durations = st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=4)
    delays = [pl.delays.Empirical(draw(durations), in_order=True) for _ in range(draw(st.integers(1, 6)))]
    changes = list[pl.Left | pl.Joined]()
    for worker in range(1, len(delays)):
        leaves, away = draw(st.integers(0, 9)), draw(st.integers(0, 3))
        if leaves:
            changes += [pl.Left(float(leaves), worker), pl.Joined(float(leaves + away), worker)]
    ties = draw(st.sampled_from(TIES))
    return pl.SimulatedFleet(delays, changes=changes, ties=ties, server_seconds=draw(st.sampled_from([0.0, 0.5])))


@given(fleets_with_ties())
def test_m2_singletons_are_asgd_whoever_arrives_together(fleet: pl.SimulatedFleet) -> None:
    singletons = pl.Grouped([[worker] for worker in range(fleet.workers)])
    grouped, asynchronous = (pl.simulate(rule, fleet, pl.Stop(seconds=12.0)) for rule in (singletons, ASGD))
    assert list(grouped) == list(asynchronous)


@given(fleets_with_ties(), st.randoms(use_true_random=False))
def test_m2_in_whatever_order_the_singletons_are_named(fleet: pl.SimulatedFleet, random: Random) -> None:
    """Only the numbers of tickets may be others, which follow the order of the groups when the run begins."""
    workers = random.sample(range(fleet.workers), fleet.workers)
    rules = (pl.Grouped([[worker] for worker in workers]), ASGD)
    grouped, asynchronous = (
        [
            (at, ages, [(ticket.worker, ticket.version, weight) for ticket, weight in step.weights.items()])
            for at, _, step, ages in updates(pl.simulate(rule, fleet, pl.Stop(seconds=12.0)))
        ]
        for rule in rules
    )
    assert grouped == asynchronous


def test_m2_with_batch_ties_bit_for_bit_in_the_order_of_arrival() -> None:
    """At 2 s and at 3 s some arrive who began after the last update, and others who began before it."""
    fleet = pl.SimulatedFleet(
        [pl.delays.Constant(1.0), pl.delays.Constant(2.0), pl.delays.Constant(3.0), pl.delays.Constant(1.0)],
        ties="batch",
    )
    runs = [train(digits_task(), rule, fleet, updates=25) for rule in (pl.Grouped([[3], [1], [0], [2]]), ASGD)]
    assert torch.equal(*(weights(run.model) for run in runs))
    assert runs[0].mean_staleness == runs[1].mean_staleness
    order = [(update.at, ticket.worker) for update in updates(runs[1].trace) for ticket in update.step.weights]
    assert order[:11] == [(1, 0), (1, 3), (2, 0), (2, 1), (2, 3), (3, 0), (3, 2), (3, 3), (4, 0), (4, 1), (4, 3)]


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_m3_with_equal_times_asgd_has_staleness_p_minus_1_after_the_first_round(workers: int) -> None:
    trace = pl.simulate(ASGD, pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers), pl.Stop(seconds=5.0))
    ages = [update.ages for update in updates(trace)]
    assert ages[:workers] == [(age,) for age in range(workers)]
    assert ages[workers:] == [(workers - 1,)] * (4 * workers)


@pytest.mark.parametrize("ties", ["index", "reverse"])
@pytest.mark.parametrize(("strategy", "staleness"), [(SSGD, 0), (GSGD, 2), (ASGD, 15)])
def test_m4_steady_mean_staleness_is_the_number_of_groups_less_one(
    strategy: pl.strategy.Strategy, staleness: int, ties: Ties
) -> None:
    assert steady_staleness(strategy, ties) == staleness


@pytest.mark.parametrize(
    ("strategy", "staleness"), [(SSGD, Fraction(0)), (GSGD, Fraction(16, 11)), (ASGD, Fraction(263, 26))]
)
def test_m4_is_broken_by_batch_ties(strategy: pl.strategy.Strategy, staleness: Fraction) -> None:
    measured = steady_staleness(strategy, "batch")
    assert measured == staleness
    assert float(measured) == pytest.approx({SSGD: 0.0, GSGD: 1.4545, ASGD: 10.115}[strategy], abs=5e-4)


def test_m5_asgd_and_gsgd_use_equally_many_gradients_in_every_period() -> None:
    used: dict[pl.strategy.Strategy, list[int]] = {}
    for strategy in (ASGD, GSGD):
        trace = pl.simulate(strategy, paper_fleet(), pl.Stop(seconds=4 * PERIOD))
        used[strategy] = [
            sum(len(u.step.weights) for u in updates(trace) if period * PERIOD < u.at <= (period + 1) * PERIOD)
            for period in range(4)
        ]
    assert used == {ASGD: [52] * 4, GSGD: [52] * 4}


@given(
    seconds=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    cut=st.integers(0, 5),
    ties=st.sampled_from(["index", "reverse"]),
)
def test_m6_staleness_is_always_zero_exactly_with_one_group(seconds: Sequence[int], cut: int, ties: Ties) -> None:
    cut %= len(seconds)
    workers = list(range(len(seconds)))
    groups = [group for group in (workers[:cut], workers[cut:]) if group]
    fleet = pl.SimulatedFleet([pl.delays.Constant(float(s)) for s in seconds], ties=ties)
    trace = pl.simulate(pl.Grouped(groups), fleet, pl.Stop(seconds=3.0 * max(seconds)))
    always_zero = all(age == 0 for update in updates(trace) for age in update.ages)
    assert always_zero == (len(groups) == 1)


@given(
    durations=st.lists(st.integers(1, 12), min_size=3, max_size=8),
    scale=st.fractions(min_value=Fraction(1, 50), max_value=50, max_denominator=50).filter(lambda scale: scale > 0),
    strategy=st.sampled_from(["ssgd", "gsgd", "asgd", "k-sgd"]),
    ties=st.sampled_from(["index", "reverse", "batch"]),
)
def test_m7_scaling_time_leaves_the_sequence_unchanged(
    durations: Sequence[int], scale: Fraction, strategy: str, ties: Ties
) -> None:
    """Both fleets have durations of whole milliseconds, whatever the rational scale between them."""
    rule: pl.strategy.Strategy = {
        "ssgd": pl.Synchronous(),
        "gsgd": pl.Grouped([[0, 1], list(range(2, len(durations)))]),
        "asgd": pl.Asynchronous(),
        "k-sgd": pl.FastestK(2),
    }[strategy]

    def run(unit: int) -> list[tuple[Fraction, Step]]:
        """Updates, with their times in units."""
        delays: list[Delay] = [pl.delays.Constant(duration * unit / 1000) for duration in durations]
        trace = pl.simulate(rule, pl.SimulatedFleet(delays, ties=ties), pl.Stop(updates=25))
        return [(Fraction(round(u.at * 10**12), 10**9 * unit), u.step) for u in updates(trace)]

    assert run(scale.numerator) == run(scale.denominator)


@pytest.mark.parametrize(("strategy", "count", "samples"), [(SSGD, 2, 170.67), (GSGD, 11, 277.33), (ASGD, 52, 277.33)])
def test_updates_and_samples_in_six_units(strategy: pl.strategy.Strategy, count: int, samples: float) -> None:
    run = pl.train(
        digits_task(),
        strategy=strategy,
        fleet=paper_fleet(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        stop=pl.Stop(seconds=PERIOD),
        batch_size=32,
    )
    assert run.history[-1].updates == count
    assert len(updates(run.trace)) == count
    assert run.history[-1].samples / PERIOD == pytest.approx(samples, abs=0.005)
    assert run.mean_staleness == pytest.approx(float(sum(u.staleness for u in updates(run.trace))) / count, abs=1e-12)


def test_gsgd_updates_at_the_times_by_the_groups_and_with_the_staleness_of_the_specification() -> None:
    trace = pl.simulate(GSGD, paper_fleet(), pl.Stop(seconds=PERIOD))
    sequence = [(update.at, "ABC"[group_of(update.step)], set(update.ages)) for update in updates(trace)]
    assert sequence == [
        (1.0, "A", {0}), (2.0, "A", {0}), (2.0, "B", {2}), (3.0, "A", {1}), (3.0, "C", {4}), (4.0, "A", {1}),
        (4.0, "B", {3}), (5.0, "A", {1}), (6.0, "A", {0}), (6.0, "B", {2}), (6.0, "C", {5}),
    ]  # fmt: skip


def test_every_gsgd_step_is_the_mean_of_one_whole_group() -> None:
    trace = pl.simulate(GSGD, paper_fleet(), pl.Stop(seconds=2 * PERIOD))
    for update in updates(trace):
        group = GROUPS[group_of(update.step)]
        assert sorted(ticket.worker for ticket in update.step.weights) == group
        assert set(update.step.weights.values()) == {Fraction(1, len(group))}


def test_ssgd_steps_every_three_units() -> None:
    assert update_times(pl.simulate(SSGD, paper_fleet(), pl.Stop(seconds=9.0))) == [3.0, 6.0, 9.0]


def test_groups_formed_from_the_speeds_are_those_of_the_paper() -> None:
    assert pl.groups_by_speed(paper_fleet().medians) == tuple(map(tuple, GROUPS))
