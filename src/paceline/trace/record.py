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
    ["regroup", [parts], [[workers], ...], why]
    ["computed", ticket, seconds]

Instructions follow at the time of the event before them. ``spoiled`` says that the contribution was not finite, and was
left out of the step before. ``billed`` says what part of a piece of work that was just started does not go into
training, in seconds, where that differs from piece to piece; else it is ``transfer_seconds`` (first line) each way.
``regroup`` says which workers each part has from now on, and why. ``computed`` is written by a profile: what the worker
itself took for a piece of work that is about to arrive.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.codec import whole
from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived, Event, Halt, Instruction, Start, Ticket
from paceline.files import NO_LINK, cannot_write, check_regular, open_regular, writing
from paceline.trace.format import Billed, Computed, Fact, Spoiled, encode
from paceline.trace.reading import DECODERS, LONGEST_LINE, MALFORMED, History, check_about

__all__ = ["Billed", "Computed", "Fact", "Spoiled", "Trace", "TraceWriter", "read_trace"]
FORMAT = 1
WRITTEN_AT_ONCE = 10_000  # facts of a trace in memory, which is quicker than one by one
PARSE = json.JSONDecoder().raw_decode  # a value and where it ends, in half the time of json.loads
LINE_ENDS = ("\n", "\r\n")


class TraceWriter:
    """Writes a trace to a file, or into memory.

    With ``goes_on`` the file is that of a run to be resumed: it stays as it is until ``cut``.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any], *, goes_on: bool = False) -> None:
        self._path = path
        self._text: list[str] = []
        self._facts: list[Fact] = []  # not written yet; only of a trace in memory
        self._position = 0
        first = json.dumps({"paceline_trace": FORMAT, **about}, sort_keys=True) + "\n"
        if goes_on:
            assert path is not None
            self._file: int | None = self._open_again(path, first)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | NO_LINK
        with writing(path or "trace"):
            self._file = None if path is None else os.open(path, flags, 0o644)
        self._write(first)

    def _open_again(self, path: Path, first: str) -> int:
        recorded = next(iter(_lines(path)), "") if path.is_file() else ""
        if recorded != first:
            raise ConfigError(f"cannot go on with {path}: it begins with {recorded[:70]!r}, not with {first[:70]!r}")
        return os.open(path, os.O_WRONLY | os.O_APPEND | NO_LINK)

    def state(self) -> dict[str, Any]:
        """How much is written, and will be there whatever happens to the machine."""
        assert self._file is not None
        with writing(self._path or "trace"):
            os.fsync(self._file)
        return {"bytes": self._position}

    def restore(self, state: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._position, there = whole(state["bytes"]), os.fstat(self._file).st_size
        if self._position > there:
            raise ConfigError(f"trace.jsonl has {there} bytes, and {self._position} when the checkpoint was made")

    def check(self) -> None:
        """Refuse to go on with a record that is damaged, up to the state that was restored."""
        assert self._path is not None
        path = self._path
        for _ in Trace(lambda: _lines_until(path, self._position), str(path)):
            pass

    def cut(self) -> None:
        """Forget what was written after the state that was restored."""
        assert self._file is not None
        os.ftruncate(self._file, self._position)

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

    def note(self, fact: Billed | Computed) -> None:
        """What else a crew tells of a piece of work."""
        self._facts.append(fact)
        if self._file is not None:
            self._write_facts()

    def _write_facts(self) -> None:
        self._write(encode(self._facts))
        self._facts.clear()

    def _write(self, text: str) -> None:
        if self._file is None:
            self._text.append(text)
        else:
            data = text.encode()
            self._position += len(data)
            try:
                while data:
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                raise cannot_write(self._path or "trace", error) from None

    def release(self) -> None:
        """Let go of the file, also of a run that came to grief."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def close(self) -> "Trace":
        """End writing; what was written, to read."""
        self._write_facts()
        if self._path is None:
            return Trace(lambda: (line for chunk in self._text for line in chunk.splitlines()))
        self.release()
        return read_trace(self._path)


@dataclass(frozen=True)
class Trace:
    """A recorded run. Iterating over it gives its events and instructions again.

    ``source`` names it in messages. A line that no run has written is refused with ``ConfigError``.
    """

    lines: Callable[[], Iterable[str]]
    source: str = "the trace"

    @property
    def about(self) -> Mapping[str, Any]:
        """What the first line says of the run."""
        return _about(next(iter(self.lines()), ""), self.source)

    def __iter__(self) -> Iterator[Fact]:
        lines = iter(self.lines())
        _about(next(lines, ""), self.source)
        history = History()
        tickets, follow, decoders = history.tickets, history.follow, DECODERS
        torn: str | None = None
        for number, line in enumerate(lines, start=2):
            if torn is not None:
                raise ConfigError(f"line {number - 1} of {self.source} is broken: {torn!r}")
            try:
                record, end = PARSE(line)
            except (ValueError, RecursionError):
                torn = line[:60]  # allowed once, at the very end
                continue
            try:
                fact = decoders[record[0]](record, tickets)
                follow[type(fact)](fact)
                if end < len(line) and line[end:] not in LINE_ENDS:
                    raise ValueError("something follows it")
            except MALFORMED as error:
                why = f" ({error})" if type(error) is ValueError else ""
                raise ConfigError(
                    f"line {number} of {self.source} cannot be understood: {_start_of(line)}{why}"
                ) from None
            yield fact

    def durations(self) -> Iterator[tuple[int, float]]:
        """Worker and seconds of each piece of work that was computed to its end, without transfers and relabelling."""
        transfers = 2 * self.about.get("transfer_seconds", 0.0)
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


def _start_of(line: str) -> str:
    return repr(line[:60].rstrip())


def read_trace(path: Path | str) -> Trace:
    """Open the trace of a run: a file, or the directory of a run."""
    path = Path(path)
    inside = path.is_dir()
    file = path / "trace.jsonl" if inside else path
    if inside:
        check_regular(file)
    if not file.is_file():
        raise ConfigError(f"no trace at {file}: give a run's directory or its trace.jsonl")
    return Trace(lambda: _lines(file), str(file))


def _lines(file: Path) -> Iterator[str]:
    """The lines of a file, none of them read further than any run writes."""
    with file.open(encoding="utf-8", errors="replace", newline="\n") as opened:
        while line := opened.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE and not line.endswith("\n"):
                raise ConfigError(
                    f"{file} has a line of more than {LONGEST_LINE:,} characters: no run writes such a line"
                )
            yield line


def _lines_until(file: Path, position: int) -> Iterator[str]:
    """The lines before a position, and one more that can always follow: so none of them may be torn."""
    with open_regular(file) as opened:
        while position > 0 and (line := opened.readline(min(position, LONGEST_LINE))):
            position -= len(line)
            yield line.decode(errors="replace")
    yield '["wake",0.0]\n'


def _about(line: str, source: str = "the trace") -> Mapping[str, Any]:
    try:
        about = json.loads(line)
        version = about["paceline_trace"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ConfigError(f"{source} is not a Paceline trace: it begins with {line[:40]!r}") from None
    if version != FORMAT:
        raise ConfigError(f"{source} has format {str(version)[:20]}; this version of Paceline reads format {FORMAT}")
    assert isinstance(about, dict)
    try:
        check_about(about)
    except MALFORMED as error:
        raise ConfigError(f"line 1 of {source} cannot be understood: {error}") from None
    return about
