"""The contract refuses rules that break it, each for its own reason, and accepts an unusual rule that keeps it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import Phase, settings

from paceline.core.coordinator import Strategy
from paceline.core.errors import IllegalDecision
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Drop, Remember, Step, WakeAt, Within, mean
from paceline.strategies.grouped import Grouped
from paceline.strategies.synchronous import Synchronous
from paceline.testing import StrategyContract

SAME = "test_decide_answers_the_same_when_asked_twice"
ALONE = "test_decide_leaves_the_ledger_alone"
QUIET = "test_is_quiet_after_its_own_decisions"
DEADLOCK = "test_never_deadlocks"
PROGRESS = "test_updates_go_on_while_work_is_handed_in"
WORK = "test_every_worker_gets_work"
SETTLED = "test_every_contribution_is_settled"
CONSERVED = "test_tickets_are_conserved"
VERSIONS = "test_versions_count_updates"
INDICES = "test_indices_equal_recounted_ones"
CHECKS = (SAME, ALONE, QUIET, DEADLOCK, PROGRESS, WORK, SETTLED, CONSERVED, VERSIONS, INDICES)
GROUPS = [[0, 1], [2, 3, 4]]


def assign_idle(ledger: Ledger) -> list[Decision]:
    return [Assign(worker) for worker in ledger.idle]


@dataclass(frozen=True)
class NeverSteps(Strategy):
    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return assign_idle(ledger)


@dataclass(frozen=True)
class NeverAssigns(Strategy):
    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return []


@dataclass(frozen=True)
class WaitsForThree(Strategy):
    """However many there are."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if len(ledger.fresh) >= 3:
            return [Step(mean(ledger.fresh))]
        return assign_idle(ledger)


@dataclass(frozen=True)
class WaitsForTheLeaver(Strategy):
    """Steps only when all that were there at the round's start have answered."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.idle:
            return [
                *assign_idle(ledger),
                Remember("expected", len(ledger.running) + len(ledger.fresh) + len(ledger.idle)),
            ]
        if ledger.fresh and len(ledger.fresh) == ledger.memory.get("expected"):
            return [Step(mean(ledger.fresh))]
        return []


@dataclass(frozen=True)
class LeaksLateTickets(Strategy):
    """Steps on the first two, and forgets about the others without dropping them."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if len(ledger.fresh) >= 2 or (ledger.fresh and not ledger.running):
            return [Step(mean(ledger.fresh))]
        return assign_idle(ledger)


@dataclass(frozen=True)
class KeepsForEver(Strategy):
    """Keeps what it used, and never drops it."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.fresh and not ledger.running:
            return [Step(mean(ledger.fresh), keep=[*ledger.fresh])]
        return assign_idle(ledger)


@dataclass(frozen=True)
class Guesses(Strategy):
    """Waits for somebody else now and then."""

    dice: random.Random = field(default_factory=lambda: random.Random(0))

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.fresh and (self.dice.random() < 0.5 or not ledger.running):
            return [Step(mean(ledger.fresh))]
        return assign_idle(ledger)


@dataclass(frozen=True)
class CountsItsCalls(Strategy):
    """Gives work to one worker or to all, by turns."""

    calls: list[None] = field(default_factory=list)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        self.calls.append(None)
        if len(self.calls) % 2:
            return assign_idle(ledger)[:1] or Synchronous().decide(ledger)
        return Synchronous().decide(ledger)


@dataclass(frozen=True)
class AnswersLate(Strategy):
    """Says nothing when it is asked first, and what it wants when it is asked again."""

    asked: list[Ledger] = field(default_factory=list)

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.idle and not (self.asked and self.asked.pop()):
            self.asked.append(ledger)
            return []
        return Synchronous().decide(ledger)


@dataclass(frozen=True)
class NeverQuiet(Strategy):
    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        return [Remember("pulse", ledger.memory.get("pulse", 0) + 1)]


@dataclass(frozen=True)
class Tampers(Strategy):
    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        decisions = Synchronous().decide(ledger)
        if not decisions:
            ledger.updated_at = ledger.now + 1  # type: ignore[misc]
        return decisions


@dataclass(frozen=True)
class StepsTwice(Strategy):
    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.fresh and not ledger.running:
            return [Step(mean(ledger.fresh)), Step(mean(ledger.fresh))]
        return assign_idle(ledger)


@dataclass(frozen=True)
class RoundsItsWeights(Strategy):
    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.fresh and not ledger.running:
            return [Step(dict.fromkeys(ledger.fresh, 1 / len(ledger.fresh)))]  # type: ignore[arg-type]
        return assign_idle(ledger)


@dataclass(frozen=True)
class LeavesJoinersIdle(Strategy):
    """Works with those that were there at the very first, as long as one of them is."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if "known" not in ledger.memory and ledger.workers:
            return [Remember("known", 1), *(Remember(str(worker), 1) for worker in ledger.workers)]
        if ledger.fresh and not ledger.running:
            return [Step(mean(ledger.fresh))]
        known = [Assign(worker) for worker in ledger.idle if str(worker) in ledger.memory]
        return known if known or ledger.running else assign_idle(ledger)


@dataclass(frozen=True)
class ForgetsItsAlarm(Strategy):
    """Waits ten seconds before the first round, and for an alarm that it never sets before the later ones."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.fresh and not ledger.running:
            return [Step(mean(ledger.fresh))]
        if ledger.workers and not ledger.memory:
            return [Remember("set", 1), WakeAt(ledger.now + 10)]
        return [] if ledger.alarms or ledger.round else assign_idle(ledger)


@dataclass(frozen=True)
class CrashesAlone(Strategy):
    """Divides by the number of the others."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        share = Fraction(1, len(ledger.workers) - 1)
        if ledger.fresh and not ledger.running:
            return [Step(dict.fromkeys(ledger.fresh, share))]
        return assign_idle(ledger)


