"""The one loop: wait for what happens, ask the coordinator, carry out what it says. The same for every fleet."""

import gc
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from paceline.core.codec import plain_ticket, ticket_from, whole
from paceline.core.consistency import check_coordinator
from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.errors import Diverged, IllegalDecision
from paceline.core.ledger import Ledger
from paceline.core.messages import (
    Arrived,
    Drop,
    Event,
    Halt,
    Instruction,
    Joined,
    Left,
    Rang,
    Recall,
    Reported,
    Resize,
    Start,
    Step,
    Ticket,
    WakeAt,
)
from paceline.core.rules import check_events
from paceline.fleets.base import FollowsSteps, RealTime, WorkerGroup
from paceline.fleets.replayed import ReplayedWorkers
from paceline.strategies.traits import reports_of
from paceline.trace.format import facts_from, plain_facts, tickets_of
from paceline.trace.writing import TraceWriter

if TYPE_CHECKING:
    from paceline.callbacks.workers import WorkerWatch
    from paceline.learning.learner import Learner


class NoLearner:
    """For when only time and order matter, and there is no model."""

    def attend(self, event: Joined | Left) -> None:
        pass

    def start(self, ticket: Ticket) -> None:
        pass

    def shorten(self, ticket: Ticket, done: int) -> None:
        pass

    def drop(self, ticket: Ticket) -> None:
        pass

    def resize(self, sizes: Mapping[int, int]) -> None:
        pass

    def step(self, step: Step) -> list[Ticket]:
        return []

    def report(self) -> Mapping[str, float]:
        return {}


@runtime_checkable
class KnowsTickets(Protocol):
    """A learner, or its contributions, that knows its tickets: those started, and neither used up nor dropped."""

    def open_tickets(self) -> Collection[Ticket]: ...


@runtime_checkable
class ChecksRestored(Protocol):
    """Workers whose state can be compared with the ledger's: ``ValueError`` if they do not fit."""

    def check_restored(
        self, ledger: Ledger, here: Set[int], at_work: Set[Ticket], halted: Set[Ticket], to_ring: Set[float], /
    ) -> None:
        """``here`` are the workers that had joined and not left.

        ``at_work`` is being computed according to the ledger; workers may not know yet of what is ``halted``;
        ``to_ring`` are the alarms that were asked for.
        """
        ...


