"""The timeline of a run as Chrome trace-event JSON, for Perfetto (https://ui.perfetto.dev) and chrome://tracing.

A run is a process; its first track has the updates, then comes one for each worker. Virtual seconds are shown as if
they were real ones. Format: "Trace Event Format", Google, 2016.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.files import write_atomically
from paceline.reports.picture import Picture
from paceline.trace.timeline import Recalled, Span, Updated

LIMIT = 500_000  # marks of one run: some 80 MB
COLOURS = {
    "compute": "thread_state_running",
    "late": "bad",
    "dropped": "terrible",
    "relabel": "good",
    "transfer": "thread_state_iowait",
    "wait": "grey",
    "pending": "generic_work",
}

TraceEvent = dict[str, Any]


def write_perfetto(pictures: Mapping[str, Picture], path: Path) -> None:
    """Write the timelines of named runs into one file, whole or not at all."""
    write_atomically(path, json.dumps(perfetto(pictures), separators=(",", ":"), allow_nan=False) + "\n")


def perfetto(pictures: Mapping[str, Picture]) -> dict[str, Any]:
    """The JSON object that such a file holds."""
    names: list[TraceEvent] = []
    marks: list[TraceEvent] = []
    for process, (name, picture) in enumerate(pictures.items(), start=1):
        names += _names(process, name, sorted(picture.workers))
        marks += _marks(process, picture)
    marks.sort(key=lambda event: event["ts"])  # stable: what is at one instant stays in order
    about = {name: _extent(picture) for name, picture in pictures.items()}
    return {"traceEvents": names + marks, "displayTimeUnit": "ms", "otherData": {"written by": "Paceline", **about}}


def _extent(picture: Picture) -> str:
    whole = f"{picture.end:,.3f} s"
    return f"all {whole}" if math.isinf(picture.until) else f"the first {picture.until:,.3f} s of {whole}"


def _names(process: int, name: str, workers: Sequence[int]) -> list[TraceEvent]:
    def meta(what: str, track: int, value: Mapping[str, Any]) -> TraceEvent:
        return {"name": what, "ph": "M", "ts": 0, "pid": process, "tid": track, "args": dict(value)}

    events = [
        meta("process_name", 0, {"name": name}),
        meta("process_sort_index", 0, {"sort_index": process}),
        meta("thread_name", 0, {"name": "updates"}),
        meta("thread_sort_index", 0, {"sort_index": 0}),
    ]
    for worker in workers:
        events.append(meta("thread_name", _track(worker), {"name": f"worker {worker}"}))
        events.append(meta("thread_sort_index", _track(worker), {"sort_index": _track(worker)}))
    return events


def _marks(process: int, picture: Picture) -> Iterator[TraceEvent]:
    for span in picture.spans:
        yield _span(process, span)
    for update in picture.updates:
        yield from _update(process, update)
    for recall in picture.recalls:
        yield _recall(process, recall)


def _span(process: int, span: Span) -> TraceEvent:
    start, end = _nanoseconds(span.start), _nanoseconds(span.end)
    details = {"ticket": span.ticket, "staleness": span.staleness}
    return {
        "name": span.kind,
        "cat": "worker",
        "ph": "X",
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "pid": process,
        "tid": _track(span.worker),
        "cname": COLOURS[span.kind],
        "args": {name: value for name, value in details.items() if value is not None},
    }


def _update(process: int, update: Updated) -> Iterator[TraceEvent]:
    at, ages = _nanoseconds(update.at) / 1000, update.staleness
    details: dict[str, Any] = {"contributions": len(ages)}
    if update.waited_for is not None:
        details |= {"waited for worker": update.waited_for, "held up by (s)": update.held_up}
    common = {"cat": "update", "ts": at, "pid": process, "tid": 0}
    yield {"name": f"update {update.number}", "ph": "i", "s": "t", **common, "args": details}
    if ages:
        yield {"name": "staleness", "ph": "C", **common, "args": {"mean": sum(ages) / len(ages), "most": max(ages)}}


def _recall(process: int, recall: Recalled) -> TraceEvent:
    at = _nanoseconds(recall.at) / 1000
    place = {"ts": at, "pid": process, "tid": _track(recall.worker)}
    return {"name": "recall", "cat": "worker", "ph": "i", "s": "t", **place, "args": {"ticket": recall.ticket}}


def _track(worker: int) -> int:
    return worker + 1  # track 0 has the updates


def _nanoseconds(seconds: float) -> int:
    """Whole numbers: the end of one span is then exactly the start of the next. Times are in microseconds."""
    return round(seconds * 1e9)
