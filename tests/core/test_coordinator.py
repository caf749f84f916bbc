"""Events in, instructions out."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given

from paceline.core.consistency import check_coordinator
from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Halt,
    Instruction,
    Joined,
    Left,
    Rang,
    Recall,
    Remember,
    Start,
    Step,
    Ticket,
    WakeAt,
    Within,
    gradient,
)
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.synchronous import Synchronous
from paceline.strategies.unequal_batches import UnequalBatches
from paceline.testing import Moment, Rehearsal, scripts

ONE, HALF = Fraction(1), Fraction(1, 2)


def starts(*tickets: Ticket) -> list[Instruction]:
    return [Start(ticket) for ticket in tickets]


def test_synchronous_gives_everybody_work_and_steps_when_all_are_in() -> None:
    coordinator = Coordinator(Synchronous())
    t0, t1 = Ticket(0, 0, 0), Ticket(1, 1, 0)
    assert coordinator.receive(Joined(0.0, 0), Joined(0.0, 1)) == starts(t0, t1)
    assert coordinator.receive(Arrived(1.0, t1, 1)) == []
    assert coordinator.receive(Arrived(2.0, t0, 1)) == [
        Step({t0: HALF, t1: HALF}),
        *starts(Ticket(2, 1, 1), Ticket(3, 0, 1)),
    ]
    assert coordinator.version == 1


def test_what_a_checkpoint_cannot_have_held_is_noticed() -> None:
    """A ticket beyond the last number, and speeds that are measured over nothing: of a forged file, say."""
    coordinator = Coordinator(ModelAveraging(4, by_speed=True))
    coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    check_coordinator(coordinator)
    coordinator.issued = 1
    with pytest.raises(ValueError, match="a piece of work was never given out"):
        check_coordinator(coordinator)
    coordinator.issued = 2
    timing = coordinator.ledger.timing
    assert timing is not None
    timing.window = 0
    with pytest.raises(ValueError, match="speeds are measured over no pieces of work"):
        check_coordinator(coordinator)


@pytest.mark.parametrize("worker", [0, 5])
def test_two_pieces_of_work_for_one_worker_or_one_for_somebody_who_is_not_here_are_noticed(worker: int) -> None:
    coordinator = Coordinator(Synchronous())
    coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    ledger, forged = coordinator.ledger, Ticket(2, worker, 0)
    ledger._running[worker] = forged
    ledger._current[forged] = None
    coordinator.issued = 3
    with pytest.raises(ValueError, match="somebody computes two things, or is not here"):
        check_coordinator(coordinator)


def test_mini_batches_without_samples_are_noticed() -> None:
    coordinator = Coordinator(UnequalBatches(total=8))
    coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    check_coordinator(coordinator)
    coordinator.ledger._sizes[1] = 0
    with pytest.raises(ValueError, match="a mini-batch has no samples"):
        check_coordinator(coordinator)


def test_a_round_goes_on_without_the_one_that_left() -> None:
    coordinator = Coordinator(Synchronous())
    t0, t1 = Ticket(0, 0, 0), Ticket(1, 1, 0)
    coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    coordinator.receive(Arrived(1.0, t0, 1))
    assert coordinator.receive(Left(2.0, 1)) == [Halt(t1), Step({t0: ONE}), *starts(Ticket(2, 0, 1))]


def test_what_the_last_one_handed_in_before_it_left_counts() -> None:
    coordinator = Coordinator(FastestK(quorum=2))
    t0, t1 = Ticket(0, 0, 0), Ticket(1, 1, 0)
    coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    coordinator.receive(Arrived(1.0, t0, 1))
    assert coordinator.receive(Left(2.0, 0), Left(2.0, 1)) == [Halt(t1), Step({t0: ONE})]
    assert coordinator.receive(Joined(5.0, 1)) == starts(Ticket(2, 1, 1))


def test_whoever_joins_takes_part_at_once_with_the_newest_model() -> None:
    coordinator = Coordinator(Asynchronous())
    coordinator.receive(Joined(0.0, 0))
    coordinator.receive(Arrived(1.0, Ticket(0, 0, 0), 1))
    assert coordinator.receive(Joined(1.5, 7)) == starts(Ticket(2, 7, 1))


def test_fastest_k_stops_the_late_ones() -> None:
    coordinator = Coordinator(FastestK(quorum=1))
    t0, t1 = Ticket(0, 0, 0), Ticket(1, 1, 0)
    coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    assert coordinator.receive(Arrived(1.0, t1, 1)) == [
        Step({t1: ONE}),
        Halt(t0),
        *starts(Ticket(2, 1, 1), Ticket(3, 0, 1)),
    ]


def test_live_compensation_recalls_the_late_ones_and_makes_up_for_them_one_step_later() -> None:
    coordinator = Coordinator(LiveCompensation(quorum=2, blocks=4))
    work = gradient(4)
    t0, t1, t2 = (Ticket(i, i, 0, work) for i in range(3))
    coordinator.receive(*(Joined(0.0, worker) for worker in range(3)))
    coordinator.receive(Arrived(1.0, t0, 4))
    t3, t4, t5 = Ticket(3, 0, 1, work), Ticket(4, 1, 1, work), Ticket(5, 2, 1, work)
    assert coordinator.receive(Arrived(2.0, t1, 4)) == [
        Step({t0: HALF, t1: HALF}, keep=(t0, t1)),
        Recall(t2),
        *starts(t3, t4),
    ]
    assert coordinator.receive(Arrived(2.5, t2, 3)) == starts(t5)
    assert coordinator.receive(Arrived(3.0, t4, 4)) == []
    sixth = Fraction(1, 6)
    step, recall, *_ = coordinator.receive(Arrived(3.5, t3, 4))
    assert step == Step(
        {t4: HALF, t3: HALF, t0: -sixth, t1: -sixth, t2: Fraction(1, 3) * Fraction(3, 4)}, keep=(t4, t3)
    )
    assert recall == Recall(t5)


def test_groups_do_not_wait_for_each_other() -> None:
    coordinator = Coordinator(Grouped([[0, 1], [2]]))
    t0, t1, t2 = (Ticket(i, i, 0) for i in range(3))
    assert coordinator.receive(*(Joined(0.0, worker) for worker in range(3))) == starts(t0, t1, t2)
    assert coordinator.receive(Arrived(1.0, t0, 1)) == []
    assert coordinator.receive(Arrived(1.5, t2, 1)) == [Step({t2: ONE}), *starts(Ticket(3, 2, 1))]
    assert coordinator.receive(Arrived(2.0, t1, 1)) == [
        Step({t0: HALF, t1: HALF}),
        *starts(Ticket(4, 0, 2), Ticket(5, 1, 2)),
    ]
    assert coordinator.version == 2
    assert [part.round for part in coordinator.ledger.parts()] == [1, 1]


def test_several_events_at_one_instant_are_all_taken_in_before_the_strategy_is_asked() -> None:
    coordinator = Coordinator(FastestK(quorum=1))
    t0, t1 = Ticket(0, 0, 0), Ticket(1, 1, 0)
    coordinator.receive(Joined(0.0, 0), Joined(0.0, 1))
    assert coordinator.receive(Arrived(1.0, t1, 1), Arrived(1.0, t0, 1))[:2] == [Step({t1: ONE}), Drop(t0)]


def test_no_events_let_the_strategy_say_nothing_new() -> None:
    coordinator = Coordinator(Synchronous())
    coordinator.receive(Joined(0.0, 0))
    assert coordinator.receive() == []


@dataclass(frozen=True)
class Naps(Strategy):
    """Gives out work ``seconds`` after somebody is idle, and remembers when it did so last."""

    seconds: float

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        for ticket in ledger.fresh:
            return [Step({ticket: ONE})]
        if not ledger.idle:
            return []
        wakes = ledger.memory.get("wakes", 0.0)
        if wakes < ledger.now or not wakes:
            return [Remember("wakes", ledger.now + self.seconds), WakeAt(ledger.now + self.seconds)]
        return [Assign(worker) for worker in ledger.idle] if ledger.now == wakes else []


def test_a_strategy_is_woken_when_it_asked_to_be_and_finds_what_it_remembered() -> None:
    coordinator = Coordinator(Naps(2.0))
    t0 = Ticket(0, 0, 0)
    assert coordinator.receive(Joined(1.0, 0)) == [Remember("wakes", 3.0), WakeAt(3.0)]
    assert coordinator.receive(Rang(3.0)) == starts(t0)
    assert coordinator.receive(Arrived(4.0, t0, 1)) == [Step({t0: ONE}), Remember("wakes", 6.0), WakeAt(6.0)]


def test_what_a_part_remembers_is_recorded_with_its_number() -> None:
    coordinator = Coordinator(Grouped([[0], [1]], inside=Naps(2.0)))
    assert coordinator.receive(Joined(1.0, 1)) == [Within(1, Remember("wakes", 3.0)), WakeAt(3.0)]
    assert coordinator.ledger.parts()[1].memory == {"wakes": 3.0}
    assert not coordinator.ledger.memory


def test_parts_that_ask_for_the_same_time_are_woken_by_one_alarm() -> None:
    coordinator = Coordinator(Grouped([[0], [1]], inside=Naps(2.0)))
    instructions = coordinator.receive(Joined(1.0, 0), Joined(1.0, 1))
    assert instructions.count(WakeAt(3.0)) == 1  # a fleet rings once for each, and the second would wake nobody
    assert coordinator.receive(Rang(3.0)) == starts(Ticket(0, 0, 0), Ticket(1, 1, 0))


@given(scripts(workers=5))
def test_the_same_history_gives_the_same_instructions(script: list[Moment]) -> None:
    first, second = (Rehearsal(LiveCompensation(quorum=2, blocks=3), workers=5) for _ in range(2))
    for moment in script:
        first.play(moment)
        second.play(moment)
    assert first.history == second.history
