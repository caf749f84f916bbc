"""Mini-batches by measured speed: which sizes, when they change, and what a step is then."""

import math
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived, Resize, Start, Step
from paceline.delays import Constant, Empirical, LogNormal, PerSample
from paceline.strategies.unequal_batches import fixed_part, sizes_by_speed
from paceline.testing import StrategyContract
from paceline.trace.reading import Trace
from support.digits import Noted, digits, digits_task, linear
from support.digits import train as train_digits

SLOW = pl.SimulatedFleet([Constant(1.0)] * 3 + [Constant(4.0)])


class TestUnequalBatches(StrategyContract):
    strategy = pl.UnequalBatches(total=23, window=1)


class TestUnequalBatchesOfTheFastest(StrategyContract):
    strategy = pl.UnequalBatches(pl.FastestK(2), total=23, window=1)


class TestUnequalBatchesOfLiveCompensation(StrategyContract):
    strategy = pl.UnequalBatches(pl.LiveCompensation(quorum=2, blocks=3), total=24, window=1)


def resizes(trace: Trace) -> list[Resize]:
    return [fact for fact in trace if isinstance(fact, Resize)]


# Which sizes.


@given(
    st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 3)), min_size=1, max_size=4),
    st.integers(0, 8),
    st.integers(1, 3),
)
def test_no_other_sizes_make_a_shorter_round(workers: list[tuple[float, float]], more: int, multiple: int) -> None:
    speeds, fixed = [speed for speed, _ in workers], [start for _, start in workers]
    units = len(workers) + more

    def round_of(sizes: tuple[int, ...]) -> float:
        return max(start + size / speed for size, speed, start in zip(sizes, speeds, fixed, strict=True))

    found = sizes_by_speed(speeds, units * multiple, multiple, fixed=fixed)
    assert sum(found) == units * multiple
    assert all(size >= multiple and size % multiple == 0 for size in found)
    others = product(range(1, units + 1), repeat=len(workers))
    best = min(round_of(tuple(multiple * u for u in each)) for each in others if sum(each) == units)
    assert round_of(found) <= best * (1 + 1e-9)


def test_sizes_are_in_proportion_to_speeds() -> None:
    assert pl.sizes_by_speed([4, 4, 4, 1], 130) == (40, 40, 40, 10)
    assert pl.sizes_by_speed([1, 1, 1], 10) == (4, 3, 3)
    assert pl.sizes_by_speed([100, 1, 1], 4) == (2, 1, 1)
    assert pl.sizes_by_speed([3, 1], 16, 4) == (12, 4)


@pytest.mark.parametrize(
    ("speeds", "total", "multiple", "message"),
    [([1, 1, 1], 2, 1, "each needs one"), ([1, 1], 10, 4, "multiples of 4"), ([1, 0], 10, 1, "positive and finite")],
)
def test_sizes_that_cannot_be_dealt_are_refused(speeds: list[float], total: int, multiple: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sizes_by_speed(speeds, total, multiple)


def test_the_fixed_part_follows_from_two_sizes() -> None:
    assert fixed_part(10, 1.2, (40, 4.2)) == pytest.approx(0.2)
    assert fixed_part(40, 4.2, (10, 1.2)) == pytest.approx(0.2)
    assert fixed_part(10, 1.2, None) == 0
    assert fixed_part(10, 1.2, (11, 1.3)) == 0, "sizes too near to each other tell nothing"
    assert fixed_part(10, 1.2, (40, 0.5)) == 0, "the worker has become slower"
    assert fixed_part(10, 1.0, (40, 1.0)) == pytest.approx(0.95), "hardly anything goes with the samples"


# When.


def test_sizes_follow_the_speeds_and_then_stay() -> None:
    trace = pl.simulate(pl.UnequalBatches(total=128), SLOW, pl.Stop(updates=200))
    first, changed = resizes(trace)
    assert first.sizes == {0: 32, 1: 32, 2: 32, 3: 32}
    assert changed.sizes == {0: 40, 1: 40, 2: 39, 3: 9}
    assert changed.why == "worker 3 takes 4 s for 32 samples; with other sizes all take 1.25 s"


def last_round(trace: Trace, workers: int) -> list[float]:
    """What each worker took."""
    arrivals = [fact.at for fact in trace if isinstance(fact, Arrived)]
    begin = max(arrivals[:-workers])
    return [at - begin for at in arrivals[-workers:]]


def test_all_workers_of_a_round_arrive_within_a_tenth_of_each_other() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0 + worker) for worker in range(5)])
    took = last_round(pl.simulate(pl.UnequalBatches(total=400), fleet, pl.Stop(updates=100)), 5)
    assert max(took) < 1.1 * min(took)


