"""The timeline as Chrome trace events: what the format asks for, and the same times as the timeline itself."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.reports.perfetto import write_perfetto
from paceline.reports.picture import gather
from paceline.trace.reading import Trace
from paceline.trace.timeline import KINDS

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "args"},
}


@pytest.fixture(scope="module")
def trace() -> Trace:
    fleet = pl.SimulatedFleet(
        [pl.delays.LogNormal(1.0, 0.3), pl.delays.LogNormal(1.5, 0.3), pl.delays.Constant(3.2)],
        network=pl.Network(latency=0.1),
    )
    return pl.simulate(pl.LiveCompensation(quorum=2, blocks=4), fleet, pl.Stop(seconds=50))


def written(traces: dict[str, Trace], path: Path, limit: int = 10**9) -> dict[str, Any]:
    write_perfetto({name: gather(trace, limit=limit) for name, trace in traces.items()}, path)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def validate(found: dict[str, Any]) -> None:
    """The rules of the trace event format that apply to what Paceline writes."""
    events = found["traceEvents"]
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys(), event
        assert isinstance(event["name"], str)
        assert all(isinstance(event[name], int) for name in ("pid", "tid"))
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-4 for a, b in pairwise(track)), "slices overlap"


def test_the_file_keeps_to_the_trace_event_format(trace: Trace, tmp_path: Path) -> None:
    found = written({"a run": trace}, tmp_path / "trace.json")
    validate(found)
    assert {event["ph"] for event in found["traceEvents"]} == {"M", "X", "i", "C"}
    assert {event["name"] for event in found["traceEvents"] if event["ph"] == "X"} <= set(KINDS)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_there_is_a_named_track_for_each_worker(trace: Trace, tmp_path: Path) -> None:
    events = written({"a run": trace}, tmp_path / "trace.json")["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "updates", 1: "worker 0", 2: "worker 1", 3: "worker 2"}
    assert {event["tid"] for event in events if event["ph"] == "X"} == {1, 2, 3}


def test_times_are_microseconds(tmp_path: Path) -> None:
    fleet = pl.SimulatedFleet([pl.delays.Constant(0.5), pl.delays.Constant(1.25)])
    trace = pl.simulate(pl.Synchronous(), fleet, pl.Stop(updates=1))
    events = written({"a run": trace}, tmp_path / "trace.json")["traceEvents"]
    slices = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices[:3] == [("compute", 1, 0, 500_000), ("compute", 2, 0, 1_250_000), ("wait", 1, 500_000, 750_000)]
    (update,) = [event for event in events if event["name"] == "update 1"]
    assert (update["ts"], update["args"]["waited for worker"]) == (1_250_000, 1)


def test_staleness_is_a_counter_and_recalls_are_instants(trace: Trace, tmp_path: Path) -> None:
    events = written({"a run": trace}, tmp_path / "trace.json")["traceEvents"]
    counted = [event["args"] for event in events if event["ph"] == "C"]
    assert max(each["most"] for each in counted) == 1
    assert all(0 <= each["mean"] <= each["most"] for each in counted)
    assert any(event["name"] == "recall" and event["tid"] == 3 for event in events)


def test_several_runs_are_several_processes(trace: Trace, tmp_path: Path) -> None:
    found = written({"one": trace, 'two "quoted"': trace}, tmp_path / "trace.json")
    validate(found)
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}
    assert names == {1: "one", 2: 'two "quoted"'}


def test_a_long_run_is_cut_and_the_file_says_so(trace: Trace, tmp_path: Path) -> None:
    found = written({"a run": trace}, tmp_path / "trace.json", limit=100)
    validate(found)
    assert sum(event["ph"] == "X" for event in found["traceEvents"]) <= 100
    assert found["otherData"]["a run"].startswith("the first ")
