"""What cannot have happened and what must not be decided. Only reads: a refusal changes nothing."""

import math
from collections.abc import Sequence
from fractions import Fraction

from paceline.core.errors import IllegalDecision, ImpossibleEvent
from paceline.core.messages import (
    REPORTS,
    Arrived,
    Assign,
    Decision,
    Drop,
    Event,
    Joined,
    Leaving,
    Left,
    Recall,
    Regroup,
    Remember,
    Reported,
    Resize,
    Step,
    Ticket,
    WakeAt,
    Within,
)
from paceline.core.state import LedgerState


def check_events(ledger: LedgerState, events: Sequence[Event]) -> None:
    """Raise ``ImpossibleEvent`` unless all of the events can happen one after the other."""
    now = ledger.now
    if len(events) == 1 and type(event := events[0]) is Arrived:  # by far the most frequent
        if not now <= event.at < math.inf:
            _check_time(event, now)
        ticket = event.ticket
        if event.done != ticket.work.units or ledger.running.get(ticket.worker) != ticket:
            _check_arrival(ledger, event)
        return
    gone: set[int] = set()  # what the earlier events of this list changed
    came: set[int] = set()
    arrived: set[Ticket] = set()
    for event in events:
        _check_time(event, now)
        now = event.at
        if now != events[0].at:
            raise ImpossibleEvent(f"{events[0]} and {event} cannot come together: they are not of one instant")
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
        elif isinstance(event, Reported):
            if not (event.numbers.keys() <= REPORTS.keys() and all(map(math.isfinite, event.numbers.values()))):
                raise ImpossibleEvent(f"{event} cannot happen: the numbers {', '.join(REPORTS)} are told, if finite")
        elif isinstance(event, Leaving):
            if event.worker not in came and (event.worker not in ledger.workers or event.worker in gone):
                raise ImpossibleEvent(f"worker {event.worker} cannot be leaving: it is not here")
            if not now <= event.by < math.inf:
                raise ImpossibleEvent(f"{event} cannot happen: it names no time to come")
        elif not any(alarm <= now for alarm in ledger.alarms):
            raise ImpossibleEvent(f"{event} cannot happen: nobody asked to be woken by then")


def _check_time(event: Event, now: float) -> None:
    if not now <= event.at < math.inf:
        raise ImpossibleEvent(f"{event} cannot happen: the time is already {now:g}, and always finite")


def _check_arrival(ledger: LedgerState, event: Arrived) -> None:
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


def check_decisions(ledger: LedgerState, decisions: Sequence[Decision]) -> None:
    """Raise ``IllegalDecision`` unless all of the decisions may be carried out one after the other."""
    check = DecisionCheck()
    for decision in decisions:
        check.check(ledger, decision)


_NOT_ABOUT_ONE_PART = (WakeAt, Remember, Regroup, Resize)