def test_with_a_fixed_part_a_round_is_within_the_margin_of_the_shortest() -> None:
    fleet = pl.SimulatedFleet([PerSample(0.5, Constant(0.01 * (1 + worker))) for worker in range(5)])
    took = last_round(pl.simulate(pl.UnequalBatches(total=400, margin=0.02), fleet, pl.Stop(updates=100)), 5)
    best = sizes_by_speed([100 / (1 + worker) for worker in range(5)], 400, fixed=[0.5] * 5)
    shortest = max(0.5 + size * 0.01 * (1 + worker) for worker, size in enumerate(best))
    assert max(took) <= 1.02 * shortest


@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=6), st.data())
def test_speeds_that_change_less_than_the_margin_change_nothing(seconds: list[float], data: st.DataObject) -> None:
    """Up to half of the margin for each: no ratio of two changes by more."""
    most = math.sqrt(1.1)
    factors = [data.draw(st.floats(1 / most, most)) ** 0.5 for _ in seconds]
    before = [10] * len(seconds)
    total = sum(before)
    sizes = sizes_by_speed([1 / each for each in seconds], total)
    later = [each * factor for each, factor in zip(seconds, factors, strict=True)]
    best = sizes_by_speed([1 / each for each in later], total)
    now = max(size * each for size, each in zip(sizes, later, strict=True))
    assert now <= 1.1 * max(size * each for size, each in zip(best, later, strict=True)) * (1 + 1e-9)


def test_a_worker_that_becomes_slow_gets_less() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0)] * 3 + [Empirical([1.0] * 30 + [4.0] * 1000, in_order=True)])
    _, changed = resizes(pl.simulate(pl.UnequalBatches(total=128), fleet, pl.Stop(updates=100)))
    assert changed.sizes[3] == 9


def test_two_workers_are_enough_to_share_by_speed() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0), Constant(3.0)])
    _, changed = resizes(pl.simulate(pl.UnequalBatches(total=40), fleet, pl.Stop(updates=100)))
    assert changed.sizes == {0: 30, 1: 10}


def test_who_leaves_is_shared_out_and_who_joins_begins_with_the_mean() -> None:
    changes: list[pl.Left | pl.Joined] = [pl.Left(30.0, 0), pl.Joined(60.0, 0)]
    fleet = pl.SimulatedFleet([Constant(1.0)] * 3 + [Constant(4.0)], changes=changes)
    trace = pl.simulate(pl.UnequalBatches(total=130, window=3), fleet, pl.Stop(updates=90))
    for resize in resizes(trace):
        assert sum(resize.sizes.values()) == 130
    without = next(resize.sizes for resize in resizes(trace) if 0 not in resize.sizes)
    assert without == {1: 58, 2: 58, 3: 14}
    joined = resizes(trace)[2].sizes
    assert joined == {0: 32, 1: 44, 2: 44, 3: 10}


# What a step is.


def test_every_step_is_the_mean_over_all_samples() -> None:
    trace = pl.simulate(pl.UnequalBatches(total=128), SLOW, pl.Stop(updates=40))
    steps = [fact for fact in trace if isinstance(fact, Step)]
    for step in steps:
        assert step.weights == {ticket: Fraction(ticket.work.samples, 128) for ticket in step.weights}
        assert sum(step.weights.values()) == 1
    assert {ticket.work.samples for ticket in steps[-1].weights} == {40, 39, 9}


def test_the_mean_of_the_fastest_is_over_their_samples() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0), Constant(1.5), Constant(2.0)])
    trace = pl.simulate(pl.FastestK(2), fleet, pl.Stop(updates=3), batch_size=[10, 30, 5])
    weights = [sorted(step.weights.values()) for step in trace if isinstance(step, Step)]
    assert weights == [[Fraction(5, 15), Fraction(10, 15)]] * 3


