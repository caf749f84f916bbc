"""The record of a run: every event, and every instruction that followed it, in order.

One JSON array a line, after a first line that describes the run. Lines are handed to the operating system as things
happen: what was written survives the death of the process, and a last line that was torn is passed over when reading.

    ["joined", at, worker]                 ["start", ticket, worker, version, kind, units]
    ["left", at, worker]                   ["halt", ticket]
    ["arrived", at, ticket, done]          ["drop", ticket]
    ["rang", at]                           ["recall", ticket]
    ["step", {weight: [tickets]}, [kept]]  ["wake", at]
    ["remember", [parts], name, value]     ["spoiled", ticket]
    ["billed", ticket, download, relabelling, upload]

Instructions follow at the time of the event before them. ``spoiled`` says that the contribution was not finite, and was
left out of the step before. ``billed`` says what part of a piece of work that was just started does not go into
training, in seconds, where that differs from piece to piece; else it is ``transfer_seconds`` (first line) each way.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError, PacelineError
from paceline.core.facts import (
    Arrived,
    Drop,
    Event,
    Halt,
    Instruction,
    Joined,
    Left,
    Rang,
    Recall,
    Remember,
    Start,
    Step,
    Ticket,
    WakeAt,
    Within,
    Work,
)

FORMAT = 1
WRITTEN_AT_ONCE = 10_000  # facts of a trace in memory, which is quicker than one by one


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


Fact = Event | Instruction | Spoiled | Billed


class TraceWriter:
    """Writes a trace to a file, or into memory."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
        self._path = path
        self._text: list[str] = []
        self._facts: list[Fact] = []  # not written yet; only of a trace in memory
        self._write(json.dumps({"paceline_trace": FORMAT, **about}, sort_keys=True) + "\n")

    def record(self, events: Iterable[Event], instructions: Iterable[Instruction]) -> None:
        if self._file is None:
            facts = self._facts
            facts.extend(events)
            facts.extend(instructions)
            if len(facts) >= WRITTEN_AT_ONCE:
                self._write_facts()
        else:
            self._facts = [*events, *instructions]
            self._write_facts()

    def spoiled(self, tickets: Iterable[Ticket]) -> None:
        self._facts.extend(Spoiled(ticket) for ticket in tickets)
        self._write_facts()

    def billed(self, billed: Billed) -> None:
        self._facts.append(billed)
        if self._file is not None:
            self._write_facts()

    def _write_facts(self) -> None:
        encoders = _ENCODERS
        self._write("".join([encoders[type(fact)](fact) for fact in self._facts]))
        self._facts.clear()

    def _write(self, text: str) -> None:
        if self._file is None:
            self._text.append(text)
        else:
            data = text.encode()
            while data:
                data = data[os.write(self._file, data) :]

    def close(self) -> "Trace":
        """End writing; what was written, to read."""
        self._write_facts()
        if self._file is None:
            return Trace(lambda: (line for chunk in self._text for line in chunk.splitlines()))
        os.close(self._file)
        assert self._path is not None
        return read_trace(self._path)


@dataclass(frozen=True)
class Trace:
    """A recorded run. Iterating over it gives its events and instructions again."""

    lines: Callable[[], Iterable[str]]

    @property
    def about(self) -> Mapping[str, Any]:
        """What the first line says of the run."""
        return _about(next(iter(self.lines()), ""))

    def __iter__(self) -> Iterator[Fact]:
        lines = iter(self.lines())
        _about(next(lines, ""))
        tickets: dict[int, Ticket] = {}
        torn: str | None = None
        for number, line in enumerate(lines, start=2):
            if torn is not None:
                raise PacelineError(f"line {number - 1} of the trace is broken: {torn[:60]!r}")
            try:
                record = json.loads(line)
            except ValueError:
                torn = line  # allowed once, at the very end
                continue
            try:
                fact = _decode(record, tickets)
            except (KeyError, ValueError, TypeError):
                raise PacelineError(f"line {number} of the trace cannot be understood: {line[:60]!r}") from None
            yield fact

    def durations(self) -> Iterator[tuple[int, float]]:
        """Worker and seconds of each piece of work that was computed to its end, without transfers and relabelling."""
        transfers = 2 * self.about["transfer_seconds"]
        started: dict[Ticket, float] = {}
        besides: dict[Ticket, float] = {}
        now = 0.0
        for fact in self:
            if isinstance(fact, Event):
                now = fact.at
            if isinstance(fact, Start):
                started[fact.ticket] = now
            elif isinstance(fact, Billed):
                besides[fact.ticket] = fact.download + fact.relabelling + fact.upload
            elif isinstance(fact, Halt):
                started.pop(fact.ticket, None)
                besides.pop(fact.ticket, None)
            elif isinstance(fact, Arrived):
                seconds = fact.at - started.pop(fact.ticket) - besides.pop(fact.ticket, transfers)
                if fact.done == fact.ticket.work.units:
                    yield fact.ticket.worker, seconds


def read_trace(path: Path | str) -> Trace:
    """Open the trace of a run: a file, or the directory of a run."""
    path = Path(path)
    file = path / "trace.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"no trace at {file}: give a run's directory or its trace.jsonl")
    return Trace(lambda: _lines(file))


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8", errors="replace") as opened:
        yield from opened


def _about(line: str) -> Mapping[str, Any]:
    try:
        about = json.loads(line)
        version = about["paceline_trace"]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"not a Paceline trace: it begins with {line[:40]!r}") from None
    if version != FORMAT:
        raise ConfigError(f"the trace has format {version}; this version of Paceline reads format {FORMAT}")
    assert isinstance(about, dict)
    return about


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
    return _encode_remember(decision, parts)


def _encode_remember(remember: Remember, parts: Sequence[int] = ()) -> str:
    return json.dumps(["remember", list(parts), remember.name, remember.value]) + "\n"


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
    Remember: _encode_remember,
    Within: _encode_within,
}


def _decode(record: list[Any], tickets: dict[int, Ticket]) -> Fact:
    match record:
        case ["arrived", at, serial, done]:
            return Arrived(at, tickets[serial], done)
        case ["start", serial, worker, version, kind, units]:
            tickets[serial] = Ticket(serial, worker, version, Work(kind, units))
            return Start(tickets[serial])
        case ["step", by_weight, kept]:
            weights = {tickets[n]: weight for text, ns in by_weight.items() for weight in [Fraction(text)] for n in ns}
            return Step(weights, tuple(tickets[serial] for serial in kept))
        case ["joined", at, worker]:
            return Joined(at, worker)
        case ["left", at, worker]:
            return Left(at, worker)
        case ["rang", at]:
            return Rang(at)
        case ["halt", serial]:
            return Halt(tickets[serial])
        case ["drop", serial]:
            return Drop(tickets[serial])
        case ["recall", serial]:
            return Recall(tickets[serial])
        case ["wake", at]:
            return WakeAt(at)
        case ["spoiled", serial]:
            return Spoiled(tickets[serial])
        case ["billed", serial, download, relabelling, upload]:
            return Billed(tickets[serial], download, relabelling, upload)
        case ["remember", parts, name, value]:
            decision: Remember | Within = Remember(name, value)
            for part in reversed(parts):
                decision = Within(part, decision)
            return decision
    raise ValueError(record)
