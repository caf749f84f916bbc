"""What cannot have happened and what must not be decided is refused with a reason, and changes nothing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, fields, is_dataclass
from fractions import Fraction

import pytest

from paceline.core import messages
from paceline.core.coordinator import Coordinator
from paceline.core.errors import IllegalDecision, ImpossibleEvent, PacelineError
from paceline.core.messages import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Event,
    Joined,
    Leaving,
    Left,
    Rang,
    Recall,
    Remember,
    Resize,
    Step,
    Ticket,
    WakeAt,
    Within,
    Work,
    gradient,
    mean,
)
from support.silent import Silent, coordinator_of, dump, split_coordinator, tickets

ONE = Fraction(1)


def fleet_at_three() -> Coordinator:
    """At 3 seconds, in round 1, with every ticket of 2 blocks.

    Worker 0 runs t4, worker 1 is behind with t1, worker 6 was recalled from t6, worker 2 is idle; 3 and 4 have left.
    t5 is fresh, t3 late, t2 kept; an alarm is set for 9.
    """
    coordinator = coordinator_of(0, 1, 2, 3, blocks=2)
    t0, _, t2, t3 = tickets(coordinator)
    coordinator.receive(Arrived(1.0, t0, 2), Arrived(1.0, t2, 2), Arrived(1.0, t3, 2))
    coordinator.receive(Joined(2.0, 4), Joined(2.0, 5), Joined(2.0, 6))
    coordinator.carry_out([Step(mean([t0, t2]), keep=[t2]), WakeAt(9.0)])
    coordinator.carry_out([Assign(worker, gradient(2)) for worker in (0, 5, 6)])
    coordinator.carry_out([Recall(coordinator.ledger.running[6])])
    coordinator.receive(Arrived(3.0, coordinator.ledger.running[5], 2), Left(3.0, 4), Left(3.0, 3))
    return coordinator


T0, T1, T2, T3 = (Ticket(i, i, 0, gradient(2)) for i in range(4))
T4, T5, T6 = Ticket(4, 0, 1, gradient(2)), Ticket(5, 5, 1, gradient(2)), Ticket(6, 6, 1, gradient(2))
T99 = Ticket(99, 2, 1, gradient(2))


def test_the_set_up_is_as_described() -> None:
    ledger = fleet_at_three().ledger
    assert ledger.running == {0: T4, 1: T1, 6: T6}
    assert [*ledger.behind] == [T1]
    assert [*ledger.recalled] == [T6]
    assert [*ledger.idle] == [2]
    assert (ledger.fresh, ledger.late, ledger.kept) == ({T5: 2}, {T3: 2}, {T2: 2})
    assert (ledger.now, ledger.round, [*ledger.alarms]) == (3.0, 1, [9.0])


IMPOSSIBLE: list[tuple[Sequence[Event], str]] = [
    ([Joined(3.0, 0)], "worker 0 cannot join: it is already here"),
    ([Joined(3.0, 9), Joined(3.0, 9)], "worker 9 cannot join: it is already here"),
    ([Left(3.0, 9)], "worker 9 cannot leave: it is not here"),
    ([Left(3.0, 4)], "worker 4 cannot leave: it is not here"),
    ([Left(3.0, 0), Left(3.0, 0)], "worker 0 cannot leave: it is not here"),
    ([Joined(3.0, 9), Left(3.0, 9), Left(3.0, 9)], "worker 9 cannot leave: it is not here"),
    ([Left(2.9, 0)], "cannot happen: the time is already 3"),
    ([Left(math.nan, 0)], "cannot happen: the time is already 3"),
    ([Left(5.0, 0), Left(4.0, 1)], "cannot happen: the time is already 5"),
    ([Arrived(2.0, T4, 2)], "cannot happen: the time is already 3"),
    ([Arrived(4.0, T0, 2)], "t0 cannot arrive: worker 0 does not run it"),
    ([Arrived(4.0, T5, 2)], "t5 cannot arrive: worker 5 does not run it"),
    ([Arrived(4.0, T99, 2)], "t99 cannot arrive: worker 2 does not run it"),
    ([Arrived(4.0, T4._replace(version=0), 2)], "t4 cannot arrive: worker 0 does not run it"),
    ([Arrived(4.0, T4, 2), Arrived(4.0, T4, 2)], "t4 .*cannot arrive"),
    ([Left(4.0, 0), Arrived(4.0, T4, 2)], "t4 cannot arrive: worker 0"),
    ([Left(4.0, 0), Joined(4.0, 0), Arrived(4.0, T4, 2)], "t4 cannot arrive: worker 0"),
    ([Arrived(4.0, T4, 3)], "t4 cannot have 3 units done: it has 2"),
    ([Arrived(4.0, T6, -1)], "t6 cannot have -1 units done: it has 2"),
    ([Arrived(4.0, T4, 1)], "t4 cannot arrive with 1 of 2 units: it was not recalled"),
    ([Arrived(4.0, T4, 0)], "t4 cannot arrive with 0 of 2 units: it was not recalled"),
    ([Leaving(4.0, 4, by=9.0)], "worker 4 cannot be leaving: it is not here"),
    ([Left(4.0, 0), Leaving(4.0, 0, by=9.0)], "worker 0 cannot be leaving: it is not here"),
    ([Leaving(4.0, 0, by=3.9)], "cannot happen: it names no time to come"),
    ([Leaving(4.0, 0, by=math.inf)], "cannot happen: it names no time to come"),
    ([Rang(8.9)], "nobody asked to be woken by then"),
    ([Rang(2.0)], "the time is already 3"),
    ([Arrived(4.0, T1, 2), Joined(4.0, 7), Left(4.0, 8)], "worker 8 cannot leave: it is not here"),
]


@pytest.mark.parametrize(("events", "message"), IMPOSSIBLE, ids=[repr(events) for events, _ in IMPOSSIBLE])
def test_an_impossible_event_is_refused_and_changes_nothing(events: Sequence[Event], message: str) -> None:
    coordinator = fleet_at_three()
    before = dump(coordinator)
    with pytest.raises(ImpossibleEvent, match=message):
        coordinator.receive(*events)
    assert dump(coordinator) == before


POSSIBLE: list[Sequence[Event]] = [
    [Arrived(4.0, T6, 0)],
    [Arrived(4.0, T6, 2)],
    [Arrived(3.0, T4, 2), Left(3.0, 0), Joined(3.0, 0)],
    [Joined(4.0, 9), Left(4.0, 9), Joined(4.0, 9)],
    [Left(4.0, 0), Joined(4.0, 0), Left(4.0, 0)],
    [Joined(4.0, 9), Leaving(4.0, 9, by=4.0), Left(4.0, 9)],
    [Leaving(4.0, 0, by=5.0), Leaving(4.0, 0, by=6.0)],
    [Rang(9.0)],
    [Rang(9.5)],
    [Arrived(9.0, T4, 2), Rang(9.0)],
]


@pytest.mark.parametrize("events", POSSIBLE, ids=repr)
def test_what_can_happen_is_taken_in(events: Sequence[Event]) -> None:
    coordinator = fleet_at_three()
    coordinator.receive(*events)
    assert coordinator.ledger.now == events[-1].at


ILLEGAL: list[tuple[Sequence[Decision], str]] = [
    ([Assign(0)], "cannot assign worker 0: it still runs t4"),
    ([Assign(2), Assign(2)], "cannot assign worker 2: it was just given something else"),
    ([Drop(T4), Assign(0), Assign(0)], "cannot assign worker 0: it was just given something else"),
    ([Assign(4)], "cannot assign worker 4: it is not here"),
    ([Assign(77)], "cannot assign worker 77: it is not here"),
    ([Assign(2, gradient(0))], "cannot assign worker 2 0 units: at least 1"),
    ([Step({})], "cannot step on no tickets"),
    ([Step({T0: ONE})], "cannot step on t0: it is not at hand"),
    ([Step({T4: ONE})], "cannot step on t4: it is not at hand"),
    ([Step({T99: ONE})], "cannot step on t99: it is not at hand"),
    ([Step({T5: 0.5})], "the weight of t5 must be an exact Fraction, not 0.5"),  # type: ignore[dict-item]
    ([Step({T5: 1})], "the weight of t5 must be an exact Fraction, not 1"),  # type: ignore[dict-item]
    ([Step({T5: ONE}, keep=[T3])], "cannot keep t3: the step does not use it"),
    ([Step({T5: ONE}), Step({T5: ONE})], "cannot step on t5: it was settled by an earlier decision"),
    (
        [Step({T5: ONE, T2: ONE}, keep=[T5]), Step({T2: ONE})],
        "cannot step on t2: it was settled by an earlier decision",
    ),
    ([Step({T5: ONE}), Drop(T5)], "cannot drop t5: it was settled by an earlier decision"),
    ([Drop(T5), Step({T5: ONE})], "cannot step on t5: it was settled by an earlier decision"),
    ([Drop(T3), Drop(T3)], "cannot drop t3: it was settled by an earlier decision"),
    ([Drop(T1), Drop(T1)], "cannot drop t1"),
    ([Drop(T0)], "cannot drop t0: it is not at hand"),
    ([Drop(T99)], "cannot drop t99: it is not at hand"),
    ([Recall(T5)], "cannot recall t5: it does not run"),
    ([Recall(T6)], "cannot recall t6: it was recalled already"),
    ([Recall(T1), Recall(T1)], "cannot recall t1: it was recalled already"),
    ([Drop(T1), Recall(T1)], "cannot recall t1: it does not run"),
    ([WakeAt(3.0)], "cannot wake at 3"),
    ([WakeAt(1.0)], "cannot wake at 1"),
    ([WakeAt(math.inf)], "cannot wake at inf"),
    ([WakeAt(math.nan)], "cannot wake at nan"),
    ([WakeAt(9.0)], "cannot wake at 9: .*asked for already"),
    ([WakeAt(8.0), WakeAt(8.0)], "cannot wake at 8: .*asked for already"),
    ([Within(0, Assign(2))], "no part 0: this ledger has 0 parts"),
    (["step"], "not a decision: 'step'"),  # type: ignore[list-item]
    (
        [Assign(2), Drop(T3), Recall(T1), Remember("x", 1.0), WakeAt(8.0), Step({T5: ONE}), Assign(0)],
        "cannot assign worker 0",
    ),
]


@pytest.mark.parametrize(("decisions", "message"), ILLEGAL, ids=[repr(decisions) for decisions, _ in ILLEGAL])
def test_an_illegal_decision_is_refused_and_changes_nothing(decisions: Sequence[Decision], message: str) -> None:
    coordinator = fleet_at_three()
    before = dump(coordinator)
    with pytest.raises(IllegalDecision, match=message):
        coordinator.carry_out(decisions)
    assert dump(coordinator) == before
    (start,) = coordinator.carry_out([Assign(2)])
    assert str(start.ticket) == "t7"  # type: ignore[union-attr]  # nor was a number used up


def test_what_nothing_was_done_of_cannot_be_stepped_on_but_dropped() -> None:
    coordinator = fleet_at_three()
    coordinator.receive(Arrived(4.0, T6, 0))
    before = dump(coordinator)
    with pytest.raises(IllegalDecision, match="cannot step on t6: nothing of it was done"):
        coordinator.carry_out([Step({T6: ONE})])
    assert dump(coordinator) == before
    assert coordinator.carry_out([Drop(T6)]) == [Drop(T6)]


LEGAL: list[Sequence[Decision]] = [
    [Drop(T1), Assign(1)],
    [Step({T5: ONE}), Assign(5), Assign(2)],
    [Step({T5: ONE}, keep=[T5]), Step({T5: -ONE, T3: ONE})],
    [Recall(T1), Drop(T1)],
    [Step({T5: ONE, T3: Fraction(1, 3), T2: Fraction(-1, 3)}, keep=(T2,)), Drop(T2)],
    [WakeAt(8.0), WakeAt(10.0)],
]


@pytest.mark.parametrize("decisions", LEGAL, ids=repr)
def test_what_is_allowed_is_carried_out(decisions: Sequence[Decision]) -> None:
    assert len(fleet_at_three().carry_out(decisions)) == len(decisions)


def part_cases() -> list[tuple[Callable[[Ticket, Ticket], Decision], str]]:
    """Of two groups; the first ticket arrived in part 0, the second in part 1."""
    return [
        (lambda even, odd: Assign(0), "must be made within one of .*2 parts"),
        (lambda even, odd: Step({even: ONE}), "must be made within one of .*2 parts"),
        (lambda even, odd: Within(2, Assign(0)), "no part 2: this ledger has 2 parts"),
        (lambda even, odd: Within(-1, Assign(0)), "no part -1"),
        (lambda even, odd: Within(0, Assign(1)), "cannot assign worker 1: it is not here"),
        (lambda even, odd: Within(0, Step({odd: ONE})), "cannot step on t1: it is not at hand"),
        (lambda even, odd: Within(0, Step({even: ONE, odd: ONE})), "cannot step on t1: it is not at hand"),
        (lambda even, odd: Within(1, Drop(even)), "cannot drop t0: it is not at hand"),
        (lambda even, odd: Within(0, Within(0, Assign(0))), "no part 0: this ledger has 0 parts"),
    ]


@pytest.mark.parametrize(("decide", "message"), part_cases(), ids=[message for _, message in part_cases()])
def test_a_part_decides_about_its_own(decide: Callable[[Ticket, Ticket], Decision], message: str) -> None:
    coordinator = split_coordinator()
    t0, t1, *_ = tickets(coordinator)
    coordinator.receive(Arrived(1.0, t0, 1), Arrived(1.0, t1, 1))
    before = dump(coordinator)
    with pytest.raises(IllegalDecision, match=message):
        coordinator.carry_out([Within(0, WakeAt(5.0)), Within(1, Remember("x", 1.0)), decide(t0, t1)])
    assert dump(coordinator) == before


def test_a_rule_that_never_becomes_quiet_is_refused() -> None:
    class Chatty(Silent):
        def decide(self, ledger: object) -> list[Decision]:
            return [Remember("pulse", 1.0)]

        def __repr__(self) -> str:
            return "Chatty()"

    with pytest.raises(IllegalDecision, match=r"Chatty\(\) never becomes quiet: asked [0-9]+ times, now Remember"):
        Coordinator(Chatty()).receive(Joined(0.0, 0))


def test_whose_fault_it_is_shows_in_the_type() -> None:
    assert issubclass(IllegalDecision, PacelineError)
    assert issubclass(ImpossibleEvent, PacelineError)
    assert not issubclass(IllegalDecision, ImpossibleEvent)


def test_events_of_different_instants_cannot_be_told_together() -> None:
    coordinator = Coordinator(Silent())
    with pytest.raises(ImpossibleEvent, match="not of one instant"):
        coordinator.receive(Joined(0.0, 0), Joined(1.0, 1))
    assert not coordinator.ledger.workers


def test_facts_cannot_be_changed() -> None:
    """They are shared: the ledger, the trace and the strategy hold the same ones."""
    kinds = [kind for kind in vars(messages).values() if isinstance(kind, type) and is_dataclass(kind)]
    assert len(kinds) >= 12
    for kind in kinds:
        some = kind(*[0] * len(fields(kind)))
        with pytest.raises(FrozenInstanceError):
            setattr(some, fields(kind)[0].name, 1)


def sized(sizes: dict[int, int]) -> Coordinator:
    coordinator = Coordinator(Silent())
    coordinator.receive(*(Joined(0.0, worker) for worker in sizes))
    coordinator.carry_out([Resize(sizes, "to begin with"), *(Assign(worker) for worker in sizes)])
    return coordinator


def test_a_piece_of_work_has_the_size_of_its_worker() -> None:
    coordinator = sized({0: 48, 1: 16})
    given = coordinator.ledger.running
    assert [given[worker].work.samples for worker in (0, 1)] == [48, 16]
    coordinator.receive(*(Arrived(1.0, ticket, 1) for ticket in given.values()))
    assert mean(coordinator.ledger.fresh) == {t: Fraction(t.work.samples, 64) for t in coordinator.ledger.fresh}
    coordinator.carry_out([Resize({0: 40, 1: 24}, "speeds"), Assign(0)])
    assert coordinator.ledger.running[0].work.samples == 40


def test_sizes_given_to_a_coordinator_are_those_of_its_work() -> None:
    coordinator = Coordinator(Silent(), {0: 3, 1: 5})
    coordinator.receive(Joined(0.0, 1))
    coordinator.carry_out([Assign(1)])
    assert coordinator.ledger.running[1].work.samples == 5
    restored = Coordinator(Silent())
    restored.restore(coordinator.state())
    assert restored.ledger.sizes == {0: 3, 1: 5}
    assert restored.ledger.running == coordinator.ledger.running


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ([Resize({0: 4}, "")], "worker 1 has no size, and is here"),
        ([Resize({0: 4, 1: 4, 2: 4}, "")], "worker 2 has a size, and is not here"),
        ([Resize({0: 4, 1: 0}, "")], "worker 1 cannot have 0 samples"),
        ([Resize({0: 4, 1: 4}, ""), Resize({0: 4, 1: 4}, "")], "just resized"),
        ([Assign(0, Work("gradient", 1, 8))], "decide a Resize"),
    ],
)
def test_sizes_that_must_not_be_are_refused(decisions: list[Decision], message: str) -> None:
    coordinator = Coordinator(Silent())
    coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    with pytest.raises(IllegalDecision, match=message):
        coordinator.carry_out(decisions)
    assert not coordinator.ledger.sizes


def test_sizes_come_before_any_work_and_for_everybody() -> None:
    coordinator = Coordinator(Silent())
    coordinator.receive(Joined(0.0, 0))
    coordinator.carry_out([Assign(0)])
    with pytest.raises(IllegalDecision, match="of the same size for all"):
        coordinator.carry_out([Resize({0: 4}, "")])
    coordinator = sized({0: 4})
    coordinator.receive(Joined(1.0, 1))
    with pytest.raises(IllegalDecision, match="worker 1: it has no size"):
        coordinator.carry_out([Assign(1)])
    split = Coordinator(Silent(groups=((0,), (1,))))
    split.receive(Joined(0.0, 0), Joined(0.0, 1))
    with pytest.raises(IllegalDecision, match="within a part"):
        split.carry_out([Within(0, Resize({0: 4}, ""))])