def test_over_its_life_a_gradient_of_live_compensation_carries_its_samples() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0), Constant(1.2), Constant(3.0)])
    sizes = [8, 12, 20]
    trace = pl.simulate(pl.LiveCompensation(2, blocks=4, recall=False), fleet, pl.Stop(updates=9), batch_size=sizes)
    lives: dict[int, dict[int, Fraction]] = {}
    for step in [fact for fact in trace if isinstance(fact, Step)]:
        for ticket, weight in step.weights.items():
            life = lives.setdefault(ticket.version, {})
            life[ticket.worker] = life.get(ticket.worker, Fraction(0)) + weight
    for version in range(7):
        assert lives[version] == {worker: Fraction(size, 40) for worker, size in enumerate(sizes)}


def by_hand(sampling: Noted, trace: Trace, lr: float) -> torch.nn.Linear:
    """One large batch an update: what all workers drew for it, one after the other."""
    (inputs, targets), _ = digits()
    model = linear()
    left = {worker: iter(draws) for worker, draws in sampling.draws.items()}
    # what was given out after the last update was not drawn any more
    drawn = {fact.ticket: next(left[fact.ticket.worker], []) for fact in trace if isinstance(fact, Start)}
    for step in [fact for fact in trace if isinstance(fact, Step)]:
        together = torch.tensor([sample for ticket in step.weights for sample in drawn[ticket]])
        loss = cross_entropy(model(inputs[together]), targets[together])
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=lr)
    return model


@pytest.mark.parametrize("sizes", [[48, 48, 16, 16], None])
def test_training_equals_one_large_batch(sizes: list[int] | None) -> None:
    """Written a second time, in plain torch: sizes of the user's own, and by measured speed."""
    sampling = Noted()
    strategy = pl.UnequalBatches(total=128, window=2) if sizes is None else pl.Synchronous()
    run = train_digits(digits_task(), strategy, SLOW, updates=30, sampling=sampling, lr=0.1, batch_size=sizes or 32)
    sizes_drawn = {len(batch) for draws in sampling.draws.values() for batch in draws}
    assert sizes_drawn == ({32, 40, 39, 9} if sizes is None else {48, 16})
    expected = by_hand(sampling, run.trace, 0.1)
    for name, value in run.model.state_dict().items():
        assert torch.allclose(value, expected.state_dict()[name], rtol=0, atol=1e-12)


def test_equal_sizes_give_the_bits_of_one_size() -> None:
    runs = [
        train_digits(digits_task(), strategy, SLOW, updates=12, batch_size=size)
        for strategy, size in ((pl.Synchronous(), 32), (pl.Synchronous(), [32] * 4), (pl.UnequalBatches(total=128), 32))
    ]
    weights = [[value.tolist() for value in run.model.state_dict().values()] for run in runs]
    assert runs[0].history[-1].updates == 12
    assert weights[0] == weights[1]
    nine = [train_digits(digits_task(), each, SLOW, updates=9) for each in (pl.Synchronous(), "unequal:total=128")]
    assert all(map(torch.equal, *(run.model.state_dict().values() for run in nine))), "until sizes change"


@pytest.mark.parametrize("strategy", ["unequal:total=44", pl.UnequalBatches(total=44)])
def test_without_a_batch_size_the_total_is_dealt_out_evenly(strategy: pl.strategy.Strategy | str) -> None:
    run = pl.train(
        digits_task(linear()), strategy=strategy, fleet=pl.SimulatedFleet(Constant(1.0), workers=3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), stop=pl.Stop(updates=2),
    )  # fmt: skip
    assert run.history[-1].samples == 2 * 44


def test_models_are_averaged_by_samples() -> None:
    """Two workers, one local step each of plain SGD: the average is a step on the mean over all samples."""
    sampling, fleet = Noted(), pl.SimulatedFleet(Constant(1.0), workers=2)
    run = train_digits(
        digits_task(), pl.ModelAveraging(every=1), fleet, updates=3, sampling=sampling, batch_size=[24, 8]
    )
    step = next(fact for fact in run.trace if isinstance(fact, Step))
    assert sorted(step.weights.values()) == [Fraction(1, 4), Fraction(3, 4)]
    expected = by_hand(sampling, run.trace, 0.1)
    for name, value in run.model.state_dict().items():
        assert torch.allclose(value, expected.state_dict()[name], rtol=0, atol=1e-12)


