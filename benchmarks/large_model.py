"""A model of 100 million parameters on two workers: a step against DDP's, and the memory that all processes take.

    python benchmarks/large_model.py [--save] [--rounds N] [--hidden N]

step     how many times as many synchronous steps a second as DDP over gloo makes, of the same model, batch and data,
         with one thread a worker. Both are warm, and take turns
memory   of the training process and all of its processes together (PSS: what they share counts once), less what they
         take with a small model, in terms of the weights. The user's own model is among it. Bar: workers + 3
"""

import argparse
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
import torch
from against_ddp import Case, Team, ddp
from measuring import interleaved_seconds, ratio, write
from timed_training import synchronous
from torch import nn

import paceline as pl

WORKERS, INPUTS, LAYERS, BATCH = 2, 784, 9, 8
BARS = {"step against DDP": 1.3, "memory in weights": WORKERS + 3}


def mlp(hidden: int) -> nn.Module:
    widths = [INPUTS, *[hidden] * LAYERS]
    layers = [layer for one, following in pairwise(widths) for layer in (nn.Linear(one, following), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(hidden, 10))


def case_of(hidden: int, steps: int) -> Case:
    return Case(partial(mlp, hidden), (INPUTS,), steps=steps, batch=BATCH, samples=256)


def proportional_set_size(pid: int) -> int:
    """Bytes of a process, shared memory divided among those who share it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def peak_memory(action: Callable[[], object]) -> int:
    """The most that this process and all that descend from it take together while something is done."""
    done, most = threading.Event(), [0]

    def watch() -> None:
        own = psutil.Process()
        while not done.is_set():
            most[0] = max(most[0], sum(proportional_set_size(e.pid) for e in [own, *own.children(recursive=True)]))
            time.sleep(0.05)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        action()
    finally:
        done.set()
        thread.join()
    return most[0]


def memory_in_weights(case: Case, fleet: pl.ProcessFleet) -> float:
    small = case_of(32, case.steps)
    weights = sum(parameter.numel() * 4 for parameter in case.make().parameters())
    before = peak_memory(lambda: synchronous(small, fleet, case.steps))
    return (peak_memory(lambda: synchronous(case, fleet, case.steps)) - before) / weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=3500, help="width of the hidden layers: 3500 for 100 million")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    case, fleet = case_of(asked.hidden, steps=3), pl.ProcessFleet(WORKERS, threads=1)
    parameters = sum(parameter.numel() for parameter in case.make().parameters())
    memory = memory_in_weights(case, fleet)
    team = Team(ddp, case, WORKERS)
    try:
        alternatives = {"ddp": team.turn, "synchronous": lambda: synchronous(case, fleet, case.steps)}
        times = interleaved_seconds(alternatives, asked.rounds)
    finally:
        team.close()
    result = {
        "parameters": parameters,
        "workers": WORKERS,
        "bars": BARS,
        "ratios": {
            "step against DDP": round(ratio(times, "ddp", "synchronous"), 2),
            "memory in weights": round(memory, 2),
        },
        "seconds of a step": {name: round(min(each) / case.steps, 3) for name, each in times.items()},
    }
    write("large_model", result, save=asked.save)


if __name__ == "__main__":
    main()
