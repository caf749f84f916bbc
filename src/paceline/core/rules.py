"""What cannot have happened and what must not be decided. Only reads: a refusal changes nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

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


# What the earlier decisions of a list will have changed: workers that were assigned, tickets that were ended (halted,
# dropped or settled), and what else was decided.
_Done = set[int | str | Ticket | tuple[object, ...]]
_NOT_ABOUT_ONE_PART = (WakeAt, Remember, Regroup, Resize)


def check_decisions(ledger: LedgerState, decisions: Sequence[Decision]) -> None:
    """Raise ``IllegalDecision`` unless all of the decisions may be carried out one after the other."""
    done: _Done = set()
    for decision in decisions:
        where = ledger
        while type(decision) is Within:
            parts, number = where.parts(), decision.part
            if not 0 <= number < len(parts):
                raise IllegalDecision(f"no part {number}: this ledger has {len(parts)} parts")
            where, decision = parts[number], decision.decision  # noqa: PLW2901
        kind = type(decision)
        if where.is_split and kind not in _NOT_ABOUT_ONE_PART:
            raise IllegalDecision(f"{decision} must be made within one of this ledger's {len(where.parts())} parts")
        if kind is Resize and where is not ledger:
            raise IllegalDecision("cannot resize within a part: sizes are those of all workers")
        check = _CHECKS.get(kind)
        if check is None:
            raise IllegalDecision(f"not a decision: {decision!r}")
        check(where, decision, done)


def _check_assign(ledger: LedgerState, decision: Assign, done: _Done) -> None:
    worker, work = decision.worker, decision.work
    if worker not in ledger.workers:
        raise IllegalDecision(f"cannot assign worker {worker}: it is not here")
    if worker in done:
        raise IllegalDecision(f"cannot assign worker {worker}: it was just given something else")
    if worker in ledger.running and (running := ledger.running[worker]) not in done:
        raise IllegalDecision(f"cannot assign worker {worker}: it still runs {running}")
    if work.units < 1:
        raise IllegalDecision(f"cannot assign worker {worker} {work.units} units: at least 1")
    if work.samples:
        raise IllegalDecision(f"cannot assign worker {worker} {work.samples} samples: decide a Resize")
    if ledger.sizes and worker not in ledger.sizes and "resized" not in done:
        raise IllegalDecision(f"cannot assign worker {worker}: it has no size, and others have; decide a Resize")
    done.add(worker)


def _check_step(ledger: LedgerState, decision: Step, done: _Done) -> None:
    weights = decision.weights
    if not weights:
        raise IllegalDecision("cannot step on no tickets")
    # where tickets mostly are comes first, and sets of tickets are compared as wholes: hashing one takes its time
    kept, late, fresh = ledger.kept, ledger.late, ledger.fresh
    first, second, third = (kept, late, fresh) if kept else (late, fresh, kept)
    again = bool(done) and not weights.keys().isdisjoint(done)
    for ticket, weight in weights.items():
        if not (first.get(ticket) or second.get(ticket) or third.get(ticket)) or (again and ticket in done):
            _check_held(ledger, ticket, "step on", done)
            raise IllegalDecision(f"cannot step on {ticket}: nothing of it was done")
        if type(weight) is not Fraction:
            raise IllegalDecision(f"the weight of {ticket} must be an exact Fraction, not {weight!r}")
    if not decision.keep:
        done.update(weights)
        return
    keep = {*decision.keep}
    for ticket in keep.difference(weights):
        raise IllegalDecision(f"cannot keep {ticket}: the step does not use it")
    done.update({*weights}.difference(keep))


def _check_drop(ledger: LedgerState, decision: Drop, done: _Done) -> None:
    ticket = decision.ticket
    if not _runs(ledger, ticket, done):
        _check_held(ledger, ticket, "drop", done)
    done.add(ticket)


def _check_recall(ledger: LedgerState, decision: Recall, done: _Done) -> None:
    ticket = decision.ticket
    if not _runs(ledger, ticket, done):
        raise IllegalDecision(f"cannot recall {ticket}: it does not run")
    if ticket in ledger.recalled or ("recalled", ticket) in done:
        raise IllegalDecision(f"cannot recall {ticket}: it was recalled already")
    done.add(("recalled", ticket))


def _check_wake(ledger: LedgerState, decision: WakeAt, done: _Done) -> None:
    asked = ("woken", id(ledger), decision.at)
    if not ledger.now < decision.at < math.inf or decision.at in ledger.alarms or asked in done:
        raise IllegalDecision(f"cannot wake at {decision.at:g}: past, never, or asked for already")
    done.add(asked)


def _check_remember(ledger: LedgerState, decision: Remember, done: _Done) -> None:
    """It always may."""


def _check_regroup(ledger: LedgerState, decision: Regroup, done: _Done) -> None:
    groups, parts = decision.groups, len(ledger.parts())
    named = [worker for group in groups for worker in group]
    if not parts or len(groups) < parts:
        raise IllegalDecision(f"cannot regroup {parts} parts into {len(groups)} groups: as many, or more")
    if len({*named}) < len(named):
        raise IllegalDecision(f"cannot regroup by {groups}: a worker is in two groups")
    if missing := sorted({*ledger.workers}.difference(named)):
        raise IllegalDecision(f"cannot regroup by {groups}: no group has worker {missing[0]}, which is here")
    if ("regrouped", id(ledger)) in done:
        raise IllegalDecision(f"cannot regroup by {groups}: it was just regrouped by an earlier decision")
    done.add(("regrouped", id(ledger)))


def _check_resize(ledger: LedgerState, decision: Resize, done: _Done) -> None:
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
    if "resized" in done:
        raise IllegalDecision("cannot resize: it was just resized by an earlier decision")
    done.add("resized")


def _check_held(ledger: LedgerState, ticket: Ticket, action: str, done: _Done) -> None:
    if ticket in done:
        raise IllegalDecision(f"cannot {action} {ticket}: it was settled by an earlier decision")
    if not (ticket in ledger.fresh or ticket in ledger.late or ticket in ledger.kept):
        raise IllegalDecision(f"cannot {action} {ticket}: it is not at hand")


def _runs(ledger: LedgerState, ticket: Ticket, done: _Done) -> bool:
    return ledger.running.get(ticket.worker) == ticket and ticket not in done


_CHECKS: Mapping[type, Callable[[LedgerState, Any, _Done], None]] = {
    Assign: _check_assign,
    Step: _check_step,
    Drop: _check_drop,
    Recall: _check_recall,
    WakeAt: _check_wake,
    Remember: _check_remember,
    Regroup: _check_regroup,
    Resize: _check_resize,
}
