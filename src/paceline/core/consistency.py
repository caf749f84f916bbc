"""Whether a ledger that was read from a file can be one that a coordinator left.

Each index of a ledger follows from what happened, so they agree with each other, the parts with the whole, and the
strategy, which was asked until it had nothing more to say, has nothing to say now. A forged ledger that passes may be
another run's, but it cannot bring a run into a state that has no name. What does not agree raises ``ValueError``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from paceline.core.coordinator import Coordinator
from paceline.core.messages import Ticket
from paceline.core.state import LedgerState


def check_coordinator(coordinator: Coordinator) -> None:
    """Check the whole ledger, its parts, and that the strategy is quiet."""
    ledger = coordinator.ledger
    tickets = _tickets(ledger)
    serials = {ticket.serial for ticket in tickets}
    _agree(len(serials) == len(tickets), "two pieces of work have one number")
    _agree(max(serials, default=-1) < coordinator.issued, "a piece of work was never given out")
    _agree(all(ticket.version <= ledger.round for ticket in tickets), "a piece of work is of a model yet to come")
    _agree(all(ticket.work.units >= 1 for ticket in tickets), "a piece of work is of no units")
    _agree(all(size >= 1 for size in ledger.sizes.values()), "a mini-batch has no samples")
    _agree(
        not ledger.sizes or (ledger.workers <= ledger.sizes.keys() and all(ticket.work.samples for ticket in tickets)),
        "somebody has no size, and others have",
    )
    _agree(
        bool(ledger.sizes) or not any(ticket.work.samples for ticket in tickets),
        "a piece of work has a size, and no worker has",
    )
    _check(ledger, ledger.now, whole=True)
    _touch(ledger)
    decisions = coordinator.strategy.decide(ledger)
    _agree(not decisions, f"the strategy would have decided something: {str(decisions[:1])[:80]}")
    if ledger.touched:
        ledger.mark_asked()


def _check(ledger: LedgerState, now: float, *, whole: bool = False) -> None:
    """Check the indices of one ledger, then those of its parts."""
    running = [*ledger.behind, *ledger.current]
    workers, at_work = ledger.workers, ledger.running.keys()
    _agree(len(at_work) == len(running) and at_work <= workers, "somebody computes two things, or is not here")
    _agree(ledger.recalled <= {*running}, "something was recalled that does not run")
    own = Counter(ticket.worker for ticket in ledger.fresh)
    _agree(own == ledger.holding and all(ledger.holding.values()), "who handed in does not fit what is fresh")
    leaving = ledger.leaving.keys()
    _agree(leaving <= workers, "somebody is leaving who is not here")
    _agree(ledger.idle == workers - at_work - own.keys() - leaving, "who is idle does not fit who is at work")
    _agree(ledger.free == workers - at_work - leaving, "who is free does not fit who is at work")
    counts = ledger.counts
    _agree(counts.keys() == workers - leaving, "whose pieces are counted does not fit who is here")
    held = [*ledger.fresh.items(), *ledger.late.items(), *ledger.kept.items()]
    _agree(
        len({ticket for ticket, _ in held} | {*running}) == len(held) + len(running), "a piece of work is in two places"
    )
    _agree(all(0 <= done <= ticket.work.units for ticket, done in held), "more was done of a piece of work than it has")
    _agree(0 <= ledger.updated_at <= ledger.now <= now, "its times are in no order")
    _agree(all(alarm >= ledger.now for alarm in ledger.alarms), "an alarm did not ring")
    ages = {ledger.age(ticket) for ticket, _ in held} | {ledger.age(ticket) for ticket in running}
    _agree(all(0 <= age <= ledger.round for age in ages), "a piece of work is of a round yet to come")
    for speeds in (ledger.speeds, ledger.timing if whole else None):
        if speeds is not None:
            _agree(speeds.window >= 1, "speeds are measured over no pieces of work")
            _agree(all(size >= 1 for size, _ in speeds.former.values()), "a mini-batch had no samples")
            _agree(speeds.timed == at_work, "who is timed does not fit who is at work")
    if ledger.is_split or ledger.groups:
        _check_parts(ledger)


def _check_parts(ledger: LedgerState) -> None:
    parts = ledger.parts()
    numbers = [*ledger.part_of.values(), *ledger.moving.values()]
    _agree(all(number < len(parts) for number in numbers), "somebody belongs to a part that is not there")
    _agree(ledger.moving.keys() <= ledger.running.keys(), "somebody waits for nothing to change its part")
    for worker in ledger.workers:
        _agree(worker in parts[ledger.part_number(worker)].workers, f"worker {worker} is not in its part")
    _agree(sum(len(part.workers) for part in parts) == len(ledger.workers), "somebody is in two parts")
    for name, tickets in _INDICES.items():
        inside = Counter(ticket for part in parts for ticket in tickets(part))
        _agree(inside == Counter([*tickets(ledger)]), f"its parts do not have what the whole has ({name})")
    done = {t: units for part in parts for t, units in [*part.fresh.items(), *part.late.items(), *part.kept.items()]}
    _agree(done == {**ledger.fresh, **ledger.late, **ledger.kept}, "its parts have other units than the whole")
    _agree(all(part.alarms <= ledger.alarms for part in parts), "an alarm of a part would not ring")
    for part in parts:
        _check(part, ledger.now)


_INDICES: Mapping[str, Callable[[LedgerState], Iterable[Ticket]]] = {
    "running": lambda ledger: ledger.running.values(),
    "recalled": lambda ledger: ledger.recalled,
    "handed in": lambda ledger: ledger.handed_in,
    "kept": lambda ledger: ledger.kept.keys(),
}


def _tickets(ledger: LedgerState) -> list[Ticket]:
    return [*ledger.running.values(), *ledger.fresh, *ledger.late, *ledger.kept]


def _touch(ledger: LedgerState) -> None:
    """Let the strategy look at all parts again."""
    for number, part in enumerate(ledger.parts()):
        ledger.touched[number] = None
        _touch(part)


def _agree(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