class DecisionCheck:
    """Goes through a list of decisions before any is carried out, and knows what the earlier ones will have changed."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        # workers that were assigned, tickets that were ended (halted, dropped or settled), and what else was decided
        self._done: set[int | str | Ticket | tuple[object, ...]] = set()

    def check(self, ledger: LedgerState, decision: Decision) -> None:
        """Raise ``IllegalDecision`` unless the decision is allowed after those checked before it."""
        whole = ledger
        while type(decision) is Within:
            parts = ledger.parts()
            if not 0 <= decision.part < len(parts):
                raise IllegalDecision(f"no part {decision.part}: this ledger has {len(parts)} parts")
            ledger = parts[decision.part]
            decision = decision.decision
        if ledger.is_split and type(decision) not in _NOT_ABOUT_ONE_PART:
            raise IllegalDecision(f"{decision} must be made within one of this ledger's {len(ledger.parts())} parts")
        if type(decision) is Assign:
            self._check_assign(ledger, decision)
        elif type(decision) is Step:
            self._check_step(ledger, decision)
        elif type(decision) is Drop:
            ticket = decision.ticket
            if not self._runs(ledger, ticket):
                self._check_held(ledger, ticket, "drop")
            self._done.add(ticket)
        elif type(decision) is Recall:
            ticket = decision.ticket
            if not self._runs(ledger, ticket):
                raise IllegalDecision(f"cannot recall {ticket}: it does not run")
            if ticket in ledger.recalled or ("recalled", ticket) in self._done:
                raise IllegalDecision(f"cannot recall {ticket}: it was recalled already")
            self._done.add(("recalled", ticket))
        elif type(decision) is WakeAt:
            asked = ("woken", id(ledger), decision.at)
            if not ledger.now < decision.at < math.inf or decision.at in ledger.alarms or asked in self._done:
                raise IllegalDecision(f"cannot wake at {decision.at:g}: past, never, or asked for already")
            self._done.add(asked)
        elif type(decision) is Regroup:
            self._check_regroup(ledger, decision)
        elif type(decision) is Resize:
            if ledger is not whole:
                raise IllegalDecision("cannot resize within a part: sizes are those of all workers")
            self._check_resize(ledger, decision)
        elif type(decision) is not Remember:
            raise IllegalDecision(f"not a decision: {decision!r}")

    def _check_assign(self, ledger: LedgerState, decision: Assign) -> None:
        worker = decision.worker
        if worker not in ledger.workers:
            raise IllegalDecision(f"cannot assign worker {worker}: it is not here")
        if worker in self._done:
            raise IllegalDecision(f"cannot assign worker {worker}: it was just given something else")
        if worker in ledger.running and (running := ledger.running[worker]) not in self._done:
            raise IllegalDecision(f"cannot assign worker {worker}: it still runs {running}")
        if decision.work.units < 1:
            raise IllegalDecision(f"cannot assign worker {worker} {decision.work.units} units: at least 1")
        if decision.work.samples:
            raise IllegalDecision(f"cannot assign worker {worker} {decision.work.samples} samples: decide a Resize")
        if ledger.sizes and worker not in ledger.sizes and "resized" not in self._done:
            raise IllegalDecision(f"cannot assign worker {worker}: it has no size, and others have; decide a Resize")
        self._done.add(worker)

    def _check_step(self, ledger: LedgerState, decision: Step) -> None:
        weights = decision.weights
        if not weights:
            raise IllegalDecision("cannot step on no tickets")
        fresh, ended = ledger.fresh, self._done
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

    def _check_regroup(self, ledger: LedgerState, decision: Regroup) -> None:
        groups, parts = decision.groups, len(ledger.parts())
        named = [worker for group in groups for worker in group]
        if not parts or len(groups) < parts:
            raise IllegalDecision(f"cannot regroup {parts} parts into {len(groups)} groups: as many, or more")
        if len({*named}) < len(named):
            raise IllegalDecision(f"cannot regroup by {groups}: a worker is in two groups")
        if missing := sorted({*ledger.workers}.difference(named)):
            raise IllegalDecision(f"cannot regroup by {groups}: no group has worker {missing[0]}, which is here")
        if ("regrouped", id(ledger)) in self._done:
            raise IllegalDecision(f"cannot regroup by {groups}: it was just regrouped by an earlier decision")
        self._done.add(("regrouped", id(ledger)))

    def _check_resize(self, ledger: LedgerState, decision: Resize) -> None:
        sizes = decision.sizes
        if sizes.keys() != ledger.workers:
            odd = min(sizes.keys() ^ ledger.workers)
            what = "has no size, and is here" if odd in ledger.workers else "has a size, and is not here"
            raise IllegalDecision(f"cannot resize: worker {odd} {what}")
        for worker, size in sizes.items():
            if type(size) is not int or size < 1:
                raise IllegalDecision(f"cannot resize: worker {worker} cannot have {size!r} samples, but at least 1")
        if not ledger.sizes and (ledger.running or ledger.handed_in or ledger.kept):
            raise IllegalDecision("cannot resize: work was given out before, of the same size for all")
        if "resized" in self._done:
            raise IllegalDecision("cannot resize: it was just resized by an earlier decision")
        self._done.add("resized")

    def _check_held(self, ledger: LedgerState, ticket: Ticket, action: str) -> None:
        if ticket in self._done:
            raise IllegalDecision(f"cannot {action} {ticket}: it was settled by an earlier decision")
        if not (ticket in ledger.fresh or ticket in ledger.late or ticket in ledger.kept):
            raise IllegalDecision(f"cannot {action} {ticket}: it is not at hand")

    def _runs(self, ledger: LedgerState, ticket: Ticket) -> bool:
        return ledger.running.get(ticket.worker) == ticket and ticket not in self._done
