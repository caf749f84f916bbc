"""The facts of a trace, and the line of JSON that each of them is.

One JSON array a line, after a first line that describes the run:

    ["joined", at, worker]                 ["start", ticket, worker, version, kind, units, samples]
    ["left", at, worker]                   ["halt", ticket]
    ["leaving", at, worker, by]
    ["arrived", at, ticket, done]          ["drop", ticket]
    ["rang", at]                           ["recall", ticket]
    ["step", {weight: [tickets]}, [kept]]  ["wake", at]
    ["remember", [parts], name, value]     ["spoiled", ticket]
    ["billed", ticket, download, relabelling, upload]
    ["regroup", [parts], [[workers], ...], why]
    ["resize", [[worker, samples], ...], why]
    ["computed", ticket, seconds]
    ["machines", [[workers], ...], own]
    ["reported", at, {name: number}]       ["fresh", ticket]

Instructions follow at the time of the event before them. A ``start`` has ``samples`` only where workers have
mini-batches of sizes of their own, and ``resize`` says which from now on, and why. ``spoiled`` (``NonFinite``) says
that the contribution was not finite, and was left out of the step before. ``billed`` (``WorkCost``) says which part of
the work that was just started does not go into training, in seconds, where that differs from ticket to ticket; else it
is ``transfer_seconds`` (first line) each way. On simulated machines it follows when the model is there. ``regroup``
says which workers each part has from now on, and why. ``computed`` is written by a profile: what the worker itself took
for the work that is about to arrive. ``reported`` is what learning told of the step before, where the strategy asks for
it. ``fresh`` (``FreshState``) says that the worker of work that was just started has lost its optimizer's state, and
begins it anew: where that stays with workers. ``machines`` (``MachineWorkers``) says which workers share a machine
from now on, where there are several: gradients are added up by machine. ``own`` is the server's own one, or -1.

Reading is strict, since a trace may come from anybody and may be damaged. A number is a number of the right kind and
size, a text a text; what is longer or deeper than any run writes is refused with ``ValueError``, before memory is taken
for it. Whether a fact can follow those before it is the question of ``paceline.trace.history``.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from paceline.core.codec import MOST_WORKERS, plain_ticket, real, ticket_from
from paceline.core.messages import (
    REPORTS,
    Arrived,
    Drop,
    Event,
    Halt,
    Instruction,
    Joined,
    Leaving,
    Left,
    Rang,
    Recall,
    Regroup,
    Remember,
    Reported,
    Resize,
    Start,
    Step,
    Ticket,
    WakeAt,
    Within,
    Work,
)

FORMAT = 1
MOST_SECONDS = 1e15  # thirty million years
MOST_UNITS = 1_000_000  # of one piece of work
MOST_SAMPLES = 1 << 40  # of one mini-batch
MOST_DEEP = 64  # parts within parts
MOST_WEIGHT = 10**9
LONGEST_NAME = 1_000
LONGEST_LINE = 1 << 24  # characters; a step of a million workers takes half as many
_WEIGHT = re.compile(r"-?[0-9]{1,1000}(?:/[0-9]{1,1000})?")  # a float as an exact fraction can take 700
# what reading a line raises that no run has written
MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A contribution that was not finite and had no part in the step before."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class WorkCost:
    """What a piece of work takes besides training, in seconds."""

    ticket: Ticket
    download: float
    relabelling: float
    upload: float


@dataclass(frozen=True, slots=True)
class Computed:
    """What a worker itself took for a piece of work that is about to arrive, in seconds: the rest was on the way."""

    ticket: Ticket
    seconds: float


@dataclass(frozen=True, slots=True)
class MachineWorkers:
    """Which workers share a machine from now on, and which machine is the server's own (-1: none of them)."""

    workers: tuple[tuple[int, ...], ...]
    own: int = -1


@dataclass(frozen=True, slots=True)
class FreshState:
    """The worker of a piece of work begins it with a fresh optimizer, having lost the state of its own."""

    ticket: Ticket


Fact = Event | Instruction | NonFinite | WorkCost | Computed | FreshState | MachineWorkers


def encode(facts: Iterable[Fact]) -> str:
    """One line for each fact."""
    encoders = _ENCODERS
    return "".join([encoders[type(fact)](fact) for fact in facts])


def plain_facts(facts: Iterable[Fact]) -> dict[str, Any]:
    """A few facts, and the tickets that they name, as plain values."""
    facts = list(facts)
    named = {ticket.serial: plain_ticket(ticket) for fact in facts for ticket in tickets_of(fact)}
    return {"tickets": list(named.values()), "facts": [json.loads(encode([fact])) for fact in facts]}