class Stepped(NamedTuple):
    """The model was changed at a time, from a version; ``dropped`` was thrown away since the change before."""

    at: float
    version: int
    step: Step
    dropped: Sequence[Ticket] = ()


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Look for garbage cycles less often: with thousands of workers a third of the time would go into it."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Loop:
    """Runs until nothing can happen any more; iterating over it pauses after each update.

    Events at exactly ``seconds`` still count; ``out_of_time`` tells whether later ones were left. In a pause the state
    of the loop can be kept in a checkpoint: what the coordinator knows, what is still to be carried out, and what came
    too late. ``sizes`` are the samples of each worker's mini-batches, where they have sizes of their own.

    In real time it comes to an end also while it waits, in the middle of a round: at ``seconds``, and soon after
    ``asked_to_end()`` is true. What workers are at then is given out again when the run is resumed.

    ``on_wait`` is called with the time a few times a second while real workers are waited for.
    ``watch`` is told which workers join, leave and are late, if anybody wants to know.
    """

    def __init__(
        self,
        strategy: Strategy,
        workers: WorkerGroup,
        learner: "Learner | NoLearner",
        trace: TraceWriter,
        seconds: float | None = None,
        *,
        sizes: Mapping[int, int] | None = None,
    ) -> None:
        self.coordinator = Coordinator(strategy, sizes)
        self.version = 0
        self.out_of_time = False
        self.asked_to_end: Callable[[], bool] = bool  # false
        self.on_wait: Callable[[float], None] | None = None
        self.watch: WorkerWatch | None = None
        self._workers = workers
        self.in_real_time = isinstance(workers, RealTime)
        self._follows_steps = workers if isinstance(workers, FollowsSteps) else None
        self._learner = learner
        self._trace = trace
        self._seconds = math.inf if seconds is None else seconds
        self._instructions: Sequence[Instruction] = ()
        self._rest: Iterator[Instruction] = iter(())  # those of them that are still to be carried out
        self._too_late: Sequence[Event] = ()
        self._dropped: list[Ticket] = []  # since the last update
        # a trace tells them again
        self._reporting = bool(reports_of(strategy)) and not isinstance(workers, ReplayedWorkers)
        self._reports: list[Reported] = []  # of updates that were made, to be told when all is carried out
        if isinstance(workers, RealTime):
            workers.end_waiting(self._seconds, lambda: self._is_asked_to_end(workers))

    @property
    def now(self) -> float:
        """On the workers' clock, if it runs by itself; else the time of the last event."""
        return self._workers.now if isinstance(self._workers, RealTime) else self.coordinator.ledger.now

    def __iter__(self) -> Iterator[Stepped]:
        coordinator, workers, learner = self.coordinator, self._workers, self._learner
        at, instructions = coordinator.ledger.now, self._pending()
        while True:
            rest = iter(instructions)
            for instruction in rest:
                if type(instruction) is Start:
                    ticket = instruction.ticket
                    learner.start(ticket)
                    workers.start(ticket)
                elif type(instruction) is Step:
                    update = self._step(instruction, at)
                    self._instructions, self._rest = instructions, rest
                    yield update
                elif type(instruction) is Recall:
                    workers.recall(instruction.ticket)
                    if self.watch is not None:
                        self.watch.given_up(instruction.ticket, at)
                elif type(instruction) is Halt:
                    learner.drop(instruction.ticket)
                    workers.halt(instruction.ticket)
                    if self.watch is not None:
                        self.watch.given_up(instruction.ticket, at)
                elif type(instruction) is Drop:
                    learner.drop(instruction.ticket)
                    self._dropped.append(instruction.ticket)
                    if self.watch is not None:
                        self.watch.given_up(instruction.ticket, at)
                elif isinstance(instruction, WakeAt):
                    workers.wake_at(instruction.at)
                elif isinstance(instruction, Resize):
                    learner.resize(instruction.sizes)
            events = (self._reports.pop(0),) if self._reports else self._too_late or workers.wait()
            if not events:
                if self._has_ended_waiting():
                    return
                break
            at = events[0].at
            if at > self._seconds:
                self.out_of_time, self._too_late = True, events
                return
            self._too_late = ()
            for event in events:
                if type(event) is Arrived:
                    if event.done < event.ticket.work.units:
                        learner.shorten(event.ticket, event.done)
                elif isinstance(event, Joined | Left):
                    learner.attend(event)
                    if self.watch is not None:
                        self.watch.changed(event)
            instructions = coordinator.receive(*events)
            self._trace.record(events, instructions)
        if idle := coordinator.ledger.workers:
            raise IllegalDecision(f"{coordinator.strategy} leaves {len(idle)} workers with nothing to do, for ever")

    def _has_ended_waiting(self) -> bool:
        """Or can nothing happen any more?"""
        if not isinstance(self._workers, RealTime):
            return False
        self._instructions, self._rest = (), iter(())  # all are carried out
        self.out_of_time = self._workers.now >= self._seconds
        return self.out_of_time or self.asked_to_end()

    def _is_asked_to_end(self, workers: RealTime) -> bool:
        if self.on_wait is not None:
            self.on_wait(workers.now)
        return self.asked_to_end()  # whoever is asked may change

    def _step(self, step: Step, at: float) -> Stepped:
        try:
            non_finite: Sequence[Ticket] = self._learner.step(step)
        except Diverged as diverged:
            self._trace.non_finite(diverged.non_finite)
            raise
        if non_finite:
            self._trace.non_finite(non_finite)
        if self._reporting:
            self._reports.append(Reported(at, self._learner.report()))
        if self._follows_steps is not None:
            self._follows_steps.stepped(step)
        if self.watch is not None:
            self.watch.stepped(step, self.version, at)
        update = Stepped(at, self.version, step, self._dropped)
        self.version += 1
        self._dropped = []
        return update

    def _pending(self) -> Sequence[Instruction]:
        return self._instructions[len(self._instructions) - length_hint(self._rest) :]

    def state(self) -> dict[str, Any]:
        return {
            "coordinator": self.coordinator.state(),
            "version": self.version,
            "pending": plain_facts(self._pending()),
            "too late": plain_facts(self._too_late),
            **({"reports": plain_facts(self._reports)} if self._reports else {}),
            **({"dropped": [plain_ticket(ticket) for ticket in self._dropped]} if self._dropped else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.coordinator.restore(state["coordinator"])
        self.version = whole(state["version"])
        self._instructions = [fact for fact in facts_from(state["pending"]) if isinstance(fact, Instruction)]
        self._rest = iter(self._instructions)
        self._too_late = [fact for fact in facts_from(state["too late"]) if isinstance(fact, Event)]
        if "reports" in state:
            self._reports = [fact for fact in facts_from(state["reports"]) if isinstance(fact, Reported)]
        self._dropped = [ticket_from(each) for each in state.get("dropped", ())]

    def check_restored(self) -> None:
        """Raise ``ValueError`` or ``ImpossibleEvent`` unless what was restored of all that it knows fits together."""
        check_coordinator(self.coordinator)
        ledger, pending = self.coordinator.ledger, self._pending()
        steps = [each for each in pending if type(each) is Step]
        contributions = getattr(self._learner, "contributions", None)
        updates = {self.version, ledger.round - len(steps), getattr(self._learner, "updates", self.version)}
        updates.add(getattr(contributions, "version", self.version))
        _agree(len(updates) == 1, f"the number of updates is {' or '.join(map(str, sorted(updates)))}")
        if self._reports:
            check_events(ledger, self._reports)
        if self._too_late:
            check_events(ledger, self._too_late)
        number = self._workers.about.get("workers")
        _agree(
            not isinstance(number, int) or all(worker < number for worker in ledger.workers), "there are more workers"
        )
        running = {*ledger.running.values()}
        starts = {each.ticket for each in pending if isinstance(each, Start)}
        halts = {each.ticket for each in pending if isinstance(each, Halt)}
        ended = {ticket for each in pending if isinstance(each, Step | Drop | Halt) for ticket in tickets_of(each)}
        _agree(starts <= running, "something is to be started that the ledger does not know")
        _agree(all({*step.keep} <= step.weights.keys() for step in steps), "something is to be kept that is not used")
        known = (running | {*ledger.handed_in} | {*ledger.kept}) - starts | ended
        for holder in (self._learner, contributions):
            if isinstance(holder, KnowsTickets):
                _agree({*holder.open_tickets()} == known, "what was promised does not fit what was given out")
        if isinstance(self._workers, ChecksRestored):
            gone = {each.worker for each in self._too_late if isinstance(each, Left)}
            came = {each.worker for each in self._too_late if isinstance(each, Joined)}
            arrived = {each.ticket for each in self._too_late if isinstance(each, Arrived)}
            at_work = {ticket for ticket in running - starts - arrived if ticket.worker not in gone}
            recalls = {each.ticket for each in pending if isinstance(each, Recall)}
            _agree(recalls <= at_work, "something is to be recalled that nobody computes")
            rung = max((each.at for each in self._too_late if isinstance(each, Rang)), default=-math.inf)
            asked = {each.at for each in pending if isinstance(each, WakeAt)}
            to_ring = {at for at in ledger.alarms if at > rung} - asked
            self._workers.check_restored(ledger, {*ledger.workers} - gone | came, at_work, halts, to_ring)


def _agree(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
