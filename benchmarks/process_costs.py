"""What a process fleet takes besides computing: to start, to answer a recall, to notice a death; and its memory.

    python benchmarks/process_costs.py [--save] [--rounds N]

start-up      seconds from the call of ``train`` to the first step, four workers: with torch loaded in the fork server
              by an earlier run, and (in an interpreter of its own that has imported torch) without; beside it what
              importing torch takes, which the process that starts the workers has to do as well
recall        how long a recalled worker took to hand in, in terms of a block, and the longest
death         milliseconds from kill -9 to ``Left``
memory        shared memory in terms of the weights, after a run of a model of 10 M, four workers
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import torch
from against_ddp import CASES
from measuring import parse, save
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.messages import Arrived, Recall
from paceline.learning.workload import workload_of

STRATEGIES: dict[str, pl.strategy.Strategy] = {
    "SSGD": pl.Synchronous(),
    "ASGD": pl.Asynchronous(),
    "K-SGD": pl.FastestK(3),
    "LGC-SGD": pl.LiveCompensation(3, blocks=4),
    "GSGD": pl.Grouped([[0, 1], [2, 3]]),
}


def train(case: str, strategy: pl.strategy.Strategy, updates: int, **options: Any) -> pl.Run:
    chosen = CASES[case]
    task = pl.Task(chosen.make(), cross_entropy, chosen.data(), evaluate=options.pop("evaluate", _nothing))
    return pl.train(
        task, strategy=strategy, fleet=pl.ProcessFleet(4, threads=1, **options), batch_size=chosen.batch,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01), stop=pl.Stop(updates=updates),
        every=pl.Every(updates=1), progress=False,
    )  # fmt: skip


def _nothing(model: torch.nn.Module) -> dict[str, float]:
    return {"loss": 0.0}


def first_step() -> float:
    """Seconds from the call to the first judgement after an update."""
    began = time.monotonic()
    at: list[float] = []

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        at.append(time.monotonic() - began)
        return {"loss": 0.0}

    train("LeNet", pl.Synchronous(), 1, evaluate=evaluate)
    return at[1]


def first_step_of_all() -> tuple[float, float]:
    """In a new interpreter: seconds to the first step; and before that, those that importing torch took."""
    script = (
        "import sys, time; began = time.monotonic(); import torch; took = time.monotonic() - began;"
        "sys.path.insert(0, sys.argv[1]); import process_costs as p; print(p.first_step(), took)"
    )
    done = subprocess.run([sys.executable, "-c", script, sys.path[0]], capture_output=True, text=True, check=True)
    first, imported = map(float, done.stdout.split())
    return first, imported


def recalls() -> list[float]:
    """Times from recall to answer, in blocks of 0.05 seconds."""
    run = train("logistic regression", pl.LiveCompensation(3, blocks=8), 15, slow={3: pl.delays.Constant(0.4)})
    recalled: dict[object, float] = {}
    waits, now = [], 0.0
    for fact in run.trace:
        now = getattr(fact, "at", now)
        if isinstance(fact, Recall):
            recalled[fact.ticket] = now
        elif isinstance(fact, Arrived) and fact.ticket in recalled:
            waits.append((now - recalled[fact.ticket]) / 0.05)
    return waits


def deaths() -> list[float]:
    """Milliseconds; each worker dies four times, for after five without work in between there is no replacement."""
    chosen = CASES["logistic regression"]
    workload = workload_of(pl.Task(chosen.make(), cross_entropy, chosen.data()), [], chosen.batch)
    group, _ = pl.ProcessFleet(2).launch(workload, seed=0)
    noticed = []
    with closing(group):
        group.wait()
        for number in range(8):
            began = time.monotonic()
            os.kill(group.pids[number % 2], signal.SIGKILL)
            group.wait()
            noticed.append(1000 * (time.monotonic() - began))
            group.wait()
    return noticed


def memory(strategy: pl.strategy.Strategy) -> float:
    """Shared memory at the end of a run, and the server's gradient, over that of the weights."""
    used: list[float] = []
    weights = sum(p.numel() * p.element_size() for p in CASES["MLP of 10 M"].make().parameters())

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        lines = Path("/proc/self/smaps").read_text().split("memfd:paceline")[1:]
        used.append(sum(1024 * int(text.split("Rss:")[1].split()[0]) for text in lines))
        return {"loss": 0.0}

    data = sum(t.numel() * t.element_size() for t in CASES["MLP of 10 M"].data())
    train("MLP of 10 M", strategy, 12, evaluate=evaluate, slow={3: 3.0})
    return (used[-1] - data) / weights + 1


def main() -> None:
    torch.set_num_threads(1)
    rounds = parse().rounds
    fresh = [first_step_of_all() for _ in range(min(rounds, 3))]
    first_step()
    waits = [wait for _ in range(rounds) for wait in recalls()]
    noticed = sorted(each for _ in range(rounds) for each in deaths())
    save(
        "process_costs",
        {
            "bars": "first step in 3 s; recall in a block; death in 100 ms; memory 7 (LGC-SGD 11) for 4 workers",
            "seconds to the first step, in a new interpreter": [round(first, 2) for first, _ in fresh],
            "seconds to import torch there": [round(imported, 2) for _, imported in fresh],
            "seconds to the first step, later": round(median(first_step() for _ in range(rounds)), 3),
            "blocks from recall to answer": {"median": round(median(waits), 2), "longest": round(max(waits), 2)},
            "milliseconds from kill -9 to Left": {
                "times": len(noticed),
                "median": round(median(noticed), 1),
                "longest but one in ten": round(noticed[-1 - len(noticed) // 10], 1),
                "longest": round(noticed[-1], 1),
            },
            "memory in terms of the weights": {name: round(memory(each), 2) for name, each in STRATEGIES.items()},
        },
    )


if __name__ == "__main__":
    main()
