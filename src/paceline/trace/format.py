"""Facts as lines of a trace: the table in ``paceline.trace.record``; ``paceline.trace.reading`` is the way back."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from paceline.core.codec import plain_ticket
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
    Regroup,
    Remember,
    Start,
    Step,
    Ticket,
    WakeAt,
    Within,
)


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A contribution that was not finite and had no part in the step before."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Billed:
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


Fact = Event | Instruction | Spoiled | Billed | Computed


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
    return (
        (fact.ticket,) if isinstance(fact, Start | Halt | Drop | Recall | Arrived | Spoiled | Billed | Computed) else ()
    )


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
    serial, worker, version, (kind, units) = start.ticket
    return f'["start",{serial},{worker},{version},"{kind}",{units}]\n'


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


_ENCODERS: Mapping[type, Callable[[Any], str]] = {
    Arrived: lambda e: f'["arrived",{e.at!r},{e.ticket.serial},{e.done}]\n',
    Start: _encode_start,
    Step: _encode_step,
    Joined: lambda e: f'["joined",{e.at!r},{e.worker}]\n',
    Left: lambda e: f'["left",{e.at!r},{e.worker}]\n',
    Rang: lambda e: f'["rang",{e.at!r}]\n',
    Halt: lambda i: f'["halt",{i.ticket.serial}]\n',
    Drop: lambda i: f'["drop",{i.ticket.serial}]\n',
    Recall: lambda i: f'["recall",{i.ticket.serial}]\n',
    WakeAt: lambda i: f'["wake",{i.at!r}]\n',
    Spoiled: lambda i: f'["spoiled",{i.ticket.serial}]\n',
    Billed: lambda b: f'["billed",{b.ticket.serial},{b.download!r},{b.relabelling!r},{b.upload!r}]\n',
    Computed: lambda c: f'["computed",{c.ticket.serial},{c.seconds!r}]\n',
    Remember: _encode_remember,
    Regroup: _encode_regroup,
    Within: _encode_within,
}
