"""Recordings of other training loops (``paceline.record``), read as the trace of one synchronous run.

A directory holds a file for each worker, ``worker-0.jsonl`` and so on. Its first line describes worker, host and clock;
each other line is a step, in seconds of the worker's own clock since it opened the file:

    [began, ended, samples, waited, exchanged]

``samples``, ``waited`` and ``exchanged`` (when the exchange of gradients ended) are null where the loop did not tell.
The last line is ["closed"], or ["left open"]; it is missing if the process was killed, and a torn line before it is
passed over.

An update is a step with an exchange, and the steps without one before it (gradient accumulation). What a worker took
for it is the time since the end of its update before, data loading included, less what it waited. Both are differences
on one clock, so durations do not depend on how well the clocks of machines agree. What the worker that waited least
spent in the exchange is taken for the time of the messages, and counts for everybody.
"""

import json
import math
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from paceline.core.codec import MOST_WORKERS, real, whole
from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived, Joined, Start, Step, Ticket, Work, mean
from paceline.files import check_regular, is_locked, lock, open_regular, unlock
from paceline.trace.clocks import ClockMarks, clock_notes, disagreement
from paceline.trace.format import FORMAT as TRACE_FORMAT
from paceline.trace.format import LONGEST_LINE, LONGEST_NAME, MALFORMED, MOST_SECONDS, Computed, Fact, encode

FORMAT = 1
CLOSED, LEFT_OPEN = "closed", "left open"
NAME = re.compile(r"worker-(\d{1,7})\.jsonl")
UNKNOWN = math.nan


