"""Which epochs are pruned: the known values, and what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline as pl
from paceline.pruning.rules import FineRule, SoftRule
from paceline.pruning.schedule import Plan, Schedule, plan_of, pruned_number


def epochs_of(schedule: Schedule, n: int) -> list[int]:
    return [epoch for epoch in range(1, n + 1) if schedule.pruned(epoch)]


def algorithm_2(n: int, w: int, a: int, r: int, c: int, att: float) -> list[int]:  # noqa: PLR0917 - its symbols
    """The paper's listing, line by line, with attenuation at every epoch."""
    pruned = []
    for e in range(1, n + 1):
        if e > w:
            a = int(a / att)
        if e % w >= a and e % r < c:
            pruned.append(e)
    return pruned


def test_the_call_of_the_documentation() -> None:
    sampler = pl.FinePruning(
        samples=50_000, window=60, start=30, block=5, count=3, fraction=0.3, attenuation=2, attenuate="window",
        tolerance=0.0, seed=0,
    )  # fmt: skip
    plan = sampler.plan(200)
    assert len(plan.pruned_epochs) == 86
    assert plan.saved == 86 * 15_000 / (200 * 50_000) == 0.129
    assert plan.saved_samples == 86 * 15_000
    assert plan.sizes == tuple(35_000 if epoch in plan.pruned_epochs else 50_000 for epoch in range(1, 201))
    assert plan.total_steps(128) == 86 * 274 + 114 * 391
    assert plan.total_steps(128, drop_last=True) == 86 * 273 + 114 * 390
    assert plan.total_steps(128, ranks=2) == 86 * 137 + 114 * 196
    assert (plan.size(1), plan.size(plan.pruned_epochs[0])) == (50_000, 35_000)


def test_with_windows_of_unlike_lengths_the_start_divides_from_the_end_of_the_first_one_on() -> None:
    """The first window, of 6 epochs, prunes from its fourth epoch on; later ones after a start of 1, and then of 0."""
    schedule = Schedule(3, 1, 1, windows=(6, 4, 20), attenuation=2, attenuate="epoch")
    starts = {epoch: 3 if epoch <= 6 else 1 if epoch == 7 else 0 for epoch in range(1, 31)}
    firsts = {epoch: 1 if epoch <= 6 else 7 if epoch <= 10 else 11 for epoch in range(1, 31)}
    by_hand = [epoch for epoch in range(1, 31) if epoch - firsts[epoch] >= starts[epoch]]
    assert [epoch for epoch in range(1, 31) if schedule.pruned(epoch)] == by_hand


def test_steps_are_of_whole_shares_as_the_samplers_of_ranks_deal_them() -> None:
    """Eleven samples among three: each has three, and two are dropped."""
    assert Plan(11, (11,), ()).steps(3, ranks=3) == (1,)
    assert Plan(11, (11,), ()).steps(2, ranks=3) == (2,)
    assert Plan(11, (11,), ()).steps(2, ranks=3, drop_last=True) == (1,)
    sampler = pl.FinePruning(samples=11, window=4, start=2, block=2, count=1, fraction=0.3, rank=1, ranks=3)
    assert len(sampler) == 3


def test_dividing_by_epochs_begins_after_the_first_of_several_windows() -> None:
    """Of 5, 3 and 4 epochs; by hand: 4 in the first, then 4 / 2, 4 / 4, and 0 from the third epoch after it on."""
    schedule = Schedule(4, 1, 1, windows=(5, 3, 4), attenuation=2, attenuate="epoch")
    starts = [4] * 5 + [2, 1, 0] + [0] * 4
    positions = [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]
    expected = [e for e, (a, p) in enumerate(zip(starts, positions, strict=True), start=1) if p >= a]
    assert epochs_of(schedule, 12) == expected == [5, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("n", "w", "a", "r", "c", "att", "literal", "by_window"),
    [(200, 20, 10, 5, 4, 1, 80, 80), (200, 60, 30, 5, 3, 1, 54, 54), (200, 60, 30, 5, 3, 2, 100, 86)],
)
def test_known_numbers_of_pruned_epochs(  # noqa: PLR0917 - a table
    n: int, w: int, a: int, r: int, c: int, att: int, literal: int, by_window: int
) -> None:
    assert len(epochs_of(Schedule(a, r, c, w, attenuation=att, attenuate="epoch"), n)) == literal
    assert len(epochs_of(Schedule(a, r, c, w, attenuation=att), n)) == by_window


def test_a_known_list_of_epochs() -> None:
    assert epochs_of(Schedule(4, 3, 2, window=10), 20) == [4, 6, 7, 9, 15, 16, 18, 19]


def test_windows_along_the_learning_rate() -> None:
    periods = (60, 60, 40, 40)
    plan = plan_of(Schedule(20, 10, 6, windows=periods, attenuation=2), 0.3, 50_000, 200)
    assert (len(plan.pruned_epochs), plan.saved) == (95, 0.1425)
    plan = plan_of(Schedule(3, 4, 3, windows=(9, 9, 6, 6)), 0.3, 50_000, 30)
    assert (len(plan.pruned_epochs), plan.saved) == (15, 0.15)
    schedule = Schedule(3, 4, 3, windows=(9, 9, 6, 6))
    assert [epoch for epoch in range(1, 40) if schedule.resets(epoch)] == [1, 10, 19, 25]  # the last one goes on


def test_a_seventh_is_saved_by_two_sevenths_of_the_samples_in_half_of_the_epochs() -> None:
    plan = plan_of(Schedule(1, 2, 1, window=200), 2 / 7, 70_000, 200)
    assert (len(plan.pruned_epochs), plan.saved) == (99, 99 * 20_000 / (200 * 70_000))  # position 0 is never pruned
    assert Plan(7, (5,) * 100 + (7,) * 100, tuple(range(1, 101))).saved == 1 / 7


