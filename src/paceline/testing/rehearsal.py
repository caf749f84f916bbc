"""A strategy on trial: a script of what happens, a fleet that follows it, and the history that comes of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Decision,
    Event,
    Groups,
    Halt,
    Joined,
    Leaving,
    Left,
    Rang,
    Recall,
    Reported,
    Start,
    Step,
    Ticket,
    WakeAt,
)
from paceline.strategies.traits import reports_of
from paceline.testing.recount import Fact


class Move(NamedTuple):
    """Something that happens to one of the workers (number ``which`` of those it can happen to)."""

    what: str
    which: int = 0
    done: int = 0  # if it was recalled: the units it has done


class Moment(NamedTuple):
    """What happens ``wait`` seconds after the moment before, reported to the coordinator ``at_once`` or one by one."""

    wait: int
    moves: Sequence[Move]
    at_once: bool = False


def scripts(workers: int) -> st.SearchStrategy[list[Moment]]:
    """Random scripts; they begin with any number of the workers there."""
    arrive = [Move("arrive", which, done) for which in range(workers) for done in range(5)]
    join = [Move("join", which) for which in range(workers)]
    leave = [Move("leave", which) for which in range(workers)] + [Move("announce", which) for which in range(workers)]
    # one draw for each move keeps Hypothesis fast; most are arrivals, or no round would ever end
    moves = st.lists(st.sampled_from(arrive + 2 * join + leave + [Move("all leave")]), min_size=1, max_size=6)
    moment = st.builds(Moment, st.integers(0, 3), moves, st.booleans())
    return st.builds(_script, st.integers(1, workers), st.lists(moment, max_size=12))


def _script(present: int, moments: list[Moment]) -> list[Moment]:
    return [Moment(0, [Move("join")] * present, at_once=True), *moments]


class Rehearsal:
    """A coordinator, a fleet that follows its instructions and a script, and the history of what happened."""

    def __init__(self, strategy: Strategy, workers: int) -> None:
        self.coordinator = Coordinator(strategy)
        self.strategy = strategy
        self.workers = range(workers)
        self.history: list[Fact] = []
        self.now = 0.0
        self._asked_for = reports_of(strategy)
        self._told = 0
        self.here: set[int] = set()
        self.leaving: set[int] = set()  # of these, who has announced it
        self.running: dict[int, Ticket] = {}
        self.recalled: set[Ticket] = set()
        self.alarms: list[float] = []
        self.first_groups: dict[tuple[int, ...], Groups] = {}  # what a ledger with these numbers was split by at first
        self.on_news: Callable[[Rehearsal], None] | None = None  # called before the strategy is asked about an event

    @property
    def ledger(self) -> Ledger:
        return self.coordinator.ledger

    def play(self, moment: Moment) -> None:
        self._wait_until(self.now + moment.wait)
        if moment.at_once:
            self._happen([event for move in moment.moves for event in self._events(move)] + self._ring())
            return
        for move in moment.moves:
            self._happen(self._events(move))
        self._ring_one_by_one()

    def play_fairly(self, turns: int) -> None:
        """Nobody leaves any more but those who announced it, at once.

        In each turn every worker hands in what it runs, and the next alarm rings.
        """
        self._happen([event for worker in sorted(self.leaving) for event in self._leave([worker])])
        if not self.here:
            self._happen(self._events(Move("join")))
        for _ in range(turns):
            for ticket in sorted(self.running.values()):
                self._wait_until(self.now + 1)
                if self.running.get(ticket.worker) == ticket:
                    self._happen([self._arrival(ticket, ticket.serial)])
            if self.alarms:
                self._wait_until(min(self.alarms))
            self._ring_one_by_one()

    def _wait_until(self, time: float) -> None:
        while self.alarms and min(self.alarms) < time:
            self.now = min(self.alarms)
            self._ring_one_by_one()
        self.now = time

    def _ring_one_by_one(self) -> None:
        for alarm in self._ring():
            self._happen([alarm])

    def _ring(self) -> list[Event]:
        due = [Rang(alarm) for alarm in self.alarms if alarm <= self.now]
        self.alarms = [alarm for alarm in self.alarms if alarm > self.now]
        return [*due]

    def _events(self, move: Move) -> list[Event]:
        if move.what == "arrive" and self.running:
            return [self._arrival(sorted(self.running.values())[move.which % len(self.running)], move.done)]
        absent = [worker for worker in self.workers if worker not in self.here]
        if move.what == "join" and absent:
            worker = absent[move.which % len(absent)]
            self.here.add(worker)
            return [Joined(self.now, worker)]
        here = sorted(self.here)
        if move.what == "announce" and here:
            self.leaving.add(here[move.which % len(here)])
            return [Leaving(self.now, here[move.which % len(here)], self.now + 5)]
        if move.what == "leave" and here:
            return self._leave([here[move.which % len(here)]])
        return self._leave(here) if move.what == "all leave" else []

    def _leave(self, workers: Sequence[int]) -> list[Event]:
        for worker in workers:
            self.here.discard(worker)
            self.leaving.discard(worker)
            self.running.pop(worker, None)
        return [Left(self.now, worker) for worker in workers]

    def _arrival(self, ticket: Ticket, done: int) -> Event:
        units = ticket.work.units
        del self.running[ticket.worker]
        return Arrived(self.now, ticket, done % (units + 1) if ticket in self.recalled else units)

    def _happen(self, events: Sequence[Event]) -> None:
        if not events:
            return
        self.history += events
        if self.on_news is not None:
            self.coordinator.strategy = _AfterNews(self)
        instructions = self.coordinator.receive(*events)
        self.history += instructions
        for instruction in instructions:
            if isinstance(instruction, Start):
                self.running[instruction.ticket.worker] = instruction.ticket
            elif isinstance(instruction, Halt):
                if self.running.get(instruction.ticket.worker) == instruction.ticket:
                    del self.running[instruction.ticket.worker]
            elif isinstance(instruction, Recall):
                self.recalled.add(instruction.ticket)
            elif isinstance(instruction, WakeAt):
                self.alarms.append(instruction.at)
        for _ in [each for each in instructions if isinstance(each, Step)] if self._asked_for else ():
            self._told += 1
            sign = (-1) ** (self._told * self._told // 7)  # now and then a few of the other sign
            self._happen([Reported(self.now, dict.fromkeys(self._asked_for, sign / self._told))])


class _AfterNews(Strategy):
    """Lets somebody look at the ledger before the strategy is asked for the first time."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._asked = False

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        rehearsal = self._rehearsal
        if rehearsal.on_news is not None and not self._asked:
            rehearsal.on_news(rehearsal)
        self._asked = True
        return rehearsal.strategy.decide(ledger)
