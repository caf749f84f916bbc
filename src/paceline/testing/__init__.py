"""The contracts of a strategy and of a fleet, as pytest suites to subclass.

    class TestMyRule(StrategyContract):
        strategy = MyRule(quorum=3)

Each test lets workers join, announce that they leave, leave and hand in work in every order that Hypothesis can think
of, and checks one promise. A failing test prints the shortest script that it found. How many scripts are tried is
Hypothesis's ``max_examples``. ``check_all`` checks all promises in one go.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from paceline.core.coordinator import Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import Arrived, Decision, Drop, Halt, Start, Step, Ticket

for needed in ("hypothesis", "pytest"):
    if find_spec(needed) is None:
        raise ModuleNotFoundError(f"paceline.testing needs {needed}: pip install hypothesis pytest", name=needed)

from hypothesis import given, settings  # noqa: E402

from paceline.testing.fleets import FleetContract  # noqa: E402
from paceline.testing.recount import happened_in, recount, snapshot, walk  # noqa: E402
from paceline.testing.rehearsal import Moment, Move, Rehearsal, scripts  # noqa: E402

__all__ = [
    "FleetContract", "Moment", "Move", "Rehearsal", "StrategyContract", "happened_in", "recount", "scripts", "snapshot",
    "walk",
]  # fmt: skip


class StrategyContract:
    """What every strategy promises. Subclass it, and name the subclass ``Test...``.

    strategy   the rule, with the hyperparameters to test it with
    workers    the largest fleet; smaller ones occur too, so take more than a quorum
    patience   how often everybody may have to hand something in before all that was there at first is settled
    hypothesis_settings   instead of those of the current profile without its deadline
    """

    strategy: Strategy
    workers: int = 5
    patience: int = 10
    hypothesis_settings: settings | None = None

    def test_decide_answers_the_same_when_asked_twice(self) -> None:
        self._always(lambda rehearsal: None, _AskedTwice(self.strategy))

    def test_decide_leaves_the_ledger_alone(self) -> None:
        self._always(lambda rehearsal: None, _Watched(self.strategy))

    def test_is_quiet_after_its_own_decisions(self) -> None:
        self._always(_is_quiet)

    def test_never_deadlocks(self) -> None:
        self._always(_something_is_under_way)

    def test_updates_go_on_while_work_is_handed_in(self) -> None:
        self._finally(_updates_go_on)

    def test_every_worker_gets_work(self) -> None:
        self._finally(_everybody_gets_work)

    def test_every_contribution_is_settled(self) -> None:
        self._finally(_all_is_settled)

    def test_tickets_are_conserved(self) -> None:
        self._always(_tickets_are_conserved)

    def test_versions_count_updates(self) -> None:
        self._always(_versions_count_updates)

    def test_indices_equal_recounted_ones(self) -> None:
        check = _indices_equal_recounted_ones
        self._for_every_script(check, lambda rehearsal: None, self.strategy, on_news=check)

    def check_all(self) -> None:
        """Check every promise on the same scripts, in a fraction of the time of the tests: for many rules in a row."""

        def each(rehearsal: Rehearsal) -> None:
            for check in (
                _is_quiet,
                _something_is_under_way,
                _tickets_are_conserved,
                _versions_count_updates,
                _indices_equal_recounted_ones,
            ):
                check(rehearsal)

        def end(rehearsal: Rehearsal) -> None:
            rehearsal.on_news = None  # recounting takes the longer, the more has happened
            checks = [begin(rehearsal, self.patience) for begin in (_everybody_gets_work, _all_is_settled)]
            checks.append(_updates_go_on(rehearsal, self.patience))
            rehearsal.play_fairly(self.patience)
            for check in checks:
                check()

        rule = _AskedTwice(_Watched(self.strategy))
        self._for_every_script(each, end, rule, on_news=_indices_equal_recounted_ones)

    def _always(self, check: Callable[[Rehearsal], None], strategy: Strategy | None = None) -> None:
        """Check after each moment of every script."""
        self._for_every_script(check, lambda rehearsal: None, strategy or self.strategy)

    def _finally(self, begin: Callable[[Rehearsal, int], Callable[[], None]]) -> None:
        """At the end of every script, let everybody have its turns, and check what has come of it."""

        def end(rehearsal: Rehearsal) -> None:
            check = begin(rehearsal, self.patience)
            rehearsal.play_fairly(self.patience)
            check()

        self._for_every_script(lambda rehearsal: None, end, self.strategy)

    def _for_every_script(
        self,
        each: Callable[[Rehearsal], None],
        end: Callable[[Rehearsal], None],
        strategy: Strategy,
        on_news: Callable[[Rehearsal], None] | None = None,
    ) -> None:
        @given(scripts(self.workers))
        def rehearse(script: list[Moment]) -> None:
            rehearsal = Rehearsal(strategy, self.workers)
            rehearsal.on_news = on_news
            for moment in script:
                rehearsal.play(moment)
                each(rehearsal)
            end(rehearsal)

        (self.hypothesis_settings or settings(deadline=None))(rehearse)()


@dataclass(frozen=True)
class _AskedTwice(Strategy):
    strategy: Strategy

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        first, second = self.strategy.decide(ledger), self.strategy.decide(ledger)
        assert [*first] == [*second], f"decided {first}, and asked again without any news {second}"
        return first


@dataclass(frozen=True)
class _Watched(Strategy):
    strategy: Strategy

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        parts = [part for _, part in walk(ledger)]  # it may split the ledger: only what was there before must stay
        before = [snapshot(part) for part in parts]
        decisions = self.strategy.decide(ledger)
        assert before == [snapshot(part) for part in parts], "the ledger changed while the strategy looked at it"
        return decisions


def _is_quiet(rehearsal: Rehearsal) -> None:
    more = rehearsal.strategy.decide(rehearsal.ledger)
    assert not more, f"not quiet after its own decisions: {more}"


def _something_is_under_way(rehearsal: Rehearsal) -> None:
    for numbers, ledger in reversed([*walk(rehearsal.ledger)]):  # the innermost first: it tells where
        where = f" in part {numbers}" if numbers else ""
        staying = [worker for worker in ledger.workers if worker not in ledger.leaving]
        assert not staying or ledger.running or any(part.alarms for _, part in walk(ledger)), (
            f"deadlock{where}: workers {staying} are here, nothing runs, and no alarm is set"
        )


def _updates_go_on(rehearsal: Rehearsal, patience: int) -> Callable[[], None]:
    rehearsal.play_fairly(1)  # parts that have workers are there now
    before = [(part, part.round) for _, part in walk(rehearsal.ledger) if part.workers]

    def check() -> None:
        for part, rounds in before:
            assert part.round > rounds or not part.workers, (
                f"no update in {patience} turns of the workers {[*part.workers]}"
            )

    return check


def _everybody_gets_work(rehearsal: Rehearsal, patience: int) -> Callable[[], None]:
    before = len(rehearsal.history)
    idle = rehearsal.here - rehearsal.leaving - rehearsal.running.keys()

    def check() -> None:
        busy = {fact.ticket.worker for fact in rehearsal.history[before:] if isinstance(fact, Start)}
        assert idle <= busy, f"given no work in {patience} turns of the others: {sorted(idle - busy)}"

    return check


def _all_is_settled(rehearsal: Rehearsal, patience: int) -> Callable[[], None]:
    issued = sum(isinstance(fact, Start) for fact in rehearsal.history)

    def check() -> None:
        held = [
            ticket
            for _, part in walk(rehearsal.ledger)
            if part.workers and not part.parts()  # where nobody is left, what was handed in waits for somebody
            for ticket in (*part.running.values(), *part.fresh, *part.late, *part.kept)
        ]
        leaked = [f"{ticket} of worker {ticket.worker}" for ticket in held if ticket.serial < issued]
        assert not leaked, f"neither used nor dropped in {patience} turns of everybody: {', '.join(leaked)}"

    return check


def _tickets_are_conserved(rehearsal: Rehearsal) -> None:
    state: dict[Ticket, str] = {}

    def move(ticket: Ticket, before: str | None, after: str) -> None:
        assert state.get(ticket) == before, f"{ticket} is {state.get(ticket)}, and cannot become {after}"
        state[ticket] = after

    for fact in rehearsal.history:
        if isinstance(fact, Start):
            move(fact.ticket, None, "running")
        elif isinstance(fact, Arrived):
            move(fact.ticket, "running", "held")
        elif isinstance(fact, Halt):
            move(fact.ticket, "running", "settled")
        elif isinstance(fact, Drop):
            move(fact.ticket, "held", "settled")
        elif isinstance(fact, Step):
            for ticket in fact.weights:
                move(ticket, "held", "held" if ticket in fact.keep else "settled")
    ledger = rehearsal.ledger
    assert [ticket.serial for ticket in state] == [*range(len(state))]
    assert {ticket for ticket in state if state[ticket] == "running"} == {*ledger.running.values()}
    assert {ticket for ticket in state if state[ticket] == "held"} == {*ledger.fresh, *ledger.late, *ledger.kept}


def _versions_count_updates(rehearsal: Rehearsal) -> None:
    updates = 0
    for fact in rehearsal.history:
        updates += isinstance(fact, Step)
        if isinstance(fact, Start):
            assert fact.ticket.version == updates, (
                f"{fact.ticket} has version {fact.ticket.version} after {updates} updates"
            )
    assert rehearsal.coordinator.version == updates


def _indices_equal_recounted_ones(rehearsal: Rehearsal) -> None:
    for numbers, ledger in walk(rehearsal.ledger):
        if ledger.groups:
            rehearsal.first_groups.setdefault(numbers, ledger.groups)
        facts = rehearsal.history
        for place, number in enumerate(numbers):
            facts = happened_in(number, facts, rehearsal.first_groups[numbers[:place]])
        indices = snapshot(ledger)
        for name, recounted in recount(facts).items():
            if name == "alarms" and numbers:  # the fleet does not know which part asked for an alarm
                assert {*ledger.alarms} <= {*rehearsal.ledger.alarms}
                continue
            if name in ("now", "updated_at") and not ledger.workers:  # nobody has asked it yet
                continue
            shown = indices[name]
            by_arrival = name in ("fresh", "handed_in")  # the order counts: the first are the fastest
            if isinstance(shown, list) and not by_arrival:
                shown = sorted(shown)
            assert shown == recounted, f"{name} of part {numbers}: the ledger shows {shown}, the facts say {recounted}"
