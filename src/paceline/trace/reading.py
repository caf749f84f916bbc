"""Reading the trace of a run, strictly: a line that no run has written is refused with ``ConfigError``."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO

from paceline.core.errors import ConfigError
from paceline.files import check_regular, open_named, open_regular
from paceline.trace.durations import seconds_a_mini_batch
from paceline.trace.format import DECODERS, FORMAT, LONGEST_LINE, MALFORMED, Fact, check_about
from paceline.trace.history import History, Observer, TicketTimes
from paceline.trace.recordings import is_recording, read_recording

PARSE = json.JSONDecoder().raw_decode  # a value and where it ends, in half the time of json.loads
LINE_ENDS = ("\n", "\r\n")


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
        return self.facts()

    def facts(self, *observers: Observer) -> Iterator[Fact]:
        """The events and instructions, in order, while observers are told of each before it is returned."""
        return self.facts_of(History(self.about, observers))

    def follow(self, *observers: Observer) -> History:
        """Go through the whole trace once, for observers only; what is known at its end."""
        history = History(self.about, observers)
        for _ in self.facts_of(history):
            pass
        return history

    def facts_of(self, history: History) -> Iterator[Fact]:
        """The facts, each of which a history at its beginning has followed."""
        lines = iter(self.lines())
        next(lines, "")  # what it is about: the history has read it
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
            except ConfigError:  # an observer's
                raise
            except MALFORMED as error:
                why = f" ({error})" if type(error) is ValueError else ""
                raise ConfigError(
                    f"line {number} of {self.source} cannot be understood: {_start_of(line)}{why}"
                ) from None
            yield fact

    def durations(self) -> Iterator[tuple[int, float]]:
        """Worker and seconds of each mini-batch, in the order of arrival, without transfers and relabelling."""
        reader = _InOrder()
        for _ in self.facts(reader):
            if reader.found:
                yield from reader.found
                reader.found.clear()


class _InOrder(Observer):
    """The durations that the last fact tells."""

    def __init__(self) -> None:
        self.found: list[tuple[int, float]] = []

    def arrived(self, times: TicketTimes) -> None:
        if (seconds := seconds_a_mini_batch(times)) is not None:
            self.found.extend(repeat((times.ticket.worker, seconds), times.ticket.work.mini_batches))


def _start_of(line: str) -> str:
    return repr(line[:60].rstrip())


def read_trace(path: Path | str) -> Trace:
    """Open the trace of a run: a file, the directory of a run, or one that ``paceline.record`` wrote."""
    path = Path(path)
    inside = path.is_dir()
    if inside and not (path / "trace.jsonl").exists() and is_recording(path):
        return Trace(read_recording(path).lines, str(path))
    file = path / "trace.jsonl" if inside else path
    if inside:
        check_regular(file)
    if not file.is_file():
        raise ConfigError(f"no trace at {file}: give a run's directory or its trace.jsonl")
    return Trace(lambda: lines_of(file, open_regular if inside else open_named), str(file))


def lines_of(file: Path, opening: Callable[[Path], BinaryIO] = open_regular) -> Iterator[str]:
    """The lines of a file, none of them read further than any run writes. By default no link is followed."""
    with TextIOWrapper(opening(file), encoding="utf-8", errors="replace", newline="\n") as opened:
        while line := opened.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE and not line.endswith("\n"):
                raise ConfigError(
                    f"{file} has a line of more than {LONGEST_LINE:,} characters: no run writes such a line"
                )
            yield line


def lines_until(file: Path, position: int) -> Iterator[str]:
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
