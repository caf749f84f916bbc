"""Events a second of the core and the simulator without gradients, for every strategy, and the memory they take.

    python benchmarks/events.py [--save]
    python benchmarks/events.py 16 [--save]             one size; rows of the other stay as they were
    python benchmarks/events.py Ringmaster 10000        one row

Each strategy runs in a process of its own with 16 and with 10,000 workers, with and without the trace streamed to disk.
How fast the machine is at the moment is told by a bare heap, pushed and popped as often in the same process. Seconds
are those of the processor, so that other programs on the machine count only by the caches that they empty.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from heapq import heappop, heappush
from pathlib import Path

from measuring import RESULTS, write

import paceline as pl
from paceline.engine.loop import Loop, NoLearner, seldom_collecting
from paceline.trace.writing import TraceWriter

EVENTS = {16: 30_000, 10_000: 80_000}
ROUNDS = 2


def strategies(workers: int) -> dict[str, pl.strategy.Strategy]:
    quorum = workers * 7 // 10
    groups = [list(range(first, workers, 4)) for first in range(4)]
    return {
        "Synchronous": pl.Synchronous(),
        "Asynchronous": pl.Asynchronous(),
        "FastestK": pl.FastestK(quorum),
        "FastestK, late ones finish": pl.FastestK(quorum, stop_late=False),
        "LiveCompensation": pl.LiveCompensation(quorum, blocks=4),
        "LiveCompensation, late ones finish": pl.LiveCompensation(quorum, blocks=4, recall=False),
        "Grouped": pl.Grouped(groups),
        "Grouped(LiveCompensation)": pl.Grouped(groups, pl.LiveCompensation(workers // 6, blocks=4)),
        **further(workers, quorum, groups),
    }


def further(workers: int, quorum: int, groups: list[list[int]]) -> dict[str, pl.strategy.Strategy]:
    """All but AdaptiveQuorum, which needs a model, and NewestOfEach, whose updates use a gradient of every worker."""
    found: dict[str, pl.strategy.Strategy] = {
        "QuorumGrace": pl.QuorumGrace(quorum, grace=0.005),
        "Anytime": pl.Anytime(seconds=0.06, blocks=4),
        "Replicated": pl.Replicated([[first, first + 1] for first in range(0, workers, 2)]),
        "Buffered": pl.Buffered(workers // 2),
        "StalenessAware": pl.StalenessAware(workers // 2),
        "BoundedStaleness": pl.BoundedStaleness(3),
        "DelayAdaptive": pl.DelayAdaptive(),
        "Ringmaster": pl.Ringmaster(workers),
        "Ringmaster, nobody is stopped": pl.Ringmaster(workers, stop=False),
        "Rennala": pl.Rennala(2 * workers),
        "Malenia": pl.Malenia(3 * workers),
        "Rescaled": pl.Rescaled(),
        "Grouped(Buffered)": pl.Grouped(groups, pl.Buffered(workers // 8)),
    }
    if workers == 16:
        found["NewestOfEach"] = pl.NewestOfEach()
    return found


class NoTrace(TraceWriter):
    """Leaves out the trace, to see what it costs."""

    def record(self, events: object, instructions: object) -> None:
        pass


def events_per_second(strategy: pl.strategy.Strategy, workers: int, trace: TraceWriter) -> float:
    fleet = pl.SimulatedFleet(pl.delays.ShiftedExponential(0.05, 0.02), workers=workers)
    group = fleet.open(0)
    wait, counted, most = group.wait, 0, EVENTS[workers]

    def counting() -> object:
        nonlocal counted
        events = wait()
        counted += len(events)
        if counted > most:
            raise StopIteration
        return events

    group.wait = counting  # type: ignore[method-assign, assignment]
    loop = Loop(strategy, group, NoLearner(), trace)
    begin = time.process_time()
    try:
        with seldom_collecting():
            for _ in loop:
                pass
    except RuntimeError:  # what a StopIteration becomes inside a generator
        pass
    return counted / (time.process_time() - begin)


def bare_heap(workers: int) -> float:
    """Pushes and pops a second of a heap with an entry for each worker."""
    heap = [(float(worker), worker) for worker in range(workers)]
    begin = time.process_time()
    for number in range(EVENTS[workers]):
        at, worker = heappop(heap)
        heappush(heap, (at + 1.0 + number % 7, worker))
    return EVENTS[workers] / (time.process_time() - begin)


def measure(name: str, workers: int) -> dict[str, int]:
    strategy = strategies(workers)[name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        heap = max(bare_heap(workers) for _ in range(ROUNDS))
        bare = max(events_per_second(strategy, workers, NoTrace(None, {})) for _ in range(ROUNDS))
        streamed = max(events_per_second(strategy, workers, TraceWriter(file, {})) for _ in range(ROUNDS))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "events/s": int(bare),
        "events/s with the trace on disk": int(streamed),
        "peak MB": memory,
        "events/s of a bare heap": int(heap),
    }


def measure_all(sizes: Iterable[int], rows: dict[str, dict[str, int]]) -> None:
    for workers in sizes:
        for name in strategies(workers):
            command = [sys.executable, __file__, name, str(workers)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows[f"{name}, {workers} workers"] = json.loads(output)
            print(f"{name}, {workers} workers", rows[f"{name}, {workers} workers"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("row", nargs="*", help="a number of workers, or a strategy and a number of workers")
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    options = parser.parse_args()
    if len(options.row) > 1:
        print(json.dumps(measure(options.row[0], int(options.row[1]))))
        return
    sizes = [int(size) for size in options.row] or list(EVENTS)
    before: dict[str, dict[str, int]] = json.loads((RESULTS / "events.json").read_text())["rows"]
    measured = tuple(f", {size} workers" for size in sizes)
    rows = {name: row for name, row in before.items() if not name.endswith(measured)}
    load = os.getloadavg()[0]
    measure_all(sizes, rows)
    bars = "40,000 events/s with 16 workers, 25,000 with 10,000 or with the trace on disk; under 1,000 MB"
    note = f"load average {load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end, on {os.cpu_count()} cores"
    write("events", {"bars": bars, "best of": ROUNDS, "machine": note, "rows": rows}, save=options.save)


if __name__ == "__main__":
    main()
