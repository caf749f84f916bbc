"""Groups by measured speed: when they are formed anew, when not, and what becomes of tickets on the way."""

import json
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.core.coordinator import Coordinator
from paceline.core.errors import ConfigError, IllegalDecision
from paceline.core.messages import Arrived, Assign, Drop, Halt, Joined, Left, Regroup, Start, Step, Ticket, Within
from paceline.strategies.grouped import groups_by_label, groups_by_speed
from paceline.strategies.regrouped import Regrouped
from paceline.testing import Moment, Rehearsal, scripts
from paceline.trace.reading import Trace
from support.silent import Silent

WINDOW, MARGIN, TOLERANCE = 5, 0.2, 0.5
RULE = Regrouped(tolerance=TOLERANCE, margin=MARGIN, window=WINDOW)
EAGER = Regrouped(tolerance=0.4, margin=0.1, window=1)


def regroups(trace: Trace) -> list[Regroup]:
    return [fact for fact in trace if isinstance(fact, Regroup)]


def changing(before: float, after: float, pieces: int) -> pl.delays.Empirical:
    """A worker that changes its speed after so many pieces, for good as far as a test goes."""
    return pl.delays.Empirical([before] * pieces + [after] * 10_000, in_order=True)


# When.


def test_equal_speeds_are_never_regrouped() -> None:
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=8)
    assert regroups(pl.simulate(RULE, fleet, pl.Stop(updates=500))) == []


def test_equal_speeds_with_noise_are_never_regrouped() -> None:
    """16 workers, log-normal with sigma 0.1, the default rule, 500 rounds, seeds 0 to 2."""
    fleet = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.1), workers=16)
    for seed in range(3):
        assert regroups(pl.simulate(Regrouped(), fleet, pl.Stop(updates=500), seed=seed)) == []


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=12),
    st.floats(0, 2),
    st.floats(0, 1),
    st.data(),
)
def test_noise_below_the_margin_changes_nothing(
    speeds: list[float], tolerance: float, share: float, data: st.DataObject
) -> None:
    """If no ratio of two speeds changes by more than 1 + margin, neither condition can come to hold."""
    tolerance += 1e-3
    rule = Regrouped(tolerance=tolerance, margin=share * tolerance * 0.999)
    most = max(1.0, math.sqrt(1 + rule.margin) * (1 - 1e-9))
    noise = [data.draw(st.floats(1 / most, most)) for _ in speeds]
    noisy = {worker: speed * factor for worker, (speed, factor) in enumerate(zip(speeds, noise, strict=True))}
    groups = groups_by_speed(speeds, tolerance)
    assert rule._too_unlike(groups, noisy) == ""
    assert rule._too_like(groups, noisy) == ""


@pytest.mark.parametrize(("before", "after"), [(1.0, 4.0), (4.0, 1.0)])
def test_a_worker_that_changes_its_speed_by_four_changes_its_group(before: float, after: float) -> None:
    """It takes a majority of its window, a round of its group until somebody looks, and one to end what it runs."""
    pieces = 20
    fleet = pl.SimulatedFleet(
        [pl.delays.Constant(1.0)] * 3 + [pl.delays.Constant(4.0)] * 2 + [changing(before, after, pieces)]
    )
    trace = pl.simulate(RULE, fleet, pl.Stop(seconds=400))
    first, second = regroups(trace)
    own, others = (0, 1, 2), (3, 4)
    assert sorted(first.groups) == sorted([(*own, 5), others] if before == 1.0 else [own, (*others, 5)])
    assert sorted(second.groups) == sorted([own, (*others, 5)] if after == 4.0 else [(*own, 5), others])
    done, moved = 0, False
    for fact in trace:
        done += isinstance(fact, Arrived) and fact.ticket.worker == 5
        moved |= fact == second
        if (
            moved
            and isinstance(fact, Step)
            and {*second.groups[_part_of(second, 5)]} == {t.worker for t in fact.weights}
        ):
            break
    assert pieces < done <= pieces + WINDOW // 2 + 1 + 2 + 1  # and its first piece in the new group


def _part_of(regroup: Regroup, worker: int) -> int:
    return next(number for number, group in enumerate(regroup.groups) if worker in group)


