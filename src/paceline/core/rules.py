"""What cannot have happened and what must not be decided. Only reads: a refusal changes nothing."""

import math
from collections.abc import Sequence
from fractions import Fraction

from paceline.core.errors import IllegalDecision, ImpossibleEvent
from paceline.core.facts import (
    Arrived,
    Assign,
    Decision,
    Drop,
    Event,
    Joined,
    Left,
    Recall,
    Remember,
    Step,
    Ticket,
    WakeAt,
    Within,
)
from paceline.core.ledger import Ledger


def check_events(ledger: Ledger, events: Sequence[Event]) -> None:
    """Raise ``ImpossibleEvent`` unless all of the events can happen one after the other."""
    now = ledger.now
    if len(events) == 1 and type(events[0]) is Arrived:  # by far the most frequent
        _check_time(events[0], now)
        _check_arrival(ledger, events[0])
        return
    gone: set[int] = set()  # what the earlier events of this list changed
    came: set[int] = set()
    arrived: set[Ticket] = set()
    for event in events:
        _check_time(event, now)
        now = event.at
        if now != events[0].at:
            raise ImpossibleEvent(f"{events[0]} and {event} cannot be told together: they are not of one instant")
        if isinstance(event, Arrived):
            _check_arrival(ledger, event)
            if event.ticket in arrived or event.ticket.worker in gone:
                raise ImpossibleEvent(f"{event.ticket} cannot arrive: worker {event.ticket.worker} ended it already")
            arrived.add(event.ticket)
        elif isinstance(event, Joined):
            if event.worker in came or (event.worker in ledger.workers and event.worker not in gone):
                raise ImpossibleEvent(f"worker {event.worker} cannot join: it is already here")
            came.add(event.worker)
        elif isinstance(event, Left):
            if event.worker not in came and (event.worker not in ledger.workers or event.worker in gone):
                raise ImpossibleEvent(f"worker {event.worker} cannot leave: it is not here")
            came.discard(event.worker)
            gone.add(event.worker)
        elif not any(alarm <= now for alarm in ledger.alarms):
            raise ImpossibleEvent(f"{event} cannot happen: nobody asked to be woken by then")


def _check_time(event: Event, now: float) -> None:
    if not now <= event.at < math.inf:
        raise ImpossibleEvent(f"{event} cannot happen: the time is already {now:g}, and always finite")


def _check_arrival(ledger: Ledger, event: Arrived) -> None:
    ticket, done = event.ticket, event.done
    if ledger.running.get(ticket.worker) != ticket:
        raise ImpossibleEvent(f"{ticket} cannot arrive: worker {ticket.worker} does not run it")
    units = ticket.work.units
    if done == units:
        return
    if not 0 <= done < units:
        raise ImpossibleEvent(f"{ticket} cannot have {done} units done: it has {units}")
    if ticket not in ledger.recalled:
        raise ImpossibleEvent(f"{ticket} cannot arrive with {done} of {units} units: it was not recalled")


def check_decisions(ledger: Ledger, decisions: Sequence[Decision]) -> None:
    """Raise ``IllegalDecision`` unless all of the decisions may be carried out one after the other."""
    check = DecisionCheck()
    for decision in decisions:
        check.check(ledger, decision)


_NOT_ABOUT_WORKERS = (Within, WakeAt, Remember)


class DecisionCheck:
    """Goes through a list of decisions before any is carried out, and knows what the earlier ones will have changed."""

    __slots__ = ("_alarms", "_assigned", "_ended", "_recalled")

    def __init__(self) -> None:
        self._alarms: set[tuple[int, float]] = set()
        self._assigned: set[int] = set()
        self._ended: set[Ticket] = set()  # halted, dropped or settled
        self._recalled: set[Ticket] = set()

    def check(self, ledger: Ledger, decision: Decision) -> None:
        """Raise ``IllegalDecision`` unless the decision is allowed after those checked before it."""
        if ledger._parts and not isinstance(decision, _NOT_ABOUT_WORKERS):
            raise IllegalDecision(f"{decision} must be made within one of this ledger's {len(ledger._parts)} parts")
        if isinstance(decision, Assign):
            self._check_assign(ledger, decision)
        elif isinstance(decision, Step):
            self._check_step(ledger, decision)
        elif isinstance(decision, Within):
            parts = ledger._parts
            if not 0 <= decision.part < len(parts):
                raise IllegalDecision(f"no part {decision.part}: this ledger has {len(parts)} parts")
            self.check(parts[decision.part], decision.decision)
        elif isinstance(decision, Drop):
            ticket = decision.ticket
            if not self._runs(ledger, ticket):
                self._check_held(ledger, ticket, "drop")
            self._ended.add(ticket)
        elif isinstance(decision, Recall):
            ticket = decision.ticket
            if not self._runs(ledger, ticket):
                raise IllegalDecision(f"cannot recall {ticket}: it does not run")
            if ticket in ledger.recalled or ticket in self._recalled:
                raise IllegalDecision(f"cannot recall {ticket}: it was recalled already")
            self._recalled.add(ticket)
        elif isinstance(decision, WakeAt):
            asked = (id(ledger), decision.at)
            if not ledger.now < decision.at < math.inf or decision.at in ledger.alarms or asked in self._alarms:
                raise IllegalDecision(f"cannot wake at {decision.at:g}: past, never, or asked for already")
            self._alarms.add(asked)
        elif not isinstance(decision, Remember):
            raise IllegalDecision(f"not a decision: {decision!r}")

    def _check_assign(self, ledger: Ledger, decision: Assign) -> None:
        worker = decision.worker
        if worker not in ledger.workers:
            raise IllegalDecision(f"cannot assign worker {worker}: it is not here")
        running = ledger.running.get(worker)
        if worker in self._assigned:
            raise IllegalDecision(f"cannot assign worker {worker}: it was just given something else")
        if running is not None and running not in self._ended:
            raise IllegalDecision(f"cannot assign worker {worker}: it still runs {running}")
        if decision.work.units < 1:
            raise IllegalDecision(f"cannot assign worker {worker} {decision.work.units} units: at least 1")
        self._assigned.add(worker)

    def _check_step(self, ledger: Ledger, decision: Step) -> None:
        weights = decision.weights
        if not weights:
            raise IllegalDecision("cannot step on no tickets")
        fresh, ended = ledger.fresh, self._ended
        for ticket, weight in weights.items():
            if not fresh.get(ticket) or ticket in ended:
                self._check_held(ledger, ticket, "step on")
                if not (ledger.late.get(ticket) or ledger.kept.get(ticket)):
                    raise IllegalDecision(f"cannot step on {ticket}: nothing of it was done")
            if type(weight) is not Fraction:
                raise IllegalDecision(f"the weight of {ticket} must be an exact Fraction, not {weight!r}")
        if decision.keep:
            for ticket in decision.keep:
                if ticket not in weights:
                    raise IllegalDecision(f"cannot keep {ticket}: the step does not use it")
            ended.update(weights.keys() - decision.keep)
        else:
            ended.update(weights)

    def _check_held(self, ledger: Ledger, ticket: Ticket, action: str) -> None:
        if ticket in self._ended:
            raise IllegalDecision(f"cannot {action} {ticket}: it was settled by an earlier decision")
        if not (ticket in ledger.fresh or ticket in ledger.late or ticket in ledger.kept):
            raise IllegalDecision(f"cannot {action} {ticket}: it is not at hand")

    def _runs(self, ledger: Ledger, ticket: Ticket) -> bool:
        return ledger.running.get(ticket.worker) == ticket and ticket not in self._ended
