"""The ledger shows who is here, who computes what, and what was handed in."""

import json
from fractions import Fraction

import pytest

from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.errors import IllegalDecision
from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Joined,
    Leaving,
    Left,
    Rang,
    Recall,
    Regroup,
    Remember,
    Step,
    WakeAt,
    Within,
    mean,
)
from paceline.core.state import LedgerState
from paceline.testing import snapshot, walk
from support.silent import Silent, coordinator_of, split_coordinator


def test_whoever_joins_is_here_and_idle() -> None:
    coordinator = Coordinator(Silent())
    coordinator.receive(Joined(0.5, 3), Joined(0.5, 1))
    ledger = coordinator.ledger
    assert [*ledger.workers] == [3, 1]
    assert [*ledger.idle] == [3, 1]
    assert ledger.now == 0.5


def test_an_assigned_worker_runs_a_ticket_and_is_not_idle() -> None:
    ledger = coordinator_of(0, 1).ledger
    assert [str(ticket) for ticket in ledger.running.values()] == ["t0", "t1"]
    assert not ledger.idle
    assert not ledger.behind


def test_what_was_given_out_since_the_last_update_is_fresh_in_the_order_of_arrival() -> None:
    coordinator = coordinator_of(0, 1, 2)
    ledger = coordinator.ledger
    t0, t1, t2 = ledger.running.values()
    coordinator.receive(Arrived(1.0, t2, 1))
    coordinator.receive(Arrived(2.0, t0, 1))
    assert [*ledger.fresh] == [t2, t0]
    assert ledger.running == {1: t1}
    assert not ledger.idle  # both have handed in for this round


def test_what_a_step_leaves_unused_is_late_and_what_runs_is_behind() -> None:
    coordinator = coordinator_of(0, 1, 2)
    ledger = coordinator.ledger
    t0, t1, t2 = ledger.running.values()
    coordinator.receive(Arrived(1.0, t0, 1), Arrived(1.0, t1, 1))
    coordinator.carry_out([Step(mean([t0]))])
    assert ledger.late == {t1: 1}
    assert [*ledger.behind] == [t2]
    assert [*ledger.idle] == [0, 1]
    assert (ledger.round, ledger.updated_at) == (1, 1.0)
    coordinator.receive(Arrived(4.0, t2, 1))
    assert ledger.late == {t1: 1, t2: 1}
    assert {*ledger.idle} == {0, 1, 2}
    assert not ledger.fresh
    assert ledger.updated_at == 1.0


def test_what_is_fresh_and_what_is_late_is_handed_in_by_order_of_arrival() -> None:
    coordinator = coordinator_of(0, 1, 2)
    ledger = coordinator.ledger
    t0, t1, t2 = ledger.running.values()
    coordinator.receive(Arrived(1.0, t2, 1))
    coordinator.carry_out([Step(mean([t2]), keep=[t2])])
    assert not ledger.handed_in  # what was used is not, though it is kept
    coordinator.carry_out([Assign(2)])
    t3 = ledger.running[2]
    coordinator.receive(Arrived(2.0, t1, 1), Arrived(2.0, t3, 1), Arrived(2.0, t0, 1))
    assert ledger.late == {t1: 1, t0: 1}
    assert ledger.fresh == {t3: 1}
    assert [*ledger.handed_in] == [t1, t3, t0]
    restored = Coordinator(Silent())
    restored.restore(coordinator.state())
    assert [*restored.ledger.handed_in] == [t1, t3, t0]
    coordinator.carry_out([Drop(t1), Step(mean([t2]))])
    assert [*ledger.handed_in] == [t3, t0]