def test_the_reason_is_told() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0)] * 3 + [changing(1.0, 4.0, 10)])
    (regroup,) = regroups(pl.simulate(RULE, fleet, pl.Stop(seconds=100)))
    assert regroup.groups == ((0, 1, 2), (3,))
    assert regroup.why == "worker 3 takes 4 s and worker 0 of its group 1 s: 4.00 times, more than 1.8"
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0)] * 3 + [changing(4.0, 1.0, 10)])
    first, second = regroups(pl.simulate(RULE, fleet, pl.Stop(seconds=200)))
    assert first.groups == ((0, 1, 2), (3,))
    assert second.groups == ((0, 1, 2, 3), ())
    assert second.why == "two groups take 1 to 1 s: within 1.00 times, not more than 1.25"


def test_who_did_too_little_stays_where_it_is() -> None:
    late = pl.SimulatedFleet(
        [pl.delays.Constant(1.0), pl.delays.Constant(3.0), pl.delays.Constant(1.0)], changes=[pl.Joined(10.5, 2)]
    )
    (regroup,) = regroups(pl.simulate(RULE, late, pl.Stop(seconds=30)))
    assert regroup.groups[_part_of(regroup, 0)] == (0, 2)
    assert regroup.groups[_part_of(regroup, 1)] == (1,)


def test_the_largest_part_of_a_group_keeps_its_number() -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(4.0)] * 3 + [pl.delays.Constant(1.0)])
    (regroup,) = regroups(pl.simulate(RULE, fleet, pl.Stop(seconds=100)))
    assert regroup.groups == ((0, 1, 2), (3,))


@pytest.mark.parametrize("seed", range(3))
def test_a_change_of_speed_costs_less_time_than_with_fixed_groups(seed: int) -> None:
    """Gradients used in 200 s of 8 workers, half of which swap speeds (1 s and 4 s) half-way; sigma 0.1."""

    def swapping(first: float, then: float) -> pl.delays.Empirical:
        noise = np.random.default_rng((seed, int(first))).lognormal(0.0, 0.1, 400)
        pieces = int(100 / first)
        return pl.delays.Empirical(
            [first * n for n in noise[:pieces]] + [then * n for n in noise[pieces:]], in_order=True
        )

    fleet = pl.SimulatedFleet(
        [pl.delays.Constant(1.0)] * 2
        + [swapping(1.0, 4.0)] * 2
        + [swapping(4.0, 1.0)] * 2
        + [pl.delays.Constant(4.0)] * 2
    )
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    used = []
    for rule in (pl.Grouped(groups), Regrouped(groups, window=WINDOW)):
        trace = pl.simulate(rule, fleet, pl.Stop(seconds=200), seed=seed)
        used.append(sum(len(fact.weights) for fact in trace if isinstance(fact, Step)))
    assert used[1] > 1.2 * used[0]


# What becomes of tickets.


@given(scripts(workers=5))
def test_every_gradient_counts_once_and_every_step_is_a_mean(script: list[Moment]) -> None:
    rehearsal = Rehearsal(EAGER, workers=5)
    for moment in script:
        rehearsal.play(moment)
    rehearsal.play_fairly(3)
    left = {fact.worker for fact in rehearsal.history if isinstance(fact, Left)}
    used: Counter[Ticket] = Counter()
    for fact in rehearsal.history:
        if isinstance(fact, Step):
            assert sum(fact.weights.values()) == 1
            assert {*fact.weights.values()} == {Fraction(1, len(fact.weights))}
            used.update(fact.weights.keys())
        assert not isinstance(fact, Drop)
        assert not isinstance(fact, Halt) or fact.ticket.worker in left
    assert not used or max(used.values()) == 1
    handed_in = {fact.ticket for fact in rehearsal.history if isinstance(fact, Arrived)}
    held = {*rehearsal.ledger.fresh, *rehearsal.ledger.late}
    assert handed_in == used.keys() | held


@given(scripts(workers=5), st.integers(0, 12))
def test_a_coordinator_that_was_put_aside_goes_on_as_if_nothing_had_been(script: list[Moment], at: int) -> None:
    one, other = (Rehearsal(Regrouped(tolerance=0.4, margin=0.1, window=2, inside=EAGER), workers=5) for _ in range(2))
    for number, moment in enumerate(script):
        one.play(moment)
        other.play(moment)
        if number == at:
            state = json.loads(json.dumps(other.coordinator.state()))
            other.coordinator = Coordinator(other.strategy)
            other.coordinator.restore(state)
    one.play_fairly(3)
    other.play_fairly(3)
    assert one.history == other.history