@dataclass(frozen=True)
class NeglectsAPart(Strategy):
    """Lets the second group work, and so never looks idle as a whole."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        rules = (NeverSteps(), Synchronous())
        groups = tuple(tuple(group) for group in GROUPS)
        return [Within(number, wish) for number, part in ledger.split(groups) for wish in rules[number].decide(part)]


def contract_for(rule: Strategy, scripts: int) -> StrategyContract:
    contract = StrategyContract()
    contract.strategy = rule
    contract.hypothesis_settings = settings(
        max_examples=scripts, phases=[Phase.generate], report_multiple_bugs=False, deadline=None
    )
    return contract


def name(parameter: object) -> str:
    if isinstance(parameter, Grouped):
        return f"groups of {name(parameter.inside)}"
    return "" if isinstance(parameter, set) else parameter if isinstance(parameter, str) else type(parameter).__name__


def run(contract: StrategyContract, check: str) -> None:
    test: Callable[[], None] = getattr(contract, check)
    test()


@pytest.mark.parametrize(
    ("rule", "check", "message"),
    [
        (NeverSteps(), DEADLOCK, "deadlock: workers .* are here, nothing runs, and no alarm is set"),
        (NeverSteps(), PROGRESS, "no update in 10 turns"),
        (NeverSteps(), SETTLED, "neither used nor dropped"),
        (NeverAssigns(), DEADLOCK, "deadlock"),
        (NeverAssigns(), WORK, r"given no work in 10 turns of the others: \[0"),
        (WaitsForThree(), DEADLOCK, "deadlock: workers"),
        (WaitsForThree(), PROGRESS, "no update in 10 turns"),
        (Grouped(GROUPS, inside=WaitsForThree()), DEADLOCK, r"deadlock in part \(0,\): workers"),
        (Grouped(GROUPS, inside=WaitsForThree()), PROGRESS, r"no update in 10 turns of the workers"),
        (NeglectsAPart(), DEADLOCK, r"deadlock in part \(0,\): workers"),
        (NeglectsAPart(), PROGRESS, r"no update in 10 turns of the workers \[[01, ]+\]"),
        (WaitsForTheLeaver(), DEADLOCK, "deadlock: workers"),
        (Grouped(GROUPS, inside=WaitsForTheLeaver()), DEADLOCK, r"deadlock in part \("),
        (Grouped(GROUPS, inside=LeaksLateTickets()), SETTLED, "neither used nor dropped"),
        (Guesses(), SAME, r"decided .* and asked again without any news"),
        (CountsItsCalls(), SAME, "asked again without any news"),
        (AnswersLate(), QUIET, "not quiet after its own decisions: .*Assign"),
        (ForgetsItsAlarm(), DEADLOCK, "no alarm is set"),
    ],
    ids=name,
)
def test_a_broken_rule_fails_the_check_that_is_about_its_fault(rule: Strategy, check: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run(contract_for(rule, scripts=200), check)
    with pytest.raises(AssertionError):
        contract_for(rule, scripts=200).check_all()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (NeverQuiet(), r"NeverQuiet\(\) never becomes quiet"),
        (StepsTwice(), "cannot step on t[0-9]+: it was settled by an earlier decision"),
        (RoundsItsWeights(), "must be an exact Fraction"),
    ],
    ids=name,
)
@pytest.mark.parametrize("check", [QUIET, CONSERVED])
def test_an_illegal_decision_fails_every_check(rule: Strategy, message: str, check: str) -> None:
    with pytest.raises(IllegalDecision, match=message):
        run(contract_for(rule, scripts=200), check)


def test_an_error_of_the_rule_itself_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        run(contract_for(CrashesAlone(), scripts=200), QUIET)


@pytest.mark.parametrize(
    ("rule", "faults"),
    [
        (LeaksLateTickets(), {SETTLED}),
        (KeepsForEver(), {SETTLED}),
        (LeavesJoinersIdle(), {WORK}),
        (Tampers(), {ALONE, INDICES}),
    ],
    ids=name,
)
def test_a_broken_rule_fails_nothing_else(rule: Strategy, faults: set[str]) -> None:
    failed: set[str] = set()
    for check in CHECKS:
        try:
            run(contract_for(rule, scripts=60 if check in faults else 15), check)
        except AssertionError:
            failed.add(check)
    assert failed == faults
    with pytest.raises(AssertionError):
        contract_for(rule, scripts=60).check_all()


def test_every_check_was_named_here() -> None:
    assert {name for name in dir(StrategyContract) if name.startswith("test_")} == {*CHECKS}


@dataclass(frozen=True)
class OneOfThem(Strategy):
    """Waits for everybody, steps on the first alone, and on the others as late ones with the next step."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        if ledger.idle:
            return assign_idle(ledger)
        if ledger.running or not ledger.fresh:
            return []
        first = next(iter(ledger.fresh))
        use = [first, *(ticket for ticket in ledger.late if ticket.worker % 2)]
        return [*(Drop(ticket) for ticket in ledger.late if ticket not in use), Step(mean(use))]


class TestARuleThatLeavesFreshTicketsUnused(StrategyContract):
    strategy = OneOfThem()


class TestARuleThatLeavesFreshTicketsUnusedInGroups(StrategyContract):
    strategy = Grouped(GROUPS, inside=OneOfThem())