def test_a_state_that_does_not_tell_the_order_of_arrival_has_the_late_ones_first() -> None:
    coordinator = coordinator_of(0, 1)
    t0, t1 = coordinator.ledger.running.values()
    coordinator.receive(Arrived(1.0, t0, 1))
    coordinator.carry_out([Step(mean([t0])), Assign(0)])
    t2 = coordinator.ledger.running[0]
    coordinator.receive(Arrived(2.0, t2, 1), Arrived(2.0, t1, 1))
    state = coordinator.state()
    old = {**state, "ledger": {name: value for name, value in state["ledger"].items() if name != "handed_in"}}
    restored = Coordinator(Silent())
    restored.restore(old)
    assert [*restored.ledger.handed_in] == [t1, t2]
    forged = {**state, "ledger": {**state["ledger"], "handed_in": state["ledger"]["handed_in"][1:]}}
    with pytest.raises(ValueError, match="neither all that is late"):
        Coordinator(Silent()).restore(forged)


def test_a_used_ticket_that_is_kept_stays_until_a_step_settles_it() -> None:
    coordinator = coordinator_of(0, 1)
    ledger = coordinator.ledger
    t0, t1 = ledger.running.values()
    coordinator.receive(Arrived(1.0, t0, 1), Arrived(1.0, t1, 1))
    coordinator.carry_out([Step(mean([t0, t1]), keep=[t1])])
    assert ledger.kept == {t1: 1}
    coordinator.carry_out([Step(mean([t1]), keep=[t1])])
    assert ledger.kept == {t1: 1}
    coordinator.carry_out([Step(mean([t1]))])
    assert not ledger.kept
    assert ledger.round == 3


def test_a_leaver_takes_its_running_ticket_along_but_not_what_it_handed_in() -> None:
    coordinator = coordinator_of(0, 1)
    ledger = coordinator.ledger
    t0, _ = ledger.running.values()
    coordinator.receive(Arrived(1.0, t0, 1))
    coordinator.receive(Left(2.0, 0), Left(2.0, 1))
    assert not ledger.workers
    assert not ledger.running
    assert not ledger.idle
    assert ledger.fresh == {t0: 1}


def test_whoever_comes_back_in_the_same_round_has_handed_in_already() -> None:
    coordinator = coordinator_of(0, 1)
    ledger = coordinator.ledger
    t0, _ = ledger.running.values()
    coordinator.receive(Arrived(1.0, t0, 1))
    coordinator.receive(Left(2.0, 0))
    coordinator.receive(Joined(3.0, 0))
    assert not ledger.idle
    coordinator.carry_out([Drop(t0)])
    assert [*ledger.idle] == [0]


def test_a_recalled_ticket_is_so_until_it_arrives() -> None:
    coordinator = coordinator_of(0, blocks=4)
    (ticket,) = coordinator.ledger.running.values()
    coordinator.carry_out([Recall(ticket)])
    assert [*coordinator.ledger.recalled] == [ticket]
    coordinator.receive(Arrived(1.0, ticket, 3))
    assert not coordinator.ledger.recalled
    assert coordinator.ledger.fresh == {ticket: 3}


def test_alarms_ring_once_all_that_are_due() -> None:
    coordinator = coordinator_of(0)
    coordinator.carry_out([WakeAt(2.0), WakeAt(3.0), WakeAt(5.0)])
    assert [*coordinator.ledger.alarms] == [2.0, 3.0, 5.0]
    coordinator.receive(Rang(3.0))
    assert [*coordinator.ledger.alarms] == [5.0]
    assert coordinator.ledger.now == 3.0


def test_what_is_remembered_is_a_part_of_the_state() -> None:
    coordinator = coordinator_of(0)
    coordinator.carry_out([Remember("whole", 3), Remember("real", 0.5)])
    restored = Coordinator(Silent())
    restored.restore(coordinator.state())
    assert restored.ledger.memory == {"whole": 3, "real": 0.5}


def test_memory_keeps_the_last_value() -> None:
    coordinator = coordinator_of(0)
    coordinator.carry_out([Remember("deadline", 2.0), Remember("quorum", 3.0)])
    coordinator.carry_out([Remember("deadline", 1.5)])
    assert coordinator.ledger.memory == {"deadline": 1.5, "quorum": 3.0}


def test_a_strategy_can_only_read() -> None:
    ledger = coordinator_of(0).ledger
    for name in ("running", "fresh", "late", "kept", "memory"):
        with pytest.raises(TypeError):
            getattr(ledger, name)["x"] = 1
    for name in ("workers", "idle", "behind", "recalled", "alarms"):
        assert not hasattr(getattr(ledger, name), "add")
        assert not hasattr(getattr(ledger, name), "clear")