def regrouping_coordinator() -> tuple[Coordinator, list[Ticket]]:
    coordinator = Coordinator(Silent())
    coordinator.receive(*(Joined(0.0, worker) for worker in range(3)))
    coordinator.ledger.split(((0, 1), (2,)), window=2)
    decisions = [Within(0, Assign(0)), Within(0, Assign(1)), Within(1, Assign(2))]
    return coordinator, [each.ticket for each in coordinator.carry_out(decisions) if isinstance(each, Start)]


def test_who_runs_something_hands_it_in_where_it_began_and_moves_then() -> None:
    coordinator, (_, t1, _) = regrouping_coordinator()
    first, second = coordinator.ledger.parts()
    coordinator.carry_out([Regroup(((0,), (1, 2)), "to see")])
    assert [*first.running] == [0, 1]
    assert [*second.workers] == [2]
    coordinator.receive(Arrived(1.0, t1, 1))
    assert first.fresh == {t1: 1}
    assert [*first.workers] == [0]
    assert [*second.workers] == [2, 1]
    assert [*second.idle] == [1]
    assert second.now == 1.0
    coordinator.carry_out([Within(0, Step({t1: Fraction(1)}))])
    assert (first.round, second.round) == (1, 0)
    assert not first.fresh


def test_who_has_handed_in_moves_at_once_and_what_it_handed_in_stays() -> None:
    coordinator, (t0, _, _) = regrouping_coordinator()
    coordinator.receive(Arrived(1.0, t0, 1))
    coordinator.carry_out([Regroup(((1,), (2,), (0,)), "to see")])
    first, _, third = coordinator.ledger.parts()
    assert first.fresh == {t0: 1}
    assert [*third.idle] == [0]
    coordinator.carry_out([Within(0, Drop(t0)), Within(2, Assign(0))])
    assert not first.fresh
    assert [*third.running] == [0]


def test_who_is_stopped_moves_then_and_who_left_comes_back_elsewhere() -> None:
    coordinator, (t0, t1, _) = regrouping_coordinator()
    first, second = coordinator.ledger.parts()
    coordinator.carry_out([Regroup(((), (0, 1, 2)), "to see")])
    coordinator.carry_out([Within(0, Drop(t0))])
    assert [*first.workers] == [1]
    assert coordinator.receive(Left(1.0, 1)) == [Halt(t1)]
    coordinator.receive(Joined(2.0, 1))
    assert not first.workers
    assert [*second.workers] == [2, 0, 1]


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        (((0, 1, 2),), "cannot regroup 2 parts into 1 groups"),
        (((0, 1), (1, 2)), "a worker is in two groups"),
        (((0, 1), ()), "no group has worker 2, which is here"),
        (((0,), ()), "no group has worker 1, which is here"),
    ],
)
def test_impossible_groups_are_refused(groups: tuple[tuple[int, ...], ...], reason: str) -> None:
    coordinator, _ = regrouping_coordinator()
    with pytest.raises(IllegalDecision, match=reason):
        coordinator.carry_out([Regroup(groups, "to see")])
    fine = Regroup(((0, 1), (2,)), "to see")
    with pytest.raises(IllegalDecision, match="just regrouped"):
        coordinator.carry_out([fine, fine])
    with pytest.raises(IllegalDecision, match="0 parts"):
        Coordinator(Silent()).carry_out([fine])


def test_impossible_rules_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a margin of 0.5 does not fit a tolerance of 0.5"):
        Regrouped(margin=0.5)
    with pytest.raises(ConfigError, match="a window of 0"):
        Regrouped(window=0)
    with pytest.raises(ConfigError, match="groups miss worker 2"):
        Regrouped([[0, 1]]).check(3, None)
    with pytest.raises(ConfigError, match="quorum of 4"):
        Regrouped(inside=pl.FastestK(4)).check(3, None)


def test_groups_by_label_keep_the_order_of_the_workers() -> None:
    assert groups_by_label(["b", "a", "b", "c"]) == ((0, 2), (1,), (3,))