def file_of(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.jsonl"


def hold(file: int) -> Callable[[], None]:
    """Mark an open file as being written, until its process ends or the function that is returned is called."""
    lock(file)
    return lambda: unlock(file)


@dataclass
class Update:
    """One update of a worker: what it took and waited for it, in seconds; the rest by its clock since it opened."""

    ended: float
    compute: float
    waited: float  # NaN: not told
    exchanged: float  # NaN: not told
    samples: int  # -1: not told


@dataclass
class WorkerRecording:
    """The file of one worker."""

    file: Path
    worker: int
    workers: int | None
    host: str
    clock: str  # those with the same one share a clock
    opened: float  # on that clock
    wall: float  # at the same time, in seconds since 1970
    steps: int = 0
    last: str | None = None  # how the file ends; None: its process was killed
    tells_waiting: bool = False
    updates: list[Update] = field(default_factory=list)


@dataclass(frozen=True)
class Recording:
    """The recordings of all workers of a job."""

    directory: Path
    workers: Sequence[WorkerRecording]
    notes: Sequence[str]
    count: int  # updates that all workers made
    clocks: str = ""  # why they cannot be put together, if so

    @property
    def batch_size(self) -> int | None:
        """The samples of an update of one worker, if all updates had as many."""
        sizes = {update.samples for each in self.workers for update in each.updates[: self.count]}
        return sizes.pop() if len(sizes) == 1 and min(sizes) > 0 else None

    @property
    def has_sizes(self) -> bool:
        """Are the samples of each update known, and not all the same?"""
        known = all(update.samples > 0 for each in self.workers for update in each.updates[: self.count])
        return known and self.batch_size is None

    @property
    def about(self) -> Mapping[str, Any]:
        return {
            "paceline_trace": TRACE_FORMAT,
            "clock": "real",
            "workers": len(self.workers),
            "transfer_seconds": 0.0,
            "notes": list(self.notes),
            **({"clocks": self.clocks} if self.clocks else {}),
        }

    def lines(self) -> Iterator[str]:
        """The trace of the synchronous run that was recorded."""
        yield json.dumps(self.about, sort_keys=True) + "\n"
        for facts in self._facts():
            yield from encode(facts).splitlines(keepends=True)

    def _facts(self) -> Iterator[list[Fact]]:
        yield [Joined(0.0, each.worker) for each in self.workers]
        at, serial, sizes = 0.0, 0, self.has_sizes
        for number in range(self.count):
            own = {each.worker: each.updates[number] for each in self.workers}
            exchange = min((each.waited for each in own.values() if not math.isnan(each.waited)), default=0.0)
            tickets = {
                worker: Ticket(serial + place, worker, number, Work("gradient", 1, each.samples if sizes else 0))
                for place, (worker, each) in enumerate(own.items())
            }
            serial += len(tickets)
            ends = {
                worker: at + each.compute + (0.0 if math.isnan(each.waited) else exchange)
                for worker, each in own.items()
            }
            facts: list[Fact] = [Start(ticket) for ticket in tickets.values()]
            for worker in sorted(ends, key=lambda worker: (ends[worker], worker)):
                if not math.isnan(own[worker].waited):
                    facts.append(Computed(tickets[worker], own[worker].compute))
                facts.append(Arrived(ends[worker], tickets[worker], 1))
            facts.append(Step(mean(list(tickets.values()))))
            yield facts
            at = max(ends.values())


def is_recording(directory: Path) -> bool:
    """Does a directory hold recordings of workers?"""
    return any(NAME.fullmatch(path.name) for path in directory.iterdir())


def read_recording(directory: Path) -> Recording:
    """Read the files of all workers in a directory. Refuses one that is still written, and a job with one missing."""
    files = sorted((path for path in directory.iterdir() if NAME.fullmatch(path.name)), key=lambda path: path.name)
    if not files:
        raise ConfigError(f"{directory} holds no recording: paceline.record writes one")
    found: dict[int, WorkerRecording] = {}
    for file in files:
        one = _read_file(file)
        if (other := found.setdefault(one.worker, one)) is not one:
            raise ConfigError(f"{other.file} and {file} are both of worker {one.worker}: keep the one of this job")
    workers = [found[number] for number in sorted(found)]
    _check_complete(directory, workers)
    for one in workers:
        if not one.updates:
            raise ConfigError(f"{one.file}: worker {one.worker} recorded no step: record a longer run")
    warmed_up = all(len(one.updates) > 1 for one in workers)
    if warmed_up:
        for one in workers:
            del one.updates[0]
    count = min(len(one.updates) for one in workers)
    marks = list(_marks(workers, count))
    notes = [*_notes(workers, count), *clock_notes(marks)]
    if warmed_up:
        notes.append("The first step of each worker, in which caches are filled, is left out.")
    return Recording(directory, workers, notes, count, disagreement(marks))


def _check_complete(directory: Path, workers: Sequence[WorkerRecording]) -> None:
    first = workers[0]
    for one in workers:
        if one.workers != first.workers:
            raise ConfigError(
                f"{directory} holds recordings of different jobs: {first.file.name} is of {first.workers} workers, "
                f"{one.file.name} of {one.workers}"
            )
    expected = first.workers or workers[-1].worker + 1
    there = {one.worker for one in workers}
    missing = [number for number in range(expected) if number not in there]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(
            f"{directory} lacks the recording of worker {missing[0]}{more} of {expected}: copy "
            f"{file_of(directory, missing[0]).name} there from its machine"
        )
    if expected < len(workers):
        raise ConfigError(f"{directory} has recordings of {len(workers)} workers of a job of {expected}")


def _read_file(file: Path) -> WorkerRecording:
    check_regular(file)
    with open_regular(file) as opened:
        if is_locked(opened.fileno()):
            raise ConfigError(
                f"{file} is still open: its worker records into it; read it when the recorder is closed (leave the "
                "with statement, or call close())"
            )
        size = os.fstat(opened.fileno()).st_size
        first = opened.readline(LONGEST_LINE)
        try:
            one = _header(file, json.loads(first))
        except ConfigError:
            raise
        except (*MALFORMED, RecursionError):
            what = f"it begins with {first[:40]!r}" if size else "it is empty: its process was killed before a step"
            raise ConfigError(f"{file} is no recording of a worker: {what}") from None
        _read_steps(one, iter(lambda: opened.readline(LONGEST_LINE), b""))
    return one


def _header(file: Path, about: Mapping[str, Any]) -> WorkerRecording:
    if about["paceline_recording"] != FORMAT:
        raise ConfigError(f"{file} has format {str(about['paceline_recording'])[:20]}; this version reads {FORMAT}")
    texts = about["host"], about["clock"]
    if not all(type(text) is str and 0 < len(text) <= LONGEST_NAME and text.isprintable() for text in texts):
        raise ValueError("host and clock are texts")
    worker, workers = whole(about["worker"]), about["workers"]
    if worker >= MOST_WORKERS or (workers is not None and not worker < whole(workers) <= MOST_WORKERS):
        raise ValueError(f"worker {worker} of {workers}")
    return WorkerRecording(file, worker, workers, *texts, real(about["opened"]), real(about["wall"]))


def _read_steps(one: WorkerRecording, lines: Iterator[bytes]) -> None:
    torn, steps = "", array("d")
    for number, line in enumerate(lines, start=2):
        if torn or one.last is not None:
            raise ConfigError(f"line {number - 1} of {one.file} is broken: {torn or 'more follows the last line'!r}")
        if not line.endswith(b"\n"):
            torn = repr(line[:60])
            continue
        try:
            values = json.loads(line)
            if values in ([CLOSED], [LEFT_OPEN]):
                one.last = values[0]
                continue
            steps.extend(_step(values))
        except (*MALFORMED, RecursionError) as error:
            raise ConfigError(f"line {number} of {one.file} cannot be understood: {line[:60]!r} ({error})") from None
    one.steps = len(steps) // 5
    one.tells_waiting = any(not math.isnan(waited) for waited in steps[3::5])
    one.updates = list(_updates(one, steps))


def _updates(one: WorkerRecording, steps: "array[float]") -> Iterator[Update]:
    """The updates that the steps of a worker make, those without an exchange added to the next one with it."""
    since = steps[0] if steps else 0.0
    before, samples = since, 0
    for began, ended, size, waited, exchanged in zip(*(steps[place::5] for place in range(5)), strict=True):
        if began < before:
            raise ConfigError(f"{one.file}: a step begins {before - began:g} s before the last one ended")
        before = ended
        samples = -1 if samples < 0 or size < 0 else samples + int(size)
        if one.tells_waiting and math.isnan(waited):
            continue  # no exchange: the gradient is accumulated
        waits = 0.0 if math.isnan(waited) else waited
        yield Update(ended, max(0.0, ended - since - waits), waited, exchanged, samples)
        since, samples = ended, 0


def _step(values: Any) -> Sequence[float]:
    began, ended, samples, waited, exchanged = values
    if not 0 <= real(began) <= real(ended) <= MOST_SECONDS:
        raise ValueError("a step begins before it ends")
    size = -1 if samples is None else whole(samples)
    waited = UNKNOWN if waited is None else real(waited)
    exchanged = UNKNOWN if exchanged is None else real(exchanged)
    if waited < 0:
        raise ValueError("nobody waits for less than no time")
    return float(began), float(ended), float(size), waited, exchanged


def _notes(workers: Sequence[WorkerRecording], count: int) -> Iterator[str]:
    """What is known of the recorded job only in part."""
    silent = [one.worker for one in workers if not one.tells_waiting]
    if silent and len(workers) > 1:
        whose = "of all workers" if len(silent) == len(workers) else f"of worker {', '.join(map(str, silent))}"
        yield (
            f"Computing and waiting {whose} were not told apart: a step counts as computing as a whole, so that "
            "everybody seems as slow as the slowest, and a what-if shows no gain. Use recorder.watch(model) or "
            "recorder.wait()."
        )
    for one in workers:
        if one.last is None:
            yield f"Worker {one.worker} did not close its recorder: it was killed, and its last steps may be missing."
        elif one.last == LEFT_OPEN:
            yield f"Worker {one.worker} left its recorder open until its process ended."
        if len(one.updates) > count:
            yield f"Worker {one.worker} recorded {len(one.updates) - count} updates more than others did: left out."


def _marks(workers: Sequence[WorkerRecording], count: int) -> Iterator[ClockMarks]:
    """When the exchanges of each worker ended; of workers that did not tell, their steps."""
    told = [one.updates[:count] for one in workers if one.tells_waiting]
    exchange = median(min(waited) for waited in zip(*([each.waited for each in own] for own in told), strict=True)) if (
        told
    ) else 0.0  # fmt: skip
    for one in workers:
        updates = one.updates[:count]
        exact = not any(math.isnan(each.exchanged) for each in updates)
        marks = [each.exchanged if exact else each.ended for each in updates]
        yield ClockMarks(one.worker, one.host, one.clock, one.opened, one.wall, marks, exchange, exact)
