"""Whether a ledger that was read from a file can be one that a coordinator left.

Each index of a ledger follows from what happened, so they agree with each other, the parts with the whole, and the
strategy, which was asked until it had nothing more to say, has nothing to say now. A forged ledger that passes may be
another run's, but it cannot bring a run into a state that has no name. What does not agree raises ``ValueError``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from paceline.core.coordinator import Coordinator
from paceline.core.ledger import Ledger
from paceline.core.messages import Ticket


def check_coordinator(coordinator: Coordinator) -> None:
    """Check the whole ledger, its parts, and that the strategy is quiet."""
    ledger = coordinator.ledger
    tickets = _tickets(ledger)
    serials = {ticket.serial for ticket in tickets}
    _agree(len(serials) == len(tickets), "two pieces of work have one number")
    _agree(max(serials, default=-1) < coordinator._issued, "a piece of work was never given out")
    _agree(all(ticket.version <= ledger.round for ticket in tickets), "a piece of work is of a model yet to come")
    _agree(all(ticket.work.units >= 1 for ticket in tickets), "a piece of work is of no units")
    _check(ledger, ledger.now)
    _touch(ledger)
    decisions = coordinator.strategy.decide(ledger)
    _agree(not decisions, f"the strategy would have decided something: {str(decisions[:1])[:80]}")
    if ledger._touched:
        ledger._quiet()


def _check(ledger: Ledger, now: float) -> None:
    """Check the indices of one ledger, then those of its parts."""
    running = [*ledger._behind, *ledger._current]
    workers, at_work = ledger._workers.keys(), ledger._running.keys()
    _agree(len(at_work) == len(running) and at_work <= workers, "somebody computes two things, or is not here")
    _agree({*ledger._recalled} <= {*running}, "something was recalled that does not run")
    own = Counter(ticket.worker for ticket in ledger._fresh)
    _agree(own == ledger._holding and all(ledger._holding.values()), "who handed in does not fit what is fresh")
    _agree(ledger._idle.keys() == workers - at_work - own.keys(), "who is idle does not fit who is at work")
    held = [*ledger._fresh.items(), *ledger._late.items(), *ledger._kept.items()]
    _agree(
        len({ticket for ticket, _ in held} | {*running}) == len(held) + len(running), "a piece of work is in two places"
    )
    _agree(all(0 <= done <= ticket.work.units for ticket, done in held), "more was done of a piece of work than it has")
    _agree(0 <= ledger.updated_at <= ledger.now <= now, "its times are in no order")
    _agree(all(alarm >= ledger.now for alarm in ledger._alarms), "an alarm did not ring")
    if ledger._pace is not None:
        _agree(ledger._pace.window >= 1, "speeds are measured over no pieces of work")
        _agree(ledger._pace._began.keys() == at_work, "who is timed does not fit who is at work")
    if ledger._parts or ledger._groups:
        _check_parts(ledger)


def _check_parts(ledger: Ledger) -> None:
    parts = ledger._parts
    numbers = [*ledger._part_of.values(), *ledger._moving.values()]
    _agree(all(number < len(parts) for number in numbers), "somebody belongs to a part that is not there")
    _agree(ledger._moving.keys() <= ledger._running.keys(), "somebody waits for nothing to change its part")
    for worker in ledger._workers:
        _agree(worker in parts[ledger._part_number(worker)]._workers, f"worker {worker} is not in its part")
    _agree(sum(len(part._workers) for part in parts) == len(ledger._workers), "somebody is in two parts")
    for whole, name in (
        ([*ledger._running.values()], "_running"),
        ([*ledger._recalled], "_recalled"),
        ([*ledger._kept], "_kept"),
    ):
        inside = [ticket for part in parts for ticket in _values(getattr(part, name))]
        _agree(Counter(inside) == Counter(whole), f"its parts do not have what the whole has ({name[1:]})")
    unused = [ticket for part in parts for ticket in part._handed_in]
    _agree(Counter(unused) == Counter([*ledger._handed_in]), "its parts do not have what was handed in")
    done = {t: units for part in parts for t, units in [*part._fresh.items(), *part._late.items(), *part._kept.items()]}
    _agree(done == {**ledger._fresh, **ledger._late, **ledger._kept}, "its parts have other units than the whole")
    _agree(all(part._alarms.keys() <= ledger._alarms.keys() for part in parts), "an alarm of a part would not ring")
    for part in parts:
        _check(part, ledger.now)


def _values(index: Mapping[Ticket, object] | Mapping[int, Ticket]) -> Iterable[Ticket]:
    return [value if isinstance(value, Ticket) else key for key, value in index.items()]  # type: ignore[misc]


def _tickets(ledger: Ledger) -> list[Ticket]:
    return [*ledger._running.values(), *ledger._fresh, *ledger._late, *ledger._kept]


def _touch(ledger: Ledger) -> None:
    """Let the strategy look at all parts again."""
    for number, part in enumerate(ledger._parts):
        ledger._touched[number] = None
        _touch(part)


def _agree(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