def tickets_of(fact: Fact) -> Collection[Ticket]:
    """The tickets that a fact names."""
    if isinstance(fact, Step):
        return fact.weights.keys()
    about_one = Start | Halt | Drop | Recall | Arrived | NonFinite | WorkCost | Computed | FreshState
    return (fact.ticket,) if isinstance(fact, about_one) else ()


def _encode_step(step: Step) -> str:
    weights, keep = step.weights, step.keep
    if len(weights) == 1 and not keep:
        for ticket, weight in weights.items():
            return f'["step",{{"{weight}":[{ticket.serial}]}},[]]\n'
    by_weight: dict[tuple[int, int], list[int]] = {}
    last: Fraction | None = None
    serials: list[int] = []
    for ticket, weight in weights.items():
        if weight is not last:
            serials = by_weight.setdefault(weight.as_integer_ratio(), [])
            last = weight
        serials.append(ticket.serial)
    encoded = ",".join(f'"{up}/{down}":{_numbers(serials)}' for (up, down), serials in by_weight.items())
    return f'["step",{{{encoded}}},{_numbers([ticket.serial for ticket in keep])}]\n'


def _numbers(numbers: Sequence[int]) -> str:
    return "[" + ",".join(map(str, numbers)) + "]"


def _encode_start(start: Start) -> str:
    serial, worker, version, (kind, units, samples) = start.ticket
    return f'["start",{serial},{worker},{version},"{kind}",{units}{f",{samples}" if samples else ""}]\n'


def _encode_within(within: Within) -> str:
    parts: list[int] = []
    decision: Any = within
    while isinstance(decision, Within):
        parts.append(decision.part)
        decision = decision.decision
    return (_encode_remember if isinstance(decision, Remember) else _encode_regroup)(decision, parts)


def _encode_remember(remember: Remember, parts: Sequence[int] = ()) -> str:
    return json.dumps(["remember", list(parts), remember.name, remember.value]) + "\n"


def _encode_regroup(regroup: Regroup, parts: Sequence[int] = ()) -> str:
    return json.dumps(["regroup", list(parts), regroup.groups, regroup.why]) + "\n"


def _encode_resize(resize: Resize) -> str:
    return json.dumps(["resize", [[worker, size] for worker, size in resize.sizes.items()], resize.why]) + "\n"


def _encode_reported(reported: Reported) -> str:
    return json.dumps(["reported", reported.at, dict(reported.numbers)]) + "\n"


_ENCODERS: Mapping[type, Callable[[Any], str]] = {
    Arrived: lambda e: f'["arrived",{e.at!r},{e.ticket.serial},{e.done}]\n',
    Start: _encode_start,
    Step: _encode_step,
    Joined: lambda e: f'["joined",{e.at!r},{e.worker}]\n',
    Left: lambda e: f'["left",{e.at!r},{e.worker}]\n',
    Leaving: lambda e: f'["leaving",{e.at!r},{e.worker},{e.by!r}]\n',
    Rang: lambda e: f'["rang",{e.at!r}]\n',
    Reported: _encode_reported,
    Halt: lambda i: f'["halt",{i.ticket.serial}]\n',
    Drop: lambda i: f'["drop",{i.ticket.serial}]\n',
    Recall: lambda i: f'["recall",{i.ticket.serial}]\n',
    WakeAt: lambda i: f'["wake",{i.at!r}]\n',
    NonFinite: lambda i: f'["spoiled",{i.ticket.serial}]\n',
    WorkCost: lambda b: f'["billed",{b.ticket.serial},{b.download!r},{b.relabelling!r},{b.upload!r}]\n',
    Computed: lambda c: f'["computed",{c.ticket.serial},{c.seconds!r}]\n',
    MachineWorkers: lambda m: f'["machines",{json.dumps(m.workers, separators=(",", ":"))},{m.own}]\n',
    FreshState: lambda f: f'["fresh",{f.ticket.serial}]\n',
    Remember: _encode_remember,
    Regroup: _encode_regroup,
    Resize: _encode_resize,
    Within: _encode_within,
}


def facts_from(value: Mapping[str, Any]) -> list[Fact]:
    """The facts that ``plain_facts`` made plain values of."""
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


def _leaving(record: Sequence[Any], tickets: dict[int, Ticket]) -> Leaving:
    _, at, worker, by = record
    if _time(by) < _time(at):
        raise ValueError("it is to be gone before it says so")
    return Leaving(_time(at), _count(worker, MOST_WORKERS - 1), _time(by))


