"""What a question about a long trace costs, against reading it: processor time and memory, each in its own process.

    python benchmarks/long_traces.py [--save]

read     every line decoded and checked
what-if  paceline replay RUN --strategy asgd
page     paceline report RUN --out FILE

The aim is three times the time of reading, for both. Of a what-if, reading and surveying the trace takes 1.2 times as
long as reading alone; the simulator's workers, the coordinator and the loop 1.1 for the same number of updates; and
following what happens, with its measures, 0.4. It is followed in batches of 10,000 facts: one by one, between the steps
of a simulation, the same takes twice as long (presumably for the processor's caches).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measuring import ratio, save

import paceline
from paceline.delays import ShiftedExponential

SIZES = {200_000: 3, 733_000: 1}  # updates, of three lines each, and how often each is measured
CHILD = """
import resource, sys, time
from pathlib import Path
from paceline.cli.main import main
from paceline.storage.reading import read_run
import paceline.reports.page, paceline.prediction.what_if
what, run, out = sys.argv[1], sys.argv[2], sys.argv[3]
began = time.process_time()
if what == "read":
    for fact in read_run(Path(run)).trace:
        pass
elif what == "what-if":
    assert main(["replay", run, "--strategy", "asgd"]) == 0
else:
    assert main(["report", run, "--out", out]) == 0
print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> None:
    save("long_traces", {f"{updates * 3:,} lines": measured(updates, rounds) for updates, rounds in SIZES.items()})


def measured(updates: int, rounds: int) -> dict[str, object]:
    """The costs of one length, each process in turn with the others."""
    with tempfile.TemporaryDirectory() as place:
        run = Path(place)
        fleet = paceline.SimulatedFleet(ShiftedExponential(0.5, 0.5), workers=16)
        paceline.simulate(paceline.Asynchronous(), fleet, paceline.Stop(updates=updates), trace=run / "trace.jsonl")
        (run / "config.json").write_text(json.dumps({"strategy": "Asynchronous()"}))
        times: dict[str, list[float]] = {"read": [], "what-if": [], "page": []}
        memory: dict[str, list[float]] = {name: [] for name in times}
        for _ in range(rounds):
            for name, taken in times.items():
                command = [sys.executable, "-c", CHILD, name, str(run), str(run / "page.html")]
                answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                taken.append(float(answer[-2]))
                memory[name].append(float(answer[-1]))
        lines = sum(1 for _ in (run / "trace.jsonl").open())
    return {
        "lines": lines,
        "rounds": rounds,
        "microseconds_a_line": {name: round(median(each) / lines * 1e6, 2) for name, each in times.items()},
        "against_reading": {name: round(ratio(times, name, "read"), 2) for name in ("what-if", "page")},
        "peak_megabytes": {name: round(max(each)) for name, each in memory.items()},
    }


if __name__ == "__main__":
    main()
