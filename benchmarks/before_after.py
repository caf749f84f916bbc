"""This checkout against another one: the time of an update, in turn on one machine.

    python benchmarks/before_after.py OTHER [--rounds N] [--only TEXT] [--save] [--name RESULT]

OTHER is another checkout, as from ``git worktree add ../before REVISION``. Each case runs in a process
of its own, with the one code and then with the other, as often as ``--rounds`` says. What is compared is the time of
an update without the start: a long run less a short one, divided by the updates between them, of each the fastest of
several: what else the machine does can only add to it. Simulated cases count processor time; real workers count wall
time, and, as "server of processes", the processor time of the process that trains, which hardly depends on what else
the machine does. A ratio is the median over the rounds, this checkout over the other: below 1, this one is faster.
"""

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import torch
from measuring import write
from torch import nn

import paceline
from paceline import delays

HERE = Path(__file__).parent.parent
RULES = {
    "synchronous": paceline.Synchronous(),
    "asynchronous": paceline.Asynchronous(),
    "LGC-SGD": paceline.LiveCompensation(12),
    "grouped": paceline.Grouped([list(range(12)), list(range(12, 16))]),
    "averaging": paceline.ModelAveraging(every=4),
}
REAL = "processes"
CASES = {  # updates of the long run
    **{f"events, {name}": 6000 for name in ("synchronous", "asynchronous", "LGC-SGD", "grouped")},
    **{f"simulated, {name}": 150 if name == "averaging" else 600 for name in RULES},
    **{f"{what}, {name}": 3000 for what in (REAL, f"server of {REAL}") for name in ("synchronous", "asynchronous")},
}
SHORT = 50
TIMES = 7  # of which the fastest counts


def run(case: str) -> Callable[[int], object]:
    """How to run a case for so many updates."""
    where, rule = case.split(", ")
    stop, never = paceline.Stop, paceline.Every(updates=10**9)
    unequal = paceline.SimulatedFleet([delays.Constant(1.0)] * 12 + [delays.Constant(2.5)] * 4)
    if where == "events":
        return lambda updates: paceline.simulate(strategy=RULES[rule], fleet=unequal, stop=stop(updates=updates))
    torch.manual_seed(0)
    data = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
    task = paceline.Task(model=nn.Linear(64, 10), loss=nn.functional.cross_entropy, train=data, test=data)
    fleet = unequal if where == "simulated" else paceline.ProcessFleet(2)
    return lambda updates: paceline.train(
        task, strategy=RULES[rule], fleet=fleet, optimizer=lambda p: torch.optim.SGD(p, lr=0.01), batch_size=16,
        stop=stop(updates=updates), every=never, progress=False,
    )  # fmt: skip


def measure(case: str) -> float:
    """The seconds of an update."""
    clock = time.perf_counter if case.startswith(REAL) else time.process_time
    go = run(case)
    go(SHORT)

    def seconds(updates: int) -> float:
        began = clock()
        go(updates)
        return clock() - began

    long, short = (min(seconds(updates) for _ in range(TIMES)) for updates in (CASES[case], SHORT))
    return (long - short) / (CASES[case] - SHORT)


def measured_in(checkout: Path, case: str) -> float:
    settings = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--case", case]
    return float(subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--name", default="before_after", help="of the result")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        warnings.simplefilter("ignore")
        print(measure(asked.case))
        return
    if asked.other is None or not (asked.other / "src" / "paceline").is_dir():
        parser.error("name the other checkout, a directory with src/paceline in it")
    ratios: dict[str, list[float]] = {case: [] for case in CASES if asked.only in case}
    for number in range(asked.rounds):
        for case, found in ratios.items():
            order = (HERE, asked.other) if number % 2 else (asked.other, HERE)
            took = {checkout: measured_in(checkout, case) for checkout in order}
            found.append(took[HERE] / took[asked.other])
        print(f"round {number + 1} of {asked.rounds}", file=sys.stderr, flush=True)
    rows = {
        case: {
            "median": round(median(found), 3),
            "quartiles": [round(each, 3) for each in quantiles(found, n=4, method="inclusive")[::2]],
        }
        for case, found in ratios.items()
    }
    revisions = {
        name: subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=place, capture_output=True, text=True, check=True
        ).stdout.strip()
        for name, place in (("this", HERE), ("other", asked.other))
    }
    write(asked.name, {"revisions": revisions, "time of an update, this / other": rows}, save=asked.save)


if __name__ == "__main__":
    main()