# Bad input.


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (lambda: pl.UnequalBatches(total=0), "a total of 0 samples"),
        (lambda: pl.UnequalBatches(total=8, margin=-1), "a margin of -1"),
        (lambda: pl.UnequalBatches(total=8, window=0), "a window of 0"),
        (lambda: pl.UnequalBatches(pl.Asynchronous(), total=8), "cannot have Asynchronous inside"),
        (lambda: pl.UnequalBatches(pl.ModelAveraging(4), total=8), "cannot have ModelAveraging inside"),
        (lambda: pl.UnequalBatches(pl.LiveCompensation(2, blocks=4), total=30), "no multiple of 4 blocks"),
    ],
)
def test_what_makes_no_sense_is_refused(strategy: object, message: str) -> None:
    assert callable(strategy)
    with pytest.raises(ConfigError, match=message):
        strategy()


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("unequal:total=3", {"batch_size": 1}, "leaves one of 4 workers without any: at least 4"),
        ("unequal:total=100", {"batch_size": 32}, r"which are 128: give batch_size=25, or total=128"),
        ("unequal:total=98", {"batch_size": 32}, r"give batch_size=\[25, 25, 24, 24\], or total=128"),
        ("gsgd:inside=unequal:total=128", {}, "Grouped is around it"),
        ("unequal:total=128", {"partition": pl.Pathological(5)}, "does not allow: use partition=Equal"),
        ("unequal:total=128", {"sampling": pl.ReassignShards()}, "use sampling=Shuffled"),
        ("unequal:total=2000", {"batch_size": 500}, "fewer than|with 375 samples"),
        ("ssgd", {"batch_size": [32, 32]}, "has 2 sizes for 4 workers"),
        ("ssgd", {"batch_size": [32, 32, 0, 32]}, "leaves worker 2 without samples"),
        ("ssgd", {"batch_size": [32, 32, 8.5, 32]}, "leaves worker 2 without samples"),
        ("lgc:quorum=2,blocks=4", {"batch_size": [32, 32, 10, 32]}, "worker 2: 4 blocks do not divide a batch of 10"),
        ("ec-dnn-s:every=4", {"batch_size": [32, 32, 8, 32]}, "the models of an ensemble count alike"),
        ("ssgd", {"batch_size": [8, 8, 8, 4], "sampling": pl.ReassignShards()}, "mini-batches of one size"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_line(strategy: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        pl.train(
            digits_task(), strategy=strategy, fleet=SLOW, stop=pl.Stop(updates=3),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), **options,  # type: ignore[arg-type]
        )  # fmt: skip
    assert "\n" not in str(refused.value)


# Durations.


def test_a_duration_has_a_fixed_part_and_one_for_each_sample() -> None:
    fleet = pl.SimulatedFleet([PerSample(0.5, Constant(0.01)), PerSample(1.0, Constant(0.02))])
    trace = pl.simulate("asgd", fleet, pl.Stop(seconds=4.0), batch_size=[50, 25])
    first = {fact.ticket.worker: fact.at for fact in reversed([*trace]) if isinstance(fact, Arrived)}
    assert first == {0: 1.0, 1: 1.5}
    with pytest.raises(ConfigError, match="give batch_size=32"):
        pl.simulate("asgd", fleet, pl.Stop(seconds=4.0))


def test_a_delay_without_parts_is_that_of_the_mean_size() -> None:
    fleet = pl.SimulatedFleet(Constant(1.0), workers=2)
    trace = pl.simulate("ssgd", fleet, pl.Stop(updates=1), batch_size=[10, 30])
    assert [fact.at for fact in trace if isinstance(fact, Arrived)] == [0.5, 1.5]


def test_predictions_know_the_sizes() -> None:
    fleet = pl.SimulatedFleet([PerSample(0.2, LogNormal(0.02, 0.1))] * 3 + [PerSample(0.2, LogNormal(0.08, 0.1))])
    equal = pl.predict("ssgd", fleet, batch_size=32).runtime.updates_per_second
    sized = pl.predict("ssgd", fleet, batch_size=[40, 39, 39, 10]).runtime.updates_per_second
    measured = pl.predict("unequal:total=128", fleet).runtime.updates_per_second
    assert (equal.source, sized.source, measured.source) == ("quadrature", "quadrature", "simulation")
    assert sized.value > 2.4 * equal.value
    assert measured.value == pytest.approx(sized.value, rel=0.03)
    simulated = pl.simulate("ssgd", fleet, pl.Stop(updates=400), batch_size=[40, 39, 39, 10])
    end = max(fact.at for fact in simulated if isinstance(fact, Arrived))
    assert 400 / end == pytest.approx(sized.value, rel=0.03)