def _start(record: Sequence[Any], tickets: dict[int, Ticket]) -> Start:
    _, serial, worker, version, kind, units, *samples = record
    if type(kind) is not str or len(kind) > LONGEST_NAME or not kind.isidentifier():
        raise ValueError(f"{str(kind)[:40]!r} is no kind of work")
    if _count(units, MOST_UNITS) < 1:
        raise ValueError("work of 0 units")
    if samples and (len(samples) > 1 or _count(samples[0], MOST_SAMPLES) < 1):
        raise ValueError("work on no samples")
    worker = _count(worker, MOST_WORKERS - 1)
    ticket = tickets[serial] = Ticket(_count(serial), worker, _count(version), Work(kind, units, *samples))
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


def _work_cost(record: Sequence[Any], tickets: dict[int, Ticket]) -> WorkCost:
    _, serial, download, relabelling, upload = record
    return WorkCost(_ticket(serial, tickets), _time(download), _time(relabelling), _time(upload))


def _computed(record: Sequence[Any], tickets: dict[int, Ticket]) -> Computed:
    _, serial, seconds = record
    return Computed(_ticket(serial, tickets), _time(seconds))


def _machines(record: Sequence[Any], tickets: dict[int, Ticket]) -> MachineWorkers:
    _, machines, own = record
    if type(own) is not int or not -1 <= own < len(machines):
        raise ValueError(f"{str(own)[:40]!r} is none of {len(machines)} machines")
    return MachineWorkers(_groups(machines), own)


def _groups(groups: Any) -> tuple[tuple[int, ...], ...]:
    if type(groups) is not list or not all(type(group) is list for group in groups):
        raise ValueError("groups are lists of workers")
    return tuple(tuple(_count(worker, MOST_WORKERS - 1) for worker in group) for group in groups)


def _remember(record: Sequence[Any], tickets: dict[int, Ticket]) -> Fact:
    _, parts, name, value = record
    if type(value) not in (int, float):
        raise ValueError(f"{str(value)[:40]!r} is no number to remember")
    return _within(parts, Remember(_text(name), value))


def _regroup(record: Sequence[Any], tickets: dict[int, Ticket]) -> Fact:
    _, parts, groups, why = record
    return _within(parts, Regroup(_groups(groups), _text(why)))


def _resize(record: Sequence[Any], tickets: dict[int, Ticket]) -> Resize:
    _, pairs, why = record
    sizes = {_count(worker, MOST_WORKERS - 1): _count(size, MOST_SAMPLES) for worker, size in pairs}
    if len(sizes) < len(pairs) or not all(sizes.values()):
        raise ValueError("each worker has one size, and at least one sample")
    return Resize(sizes, _text(why))


def _reported(record: Sequence[Any], tickets: dict[int, Ticket]) -> Reported:
    _, at, numbers = record
    if type(numbers) is not dict or not numbers.keys() <= REPORTS.keys():
        raise ValueError(f"{str(numbers)[:40]!r} are no numbers of an update")
    return Reported(_time(at), {name: real(number) for name, number in numbers.items()})


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
    "leaving": _leaving,
    "rang": _at_a_time(Rang),
    "reported": _reported,
    "halt": _about_one(Halt),
    "drop": _about_one(Drop),
    "recall": _about_one(Recall),
    "wake": _at_a_time(WakeAt),
    "spoiled": _about_one(NonFinite),
    "fresh": _about_one(FreshState),
    "billed": _work_cost,
    "computed": _computed,
    "machines": _machines,
    "remember": _remember,
    "regroup": _regroup,
    "resize": _resize,
}


def check_about(about: Mapping[str, Any]) -> None:
    """Refuse a first line whose numbers no run has."""
    if "workers" in about:
        _count(about["workers"], MOST_WORKERS)
    if type(notes := about.get("notes", [])) is not list or not all(type(note) is str for note in notes):
        raise ValueError("notes are a list of texts")
    if "workers_a_machine" in about and _count(about["workers_a_machine"], MOST_WORKERS) < 1:
        raise ValueError("a machine has no workers")
    _count(about.get("wire_bytes", 0))
    if type(about.get("machines", {})) is not dict:
        raise ValueError("machines are a table")
    if type(prices := about.get("prices", [])) is not list or not all(real(price) >= 0 for price in prices):
        raise ValueError("prices are a list of numbers of at least 0")
    for name in ("transfer_seconds", "server_seconds"):
        if name in about and not 0 <= real(about[name]) <= MOST_SECONDS:
            raise ValueError(f"{name} is {about[name]}")