# Parts


def test_a_part_shows_its_own_workers_and_its_own_rounds() -> None:
    coordinator = split_coordinator()
    even, odd = coordinator.ledger.parts()
    t0, t1, t2, t3 = coordinator.ledger.running.values()
    assert ([*even.workers], [*odd.workers]) == ([0, 2], [1, 3])
    coordinator.receive(Arrived(1.0, t0, 1), Arrived(1.0, t1, 1))
    coordinator.carry_out([Within(0, Step(mean([t0])))])
    assert (coordinator.version, even.round, odd.round) == (1, 1, 0)
    assert [*even.behind] == [t2]
    assert odd.fresh == {t1: 1}  # fresh for its own group,
    assert coordinator.ledger.late == {t1: 1}  # though the whole has moved on
    assert odd.running == {3: t3}
    assert not odd.behind


def test_nothing_that_a_part_shows_changes_behind_its_back() -> None:
    coordinator = split_coordinator()
    even, odd = coordinator.ledger.parts()
    before = snapshot(odd)
    t0, t2 = even.running.values()
    coordinator.receive(Arrived(1.0, t0, 1))
    coordinator.carry_out([Within(0, Step(mean([t0]))), Within(0, Drop(t2)), Within(0, Remember("x", 1.0))])
    coordinator.carry_out([Within(0, WakeAt(9.0)), Within(0, Assign(0))])
    coordinator.receive(Left(2.0, 2))
    assert snapshot(odd) == before
    assert even.memory == {"x": 1.0}
    assert [*even.alarms] == [9.0] == [*coordinator.ledger.alarms]


def test_only_parts_that_something_happened_to_are_asked() -> None:
    asked: list[int] = []

    class Watching(Silent):
        def decide(self, ledger: Ledger) -> list[Decision]:
            asked.extend(number for number, _ in ledger.split(self.groups))
            return []

    coordinator = split_coordinator()
    coordinator.receive(Arrived(1.0, coordinator.ledger.running[1], 1))
    coordinator.strategy = Watching(groups=((0, 2), (1, 3)))
    coordinator.receive(Arrived(2.0, coordinator.ledger.running[3], 1))
    assert asked == [1]


def test_of_parts_of_parts_too_only_those_are_asked_that_something_happened_to() -> None:
    asked: list[tuple[int, int]] = []

    class Nested(Strategy):
        def decide(self, ledger: Ledger) -> list[Decision]:
            for number, part in ledger.split(((0, 1, 2), (3,))):
                asked.extend((number, inner) for inner, _ in part.split(((0,), (1, 2, 3))))
            return []

    coordinator = Coordinator(Nested())
    assert coordinator.ledger.updated_at == 0.0
    coordinator.receive(*(Joined(0.0, worker) for worker in range(4)))
    assert asked == [(0, 0), (0, 1), (1, 1)]
    for worker, expected in ((0, (0, 0)), (2, (0, 1)), (3, (1, 1))):
        asked.clear()
        coordinator.receive(Left(1.0, worker))
        assert asked == [expected]


def test_whoever_moves_to_another_part_is_noticed_by_the_parts_inside_it() -> None:
    asked: list[tuple[int, int]] = []

    class Nested(Strategy):
        def decide(self, ledger: Ledger) -> list[Decision]:
            for number, part in ledger.split(((0, 1), (2,))) if not ledger.groups else ledger.split(ledger.groups):
                asked.extend((number, inner) for inner, _ in part.split(((0, 1, 2), (3,))))
            return []

    coordinator = Coordinator(Nested())
    coordinator.receive(*(Joined(0.0, worker) for worker in range(3)))
    asked.clear()
    coordinator.carry_out([Regroup(((0,), (1, 2)), "")])
    coordinator.receive()
    assert asked == [(0, 0), (1, 0)]
    assert [[*part.idle] for _, part in walk(coordinator.ledger)][1:] == [[0], [0], [], [2, 1], [2, 1], []]


