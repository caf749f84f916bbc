"""A communication round of EC-DNN against the forward passes that it contains, and the memory of a whole run.

    python benchmarks/ensemble.py [--save] [--rounds N]

round / passes   what a round costs (samples chosen and fetched, passed through every model, weighed, kept as labels),
                 in terms of the bare forward passes of the same models over the same samples, fetched beforehand
copies           the most memory that a run with 8 workers held, besides the task and its model, in copies of the model;
                 each case runs in a process of its own, whose peak the operating system tells (Linux)
"""

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from measuring import interleaved, parse, ratio, save
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.config.named_tasks import lenet
from paceline.core.messages import Ticket, distilled_steps, local_steps
from paceline.learning.models.compression import Ensembling
from paceline.learning.models.ensemble import PASSED_AT_ONCE
from paceline.learning.models.training import LocalTrainer
from paceline.learning.optimizers import Recipe
from paceline.learning.workload import workload_of

WORKERS, SAMPLES, BATCH = 4, 8_000, 32
CROWD, WIDTH, LAYERS = 8, 1000, 20  # of the memory's case: a model of 80 MB
RULES = ("simple", "margin", "regression")
BARS = {"round / passes": 1.15, "copies": CROWD + 2}


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)  # type: ignore[arg-type]


class Round:
    """Rounds of one rule, as often as wanted, and the passes that they consist of."""

    def __init__(self, rule: str) -> None:
        x, y = torch.randn(SAMPLES, 3, 32, 32), torch.arange(SAMPLES) % 10
        shards = np.arange(SAMPLES).reshape(WORKERS, -1)
        workload = workload_of(pl.Task(lenet(), cross_entropy, train=(x, y)), list(shards), BATCH)
        workload = replace(workload, recipe=Recipe(sgd))
        self.trainers = [LocalTrainer(workload, worker, seed=0) for worker in range(WORKERS)]
        strategy = pl.EnsembleCompression(10, rule, compression_steps=1, diversity=0.0)  # type: ignore[arg-type]
        self.ensembling = Ensembling(replace(workload, trainers=self.trainers), strategy.aggregation)
        self.shards, self.given = list(shards), WORKERS
        tickets = [Ticket(worker, worker, 0, local_steps(10)) for worker in range(WORKERS)]
        self.weights = dict.fromkeys(tickets, Fraction(1, WORKERS))
        chosen = [trainer.choose(shard, strategy.relabel) for trainer, shard in zip(self.trainers, shards, strict=True)]
        self.batches = [
            x[torch.from_numpy(part[begin : begin + PASSED_AT_ONCE])]
            for part in chosen
            for begin in range(0, len(part), PASSED_AT_ONCE)
        ]

    def round(self) -> None:
        """All chosen samples are labelled, since the next work is given every sample of its worker."""
        self.ensembling.combine(self.weights, [], lambda ticket: ())
        for number, shard in enumerate(self.shards):
            ticket = Ticket(self.given, number, 0, distilled_steps(1))
            self.given += 1
            self.ensembling.started(ticket, [shard])
            self.ensembling.settled(ticket)

    def passes(self) -> None:
        models = [trainer.model.eval() for trainer in self.trainers]
        with torch.inference_mode():
            for batch in self.batches:
                for model in models:
                    model(batch)


def copies(method: str) -> float:
    """The peak of a run, in a process of its own."""
    command = [sys.executable, __file__, "--memory", method]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory(method: str) -> float:
    train_deep(method, deep(width=8))  # whatever is imported or allocated only once
    task = deep(WIDTH)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    train_deep(method, task)
    size = sum(parameter.numel() * parameter.element_size() for parameter in task.model.parameters())
    return (_resident("VmHWM") - before) / size


def deep(width: int) -> pl.Task:
    samples = CROWD * 64
    x, y = torch.randn(samples, width), torch.arange(samples) % 10
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
    return pl.Task(nn.Sequential(*layers, nn.Linear(width, 10)), cross_entropy, train=(x, y))


def train_deep(method: str, task: pl.Task) -> None:
    strategy: pl.strategy.Strategy = pl.ModelAveraging(4, steps=12)
    if method != "averaging":
        strategy = pl.EnsembleCompression(4, method, compression_steps=1, steps=12)  # type: ignore[arg-type]
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=CROWD)
    pl.train(task, strategy=strategy, fleet=fleet, optimizer=sgd, batch_size=16, progress=False)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def main() -> None:
    rounds = parse().rounds
    ratios = {}
    for rule in RULES:
        torch.manual_seed(0)
        case = Round(rule)
        times = interleaved({"round": case.round, "passes": case.passes}, rounds)
        ratios[rule] = round(ratio(times, "round", "passes"), 3)
    held = {method: round(copies(method), 2) for method in ("averaging", *RULES)}
    save("ensemble", {
        "model": "LeNet, 4 workers", "bars": BARS, "round / passes": ratios,
        "memory": f"{CROWD} workers, {LAYERS} layers of {WIDTH} x {WIDTH}, plain SGD", "copies": held,
    })  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--memory" in sys.argv:
        print(memory(sys.argv[-1]))
    else:
        main()
