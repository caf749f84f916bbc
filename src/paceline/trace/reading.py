"""From the lines of a trace back to facts, strictly: a trace may come from anybody, and may be damaged.

``decode`` reads one line. A number is a number of the right kind and size, a text a text; what is longer or deeper than
any run writes is refused, before memory is taken for it. ``History`` then asks whether a fact can follow those before
it: the rules are those that the ledger had when the trace was written (``paceline.core.rules``), as far as a trace
tells. What is refused raises ``ValueError`` with the reason.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from paceline.core.codec import MOST_WORKERS, real, ticket_from
from paceline.core.messages import (
    Arrived,
    Drop,
    Event,
    Halt,
    Joined,
    Left,
    Rang,
    Recall,
    Regroup,
    Remember,
    Start,
    Step,
    Ticket,
    WakeAt,
    Within,
    Work,
)
from paceline.trace.format import Billed, Computed, Fact, Spoiled

MOST_SECONDS = 1e15  # thirty million years
MOST_UNITS = 1_000_000  # of one piece of work
MOST_DEEP = 64  # parts within parts
MOST_WEIGHT = 10**9
LONGEST_NAME = 1_000
LONGEST_LINE = 1 << 24  # characters; a step of a million workers takes half as many
_WEIGHT = re.compile(r"-?[0-9]{1,1000}(?:/[0-9]{1,1000})?")  # a float as an exact fraction can take 700
# what reading a line raises that no run has written
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def facts_from(value: Mapping[str, Any]) -> list[Fact]:
    """What ``plain_facts`` put aside."""
    tickets = {ticket.serial: ticket for ticket in map(ticket_from, value["tickets"])}
    return [decode(record, tickets) for record in value["facts"]]


def decode(record: list[Any], tickets: dict[int, Ticket]) -> Fact:
    """A fact from its line; ``tickets`` are those that were given out before, by serial number."""
    return DECODERS[record[0]](record, tickets)


def _time(at: Any) -> float:
    if not ((type(at) is float or type(at) is int) and 0 <= at <= MOST_SECONDS):
        raise ValueError(f"{str(at)[:40]!r} is no time")
    return float(at)


def _count(value: Any, most: int = 1 << 53) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no count up to {most:,}")
    return value


def _ticket(serial: Any, tickets: Mapping[int, Ticket]) -> Ticket:
    if type(serial) is not int or serial not in tickets:
        raise ValueError(f"{str(serial)[:40]!r} is no piece of work that was given out and is not settled")
    return tickets[serial]


def _arrived(record: Sequence[Any], tickets: dict[int, Ticket]) -> Arrived:
    _, at, serial, done = record
    return Arrived(_time(at), _ticket(serial, tickets), _count(done, MOST_UNITS))


def _start(record: Sequence[Any], tickets: dict[int, Ticket]) -> Start:
    _, serial, worker, version, kind, units = record
    if type(kind) is not str or len(kind) > LONGEST_NAME or not kind.isidentifier():
        raise ValueError(f"{str(kind)[:40]!r} is no kind of work")
    if _count(units, MOST_UNITS) < 1:
        raise ValueError("work of 0 units")
    worker = _count(worker, MOST_WORKERS - 1)
    ticket = tickets[serial] = Ticket(_count(serial), worker, _count(version), Work(kind, units))
    return Start(ticket)


def _step(record: Sequence[Any], tickets: dict[int, Ticket]) -> Step:
    _, by_weight, kept = record
    weights: dict[Ticket, Fraction] = {}
    named = 0
    for text, serials in by_weight.items():
        weight = _weight(text)
        named += len(serials)
        for serial in serials:
            weights[_ticket(serial, tickets)] = weight
    if len(weights) < named:
        raise ValueError("a piece of work is used twice in one step")
    if type(kept) is not list:
        raise ValueError("what is kept is a list")
    return Step(weights, tuple(_ticket(serial, tickets) for serial in kept))


@lru_cache(maxsize=4096)
def _weight(text: str) -> Fraction:
    if not _WEIGHT.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no weight")
    up, _, down = text.partition("/")
    weight = Fraction(int(up), int(down or 1))
    if abs(weight) > MOST_WEIGHT:
        raise ValueError(f"a weight of more than {MOST_WEIGHT:,}")
    return weight


def _billed(record: Sequence[Any], tickets: dict[int, Ticket]) -> Billed:
    _, serial, download, relabelling, upload = record
    return Billed(_ticket(serial, tickets), _time(download), _time(relabelling), _time(upload))


def _computed(record: Sequence[Any], tickets: dict[int, Ticket]) -> Computed:
    _, serial, seconds = record
    return Computed(_ticket(serial, tickets), _time(seconds))


def _remember(record: Sequence[Any], tickets: dict[int, Ticket]) -> Fact:
    _, parts, name, value = record
    if type(value) not in (int, float):
        raise ValueError(f"{str(value)[:40]!r} is no number to remember")
    return _within(parts, Remember(_text(name), value))


def _regroup(record: Sequence[Any], tickets: dict[int, Ticket]) -> Fact:
    _, parts, groups, why = record
    if type(groups) is not list or not all(type(group) is list for group in groups):
        raise ValueError("groups are lists of workers")
    numbers = tuple(tuple(_count(worker, MOST_WORKERS - 1) for worker in group) for group in groups)
    return _within(parts, Regroup(numbers, _text(why)))


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > LONGEST_NAME:
        raise ValueError(f"{str(value)[:40]!r} is no text of up to {LONGEST_NAME} characters")
    return value


def _within(parts: Any, decision: Remember | Regroup | Within) -> Remember | Regroup | Within:
    if type(parts) is not list or len(parts) > MOST_DEEP:
        raise ValueError(f"parts within parts are a list, at most {MOST_DEEP} deep")
    for part in reversed(parts):
        decision = Within(_count(part, MOST_WORKERS), decision)
    return decision


def _about_one(kind: Callable[[Ticket], Fact]) -> Callable[[Sequence[Any], dict[int, Ticket]], Fact]:
    def read(record: Sequence[Any], tickets: dict[int, Ticket]) -> Fact:
        _, serial = record
        return kind(_ticket(serial, tickets))

    return read


def _at_a_time(kind: Callable[[float], Fact]) -> Callable[[Sequence[Any], dict[int, Ticket]], Fact]:
    def read(record: Sequence[Any], tickets: dict[int, Ticket]) -> Fact:
        _, at = record
        return kind(_time(at))

    return read


def _of_worker(kind: Callable[[float, int], Fact]) -> Callable[[Sequence[Any], dict[int, Ticket]], Fact]:
    def read(record: Sequence[Any], tickets: dict[int, Ticket]) -> Fact:
        _, at, worker = record
        return kind(_time(at), _count(worker, MOST_WORKERS - 1))

    return read


DECODERS: Mapping[str, Callable[[list[Any], dict[int, Ticket]], Fact]] = {
    "arrived": _arrived,
    "start": _start,
    "step": _step,
    "joined": _of_worker(Joined),
    "left": _of_worker(Left),
    "rang": _at_a_time(Rang),
    "halt": _about_one(Halt),
    "drop": _about_one(Drop),
    "recall": _about_one(Recall),
    "wake": _at_a_time(WakeAt),
    "spoiled": _about_one(Spoiled),
    "billed": _billed,
    "computed": _computed,
    "remember": _remember,
    "regroup": _regroup,
}


def check_about(about: Mapping[str, Any]) -> None:
    """Refuse a first line whose numbers no run has."""
    if "workers" in about:
        _count(about["workers"], MOST_WORKERS)
    for name in ("transfer_seconds", "server_seconds"):
        if name in about and not 0 <= real(about[name]) <= MOST_SECONDS:
            raise ValueError(f"{name} is {about[name]}")


class History:
    """What is known of a run after some of its facts, as far as it takes to tell which facts can come next.

    ``tickets`` are those that may be named again. It grows with the workers and the work not yet settled only.
    """

    def __init__(self) -> None:
        self.tickets: dict[int, Ticket] = {}
        self._now = 0.0
        self._updates = 0
        self._next_serial = 0
        self._present: set[int] = set()
        self._running: dict[int, Ticket] = {}  # by worker
        self._recalled: set[int] = set()  # serial numbers, as in all that follows
        self._held: dict[int, int] = {}  # handed in and not settled: how many units
        self._stepped: set[int] = set()  # since the last event; one of them may turn out not to be finite
        self._settled: list[int] = []  # likewise
        self.follow: Mapping[type, Callable[[Any], None]] = {
            Arrived: self._arrived,
            Start: self._start,
            Step: self._step,
            Joined: self._joined,
            Left: self._left,
            Rang: self._event,
            Halt: self._halt,
            Drop: self._drop,
            Recall: self._recall,
            Spoiled: self._spoiled,
            Billed: self._check_runs,
            Computed: self._check_runs,
            WakeAt: self._nothing,
            Remember: self._nothing,
            Regroup: self._nothing,
            Within: self._nothing,
        }

    def _nothing(self, fact: Fact) -> None:
        """It can always come."""

    def _event(self, event: Event) -> None:
        at = event.at
        if at < self._now:
            raise ValueError(f"the time goes back from {self._now:g} to {at:g}")
        self._now = at
        if self._settled:
            tickets = self.tickets
            for serial in self._settled:
                tickets.pop(serial, None)
            self._settled.clear()
        if self._stepped:
            self._stepped.clear()

    def _arrived(self, fact: Arrived) -> None:
        self._event(fact)
        ticket, done = fact.ticket, fact.done
        if self._running.get(ticket.worker) is not ticket:
            raise ValueError(f"{ticket} arrives and does not run")
        if done != ticket.work.units and not (done < ticket.work.units and ticket.serial in self._recalled):
            raise ValueError(f"{ticket} arrives with {done} of {ticket.work.units} units, and was not recalled")
        del self._running[ticket.worker]
        if self._recalled:
            self._recalled.discard(ticket.serial)
        self._held[ticket.serial] = done

    def _joined(self, fact: Joined) -> None:
        self._event(fact)
        if fact.worker in self._present:
            raise ValueError(f"worker {fact.worker} joins and is here already")
        self._present.add(fact.worker)

    def _left(self, fact: Left) -> None:
        self._event(fact)
        if fact.worker not in self._present:
            raise ValueError(f"worker {fact.worker} leaves and is not here")
        self._present.remove(fact.worker)

    def _start(self, fact: Start) -> None:
        ticket = fact.ticket
        if ticket.serial < self._next_serial:
            raise ValueError(f"{ticket} is started twice")
        if ticket.worker not in self._present or ticket.worker in self._running:
            raise ValueError(f"{ticket} is given to worker {ticket.worker}, which is not here or not free")
        if ticket.version > self._updates:
            raise ValueError(f"{ticket} begins with version {ticket.version}, after {self._updates} updates")
        self._next_serial = ticket.serial + 1
        self._running[ticket.worker] = ticket

    def _step(self, fact: Step) -> None:
        weights, keep = fact.weights, fact.keep
        if not weights:
            raise ValueError("a step on nothing")
        held, used = self._held, [ticket.serial for ticket in weights]
        for serial in used:
            if not held.get(serial):
                raise ValueError(f"t{serial} is used, and was not handed in or is used up")
        self._stepped.update(used)
        if keep:
            kept = {ticket.serial for ticket in keep}
            if not kept <= {*used}:
                raise ValueError("what is kept was not used")
            used = [serial for serial in used if serial not in kept]
        for serial in used:
            del held[serial]
        self._settled += used
        self._updates += 1

    def _halt(self, fact: Halt) -> None:
        self._check_runs(fact)
        del self._running[fact.ticket.worker]
        self._recalled.discard(fact.ticket.serial)
        self._settled.append(fact.ticket.serial)

    def _drop(self, fact: Drop) -> None:
        if self._held.pop(fact.ticket.serial, None) is None:
            raise ValueError(f"{fact.ticket} is dropped, and was not handed in or is used up")
        self._settled.append(fact.ticket.serial)

    def _recall(self, fact: Recall) -> None:
        self._check_runs(fact)
        if fact.ticket.serial in self._recalled:
            raise ValueError(f"{fact.ticket} is recalled twice")
        self._recalled.add(fact.ticket.serial)

    def _check_runs(self, fact: Halt | Recall | Billed | Computed) -> None:
        if self._running.get(fact.ticket.worker) is not fact.ticket:
            raise ValueError(f"{fact.ticket} does not run")

    def _spoiled(self, fact: Spoiled) -> None:
        if fact.ticket.serial not in self._stepped:
            raise ValueError(f"{fact.ticket} was in no update since the last event")