def test_an_alarm_wakes_every_part() -> None:
    coordinator = split_coordinator()
    coordinator.carry_out([Within(1, WakeAt(2.0))])
    coordinator.receive(Rang(2.0))
    assert [part.now for part in coordinator.ledger.parts()] == [2.0, 2.0]
    assert not any(part.alarms for _, part in walk(coordinator.ledger))


def test_an_alarm_of_a_part_of_a_part_is_one_of_every_ledger_around_it() -> None:
    class Nested(Strategy):
        def decide(self, ledger: Ledger) -> list[Decision]:
            for _, part in ledger.split(((0, 1), (2,))):
                list(part.split(((0,), (1, 2))))
            return []

    coordinator = Coordinator(Nested())
    coordinator.receive(*(Joined(0.0, worker) for worker in range(3)))
    coordinator.carry_out([Within(0, Within(1, WakeAt(2.0)))])
    alarms = {numbers: [*part.alarms] for numbers, part in walk(coordinator.ledger)}
    assert alarms == {(): [2.0], (0,): [2.0], (0, 0): [], (0, 1): [2.0], (1,): [], (1, 0): [], (1, 1): []}


def test_a_worker_that_no_group_names_belongs_to_the_last() -> None:
    coordinator = split_coordinator()
    coordinator.receive(Joined(1.0, 17))
    assert [[*part.workers] for part in coordinator.ledger.parts()] == [[0, 2], [1, 3, 17]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((0,), (1, 2, 3)), r"already split by \(\(0, 2\), \(1, 3\)\)"),
        ((), "already split"),
    ],
)
def test_a_ledger_is_split_once(groups: tuple[tuple[int, ...], ...], message: str) -> None:
    ledger = split_coordinator().ledger
    with pytest.raises(IllegalDecision, match=message):
        list(ledger.split(groups))


def test_a_ledger_is_split_before_any_work_is_given_out() -> None:
    ledger = coordinator_of(0, 1).ledger
    before = snapshot(ledger)
    with pytest.raises(IllegalDecision, match="cannot split into 2 groups: split once, before any work is given out"):
        list(ledger.split(((0,), (1,))))
    assert snapshot(ledger) == before
    assert ledger.parts() == ()


def test_who_is_leaving_is_here_and_not_idle_until_it_comes_back() -> None:
    """In the whole and in its part; in the state too, and nothing of it where nobody is leaving."""
    coordinator = split_coordinator()
    assert "leaving" not in coordinator.ledger.state()
    first = coordinator.ledger.running[0]
    coordinator.receive(Leaving(1.0, 0, by=3.0), Leaving(1.0, 1, by=2.0))
    coordinator.receive(Arrived(1.5, first, 1))
    coordinator.carry_out([Within(0, Step({first: Fraction(1)}))])
    again = LedgerState()
    again.restore(json.loads(json.dumps(coordinator.ledger.state())))
    for ledger in (coordinator.ledger, again):
        assert dict(ledger.leaving) == {0: 3.0, 1: 2.0}
        assert dict(ledger.parts()[0].leaving) == {0: 3.0}
        assert 0 in ledger.workers
        assert not ledger.idle
        assert not ledger.parts()[0].idle
    coordinator.receive(Left(3.0, 0))
    coordinator.receive(Joined(4.0, 0))
    assert dict(coordinator.ledger.leaving) == {1: 2.0}
    assert [*coordinator.ledger.idle] == [*coordinator.ledger.parts()[0].idle] == [0]


def test_who_changes_its_part_is_still_leaving() -> None:
    coordinator = split_coordinator()
    coordinator.receive(Leaving(1.0, 0, by=3.0))
    coordinator.carry_out([Regroup(((2,), (0, 1, 3)), "why not")])
    coordinator.strategy = Silent()
    coordinator.receive(Arrived(1.5, coordinator.ledger.running[0], 1))
    assert [dict(part.leaving) for part in coordinator.ledger.parts()] == [{}, {0: 3.0}]
    assert 0 in coordinator.ledger.parts()[1].workers
    assert not coordinator.ledger.parts()[1].idle