@settings(max_examples=200)
@given(st.integers(1, 20), st.integers(1, 7), st.floats(1, 3), st.data())
def test_literal_attenuation_is_the_printed_algorithm(w: int, r: int, att: float, data: st.DataObject) -> None:
    a, c = data.draw(st.integers(1, w)), data.draw(st.integers(0, r))
    schedule = Schedule(a, r, c, w, attenuation=att, attenuate="epoch")
    assert epochs_of(schedule, 70) == algorithm_2(70, w, a, r, c, att)


@settings(max_examples=100)
@given(st.integers(2, 5_000), st.floats(0, 0.99), st.integers(1, 60), st.integers(1, 12), st.data())
def test_the_saving_is_exact(samples: int, fraction: float, epochs: int, w: int, data: st.DataObject) -> None:
    """I8: q n_prune / n, for q = PruningNum / NumData."""
    a, r = data.draw(st.integers(1, w)), data.draw(st.integers(1, 5))
    plan = plan_of(Schedule(a, r, data.draw(st.integers(0, r)), w), fraction, samples, epochs)
    number = pruned_number(fraction, samples)
    assert plan.saved_samples == number * len(plan.pruned_epochs)
    assert plan.saved == number * len(plan.pruned_epochs) / (samples * epochs)
    assert all(1 <= size <= samples for size in plan.sizes)


@pytest.mark.parametrize("schedule", [Schedule(10, 3, 0, 10), Schedule(10, 3, 3, 10), Schedule(3, 3, 3, 10, until=0)])
def test_nothing_is_pruned_without_a_count_or_before_the_end_of_every_window(schedule: Schedule) -> None:
    assert epochs_of(schedule, 100) == []


def test_full_data_at_the_end() -> None:
    schedule = Schedule(2, 2, 1, window=10, until=12)
    assert epochs_of(schedule, 40) == [2, 4, 6, 8, 12]


def test_attenuation_never_prunes_the_epoch_after_a_reset() -> None:
    schedule = Schedule(4, 1, 1, window=10, attenuation=2)  # starts at 4, 2, 1, 0, 0: the last ones count as 1
    assert [epoch for epoch in range(1, 101) if not schedule.pruned(epoch) and epoch > 40] == [50, 60, 70, 80, 90, 100]


def test_the_plan_of_soft_pruning_says_at_most() -> None:
    plan = SoftRule(0.5, until=7).plan(1000, 8)
    assert (plan.exact, plan.saved, plan.pruned_epochs) == (False, 0.0, (2, 3, 4, 5, 6, 7))
    assert pl.RandomPruning(samples=10, window=4, start=2, block=1, count=1, fraction=0.5).plan(8).exact


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fraction": 1.0}, "fraction=1.0 of the samples cannot be left out: at least 0 and less than 1"),
        ({"fraction": -0.1}, "fraction=-0.1"),
        ({"fraction": float("nan")}, "fraction=nan"),
        ({"start": 61}, "start=61 is outside the window of 60 epochs: 1 to 60"),
        ({"start": 0}, "start=0 is outside the window"),
        ({"count": 6}, "count=6 is beyond the block of 5 epochs: 0 to 5"),
        ({"count": -1}, "count=-1"),
        ({"block": 0}, "block=0"),
        ({"window": 0}, r"windows of \[0\] epochs"),
        ({"window": None}, "give either window"),
        ({"windows": (60, 60)}, "give either window"),
        ({"attenuation": 0.5}, "attenuation=0.5 would move the start later"),
        ({"attenuate": "batch"}, "attenuate='batch' is unknown"),
        ({"until": -1}, "until=-1"),
        ({"tolerance": -2.0}, "tolerance=-2.0"),
        ({"tolerance": float("nan")}, "tolerance=nan"),
        ({"ties": "none"}, "ties='none' is unknown"),
        ({"prune": "all"}, "prune='all' is unknown"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], message: str) -> None:
    right: dict[str, object] = {"samples": 9, "window": 60, "start": 30, "block": 5, "count": 3, "fraction": 0.3}
    with pytest.raises(pl.ConfigError, match=message):
        pl.FinePruning(**{**right, **wrong})  # type: ignore[arg-type]
    if not wrong.keys() & {"tolerance", "ties", "prune"}:
        with pytest.raises(pl.ConfigError, match=message):
            pl.RandomPruning(**{**right, **wrong})  # type: ignore[arg-type]


def test_plans_and_soft_pruning_refuse_what_cannot_be() -> None:
    rule = FineRule(Schedule(2, 2, 1, window=4), fraction=0.5)
    with pytest.raises(pl.ConfigError, match="0 epochs"):
        rule.plan(10, 0)
    with pytest.raises(pl.ConfigError, match="epoch 5 is not in the plan: 1 to 4"):
        rule.plan(10, 4).size(5)
    with pytest.raises(pl.ConfigError, match="batch_size=0"):
        rule.plan(10, 4).total_steps(0)
    with pytest.raises(pl.ConfigError, match=r"fraction=1\.5"):
        SoftRule(1.5)
    with pytest.raises(pl.ConfigError, match="until=-3"):
        SoftRule(0.5, until=-3)


def test_schedules_and_plans_are_values_that_nobody_changes_behind_a_check() -> None:
    schedule, same = Schedule(3, 4, 2, window=10), Schedule(3, 4, 2, window=10)
    plan = plan_of(schedule, 0.3, 100, 20)
    assert len({schedule, same}) == len({plan, plan_of(same, 0.3, 100, 20)}) == 1
    for made, name in ((schedule, "count"), (plan, "samples")):
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(made, name, 99)
