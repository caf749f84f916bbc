"""A rule that chooses by itself: what it chooses, when it chooses anew, and what looking may cost."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean

import pytest
import torch

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.core.messages import Resize, Step
from paceline.delays import Constant, Delay, Empirical, LogNormal, Pareto, PerSample, ShiftedExponential
from paceline.strategies.advised import quorums
from paceline.testing import StrategyContract
from paceline.trace.reading import Trace
from support.digits import weights
from support.resumable import Case, replayed

EACH = 32  # samples of a worker, at first
WINDOW = 9
SLOW = [Constant(1.0)] * 3 + [Constant(4.0)]


class TestAdvised(StrategyContract):
    strategy = pl.Advised(total=23, window=2)


class TestAdvisedWithoutDrops(StrategyContract):
    strategy = pl.Advised(total=23, window=2, margin=0.0, drop_late=False)


def simulated(delays: Sequence[Delay], updates: int, seed: int = 0, **options: float) -> Trace:
    rule = pl.Advised(total=EACH * len(delays), **options)  # type: ignore[arg-type]
    return pl.simulate(rule, pl.SimulatedFleet(delays), pl.Stop(updates=updates), batch_size=EACH, seed=seed)


def choices(trace: Trace) -> dict[int, Resize]:
    """By the round in which they were made."""
    found, rounds = {}, 0
    for fact in trace:
        rounds += isinstance(fact, Step)
        if isinstance(fact, Resize):
            found[rounds] = fact
    return found


def seconds(trace: Trace) -> float:
    """Of the last update."""
    last, now = 0.0, 0.0
    for fact in trace:
        now = getattr(fact, "at", now)
        last = now if isinstance(fact, Step) else last
    return last


def of_synchronous(delays: Sequence[Delay], updates: int, seed: int = 0) -> float:
    fleet = pl.SimulatedFleet(delays)
    return seconds(pl.simulate(pl.Synchronous(), fleet, pl.Stop(updates=updates), batch_size=EACH, seed=seed))


# What it chooses.


def test_equal_workers_stay_synchronous_and_the_trace_says_so() -> None:
    trace = simulated([Constant(1.0)] * 4, 60)
    assert seconds(trace) == of_synchronous([Constant(1.0)] * 4, 60)
    found = choices(trace)
    assert {*found} == {0, WINDOW}
    assert found[0].why == "4 workers: all are waited for, for 9 rounds"
    assert found[WINDOW].why.startswith("synchronous, as it is: 128 samples take 1 s; at best 1 s")


def test_a_slow_worker_gets_less() -> None:
    trace = simulated(SLOW, 60)
    assert {*choices(trace)} == {0, WINDOW}
    assert choices(trace)[WINDOW].sizes == {0: 40, 1: 40, 2: 39, 3: 9}
    assert choices(trace)[WINDOW].why == (
        "unequal mini-batches: 128 samples take 1.25 s instead of 4 s, by the last 9 rounds"
    )
    assert seconds(trace) == pytest.approx(WINDOW * 4.0 + (60 - WINDOW) * 1.25)


def test_slowness_that_comes_and_goes_is_not_waited_for() -> None:
    """Eight exponential workers: the first K of them, with 256/K samples each, take 8/K (0.2 + H8 - H(8-K)) s."""
    trace = simulated([ShiftedExponential(0.2, 1.0)] * 8, 300)
    assert any(each.why.startswith("the first ") for each in choices(trace).values())
    assert seconds(trace) < 0.75 * of_synchronous([ShiftedExponential(0.2, 1.0)] * 8, 300)


def test_a_worker_whose_mini_batch_cannot_be_shortened_is_not_waited_for() -> None:
    """Sizes are tried first: what a smaller one takes tells that nearly all of it is a fixed part."""
    delays = [PerSample(0.9, Constant(0.1 / EACH))] * 3 + [PerSample(3.9, Constant(0.1 / EACH))]
    found = choices(simulated(delays, 60))
    assert found[WINDOW].why.startswith("unequal mini-batches")
    assert found[2 * WINDOW].why.startswith("the first 3 of 4")


@pytest.mark.parametrize("delays", [SLOW, [ShiftedExponential(0.2, 1.0)] * 8])
def test_every_update_is_the_mean_of_as_many_samples(delays: Sequence[Delay]) -> None:
    total = EACH * len(delays)
    steps = [fact for fact in simulated(delays, 100) if isinstance(fact, Step)]
    for step in steps:
        samples = sum(ticket.work.samples for ticket in step.weights)
        assert total <= samples < total + len(delays)
        assert step.weights == {ticket: Fraction(ticket.work.samples, samples) for ticket in step.weights}


def test_without_drops_everybody_is_waited_for() -> None:
    trace = simulated([ShiftedExponential(0.2, 1.0)] * 8, 100, drop_late=False)
    assert all(len(fact.weights) == 8 for fact in trace if isinstance(fact, Step))


def test_quorums_are_at_least_half() -> None:
    assert quorums(4) == [3, 2]
    assert quorums(16) == [15, 14, 12, 10, 8]
    assert quorums(2) == [1]
    assert quorums(1) == []


# When it chooses anew.


@pytest.mark.parametrize("slow_from", [20, 40, 61])
def test_a_worker_that_becomes_three_times_as_slow_changes_the_choice_within_two_windows(slow_from: int) -> None:
    delays: list[Delay] = [*[Constant(1.0)] * 3, Empirical([1.0] * slow_from + [3.0] * 1000, in_order=True)]
    found = choices(simulated(delays, slow_from + 60))
    (changed,) = [rounds for rounds in found if rounds > WINDOW]
    assert slow_from < changed <= slow_from + 2 * WINDOW
    assert found[changed].sizes[3] <= 12 < found[changed].sizes[0]


def test_the_same_where_late_workers_are_stopped() -> None:
    """First one worker takes four times as long, nearly all of it fixed; then another one three times."""
    base = [PerSample(0.9, Constant(0.1 / EACH))] * 2
    worse = PerSample(0.9, Empirical([0.1 / EACH] * 60 + [2.1 / EACH] * 1000, in_order=True))
    found = choices(simulated([*base, worse, PerSample(3.9, Constant(0.1 / EACH))], 120))
    assert found[2 * WINDOW].why.startswith("the first 3 of 4")
    changed = next(rounds for rounds in found if rounds > 60)
    assert changed <= 60 + 2 * WINDOW
    assert "looks at everybody again: a round takes" in found[changed].why
    assert "the first 2 of 4" in [*found.values()][-1].why


def test_a_worker_that_recovers_gets_its_share_back() -> None:
    delays: list[Delay] = [*[Constant(1.0)] * 3, Empirical([3.0] * 40 + [1.0] * 1000, in_order=True)]
    last = [*choices(simulated(delays, 100)).values()][-1]
    assert last.sizes == dict.fromkeys(range(4), EACH)
    assert last.why.startswith("synchronous, as it is: ")


def test_who_leaves_and_joins_is_looked_at() -> None:
    changes: list[pl.Left | pl.Joined] = [pl.Left(60.0, 0), pl.Joined(90.0, 0)]
    fleet = pl.SimulatedFleet(SLOW, changes=changes)
    trace = pl.simulate(pl.Advised(total=128), fleet, pl.Stop(updates=90), batch_size=EACH)
    found = [*choices(trace).values()]
    three = next(place for place, each in enumerate(found) if len(each.sizes) == 3)
    assert found[three].why.startswith("3 workers: all are waited for")
    assert any(each.why.startswith("4 workers") for each in found[three:])
    assert all(sum(each.sizes.values()) == 128 for each in found if "first" not in each.why)


# What looking costs.

FLEETS: dict[str, Sequence[Delay]] = {
    "equal": [Constant(1.0)] * 6,
    "one slow": SLOW,
    "a little noise": [LogNormal(1.0, 0.1)] * 8,
    "noise": [LogNormal(1.0, 0.3)] * 8,
    "exponential": [ShiftedExponential(0.5, 0.5)] * 6,
    "held": [ShiftedExponential(0.5, 0.5, h=10)] * 6,
    "long stalls": [Pareto(1.0, 1.5)] * 5,
    "unlike and noisy": [LogNormal(1.0 + worker / 4, 0.2) for worker in range(8)],
    "fixed parts": [PerSample(0.9, ShiftedExponential(0.05 / EACH, 0.05 / EACH))] * 6,
    "slow by turns": [
        Empirical([1.0] * (10 * worker) + [3.0] * 20 + [1.0] * (140 - 10 * worker), in_order=True)
        for worker in range(4)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FLEETS)
def test_it_is_never_slower_than_synchronous_by_more_than_looking_costs(name: str) -> None:
    """The same seeds: 5 % of the time, and more only where speeds change as fast as windows pass."""
    delays, updates, most = FLEETS[name], 400, 1.15 if name == "slow by turns" else 1.05
    ratios = [seconds(simulated(delays, updates, seed)) / of_synchronous(delays, updates, seed) for seed in range(2)]
    assert fmean(ratios) <= most


# In training.


def test_it_is_resumed_and_replayed_bit_for_bit(tmp_path: Path) -> None:
    fleet = pl.SimulatedFleet([ShiftedExponential(0.05, 0.02), Constant(0.05), Constant(0.2)])
    case, one, two = Case(pl.Advised(total=24, window=3), fleet), tmp_path / "one", tmp_path / "two"
    straight = case.run(one, pl.Stop(updates=24))
    for updates in (1, 4, 7, 24):
        resumed = case.run(two, pl.Stop(updates=updates), resume=True)
    assert torch.equal(weights(resumed.model), weights(straight.model))
    assert (one / "trace.jsonl").read_bytes() == (two / "trace.jsonl").read_bytes()
    assert len(choices(straight.trace)) > 1
    found = replayed(case, one)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_on_processes_it_leaves_a_slow_worker_behind_and_is_replayed(tmp_path: Path) -> None:
    """Worker 2 sleeps half a second, whatever the size: sizes cannot help, so the others are not kept waiting."""
    fleet = pl.ProcessFleet(3, threads=1, slow={2: Constant(0.5)})
    case = replace(Case(pl.Advised(total=24, window=2), fleet))
    run = case.run(tmp_path, pl.Stop(updates=12))
    assert run.history[-1].updates == 12
    assert any("of 3: 24 samples take" in each.why for each in choices(run.trace).values())
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: pl.Advised(total=0), "a total of 0 samples"),
        (lambda: pl.Advised(total=8, window=1), "a window of 1 tells no error"),
        (lambda: pl.Advised(total=8, margin=-1.0), "a margin of -1.0"),
        (lambda: pl.Advised(total=8, cost=0.0), "a cost of 0.0"),
        (lambda: pl.Grouped([[0]], inside=pl.Advised(total=8)), "Grouped cannot have Advised inside"),
        (lambda: pl.UnequalBatches(pl.Advised(total=8), total=8), "UnequalBatches cannot have Advised inside"),
        (lambda: pl.Advised(total=3).check(4, None), "leaves one of 4 workers without any"),
        (lambda: simulated([Constant(1.0)] * 2, 1, total=3), "multiple values"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, said: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=said):
        make()  # type: ignore[operator]


def test_samples_that_half_the_workers_may_have_must_be_there(tmp_path: Path) -> None:
    case = Case(pl.Advised(total=300), pl.SimulatedFleet(Constant(1.0), workers=3), batch_size=100)
    with pytest.raises(ConfigError, match=r"has 400 samples, fewer than the 600 that the workers may have at once"):
        case.run(tmp_path, pl.Stop(updates=1))
