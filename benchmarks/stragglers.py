"""One worker of four is four times as slow: time to the same training loss, against DDP and against our own SSGD.

    python benchmarks/stragglers.py [--save] [--rounds N]      (a round is a seed)

Two models: convolutions, and a perceptron of 1.1 M parameters, for which small blocks are dear. For each the same data,
batch size and learning rate for everybody; no rule has a step of its own tuned for it. The training loss is the mean
over the samples of the last so many mini-batches that were used; nothing is evaluated on the way. In DDP the slow rank
sleeps, before its backward pass, three times what its forward and backward passes take.
"""

import time
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import torch
from against_ddp import Case, Team
from measuring import interleaved, parse, ratio, save
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.learning.arena.arena import Layout, ParameterArena
from paceline.learning.gradients.work import GradientWork
from paceline.learning.workload import workload_of

WORKERS, SLOW, TIMES = 4, 3, 4.0
TARGET, WINDOW, LR = 0.3, 16, 0.1  # the loss to reach; over so many mini-batches
STEPS = 160  # of DDP at most, and as many mini-batches of ours
STRATEGIES: dict[str, pl.strategy.Strategy] = {
    "SSGD": pl.Synchronous(),
    "LGC-SGD": pl.LiveCompensation(3, blocks=4),
    "LGC-SGD, one block": pl.LiveCompensation(3, blocks=1),
    "GSGD": pl.Grouped([[0, 1, 2], [3]]),
    "ASGD": pl.Asynchronous(),
}


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip


CASES = {
    "convolutions": Case(convolutions, (64,), steps=STEPS, lr=LR),
    "perceptron": Case(perceptron, (64,), steps=STEPS, lr=LR),
}


def data() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)


def cost_of_blocks(case: Case, blocks: int, rounds: int = 9) -> float:
    """How many times as long the gradient of a mini-batch takes when it is computed in so many blocks."""
    workload = workload_of(pl.Task(case.model(), cross_entropy, data()), [], 32)
    layout = Layout(workload.state.parameters, workload.state.buffers, 32)
    arena = ParameterArena(layout, torch.zeros(2 * layout.stride, dtype=torch.uint8))
    work = GradientWork(workload.state.model, workload.state.parameters, workload.samples, workload.loss)

    def compute(units: int) -> None:
        for _ in range(20):
            work.compute(arena[0], arena[1], np.arange(32), units=units, seed=0, go_on=lambda block: True)

    times = interleaved({"whole": lambda: compute(1), "blocks": lambda: compute(blocks)}, rounds)
    return round(ratio(times, "blocks", "whole"), 2)


def ours(case: Case, strategy: pl.strategy.Strategy, seed: int) -> float:
    torch.manual_seed(seed)
    per_update = {"ASGD": 1, "GSGD": 2}.get(next(n for n, s in STRATEGIES.items() if s is strategy), 4)
    run = pl.train(
        pl.Task(case.model(), cross_entropy, data(), evaluate=lambda model: {"loss": 0.0}), strategy=strategy,
        fleet=pl.ProcessFleet(WORKERS, slow={SLOW: TIMES}, threads=1), seed=seed, progress=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=case.lr),
        stop=pl.Stop(updates=STEPS * 4 // per_update), every=pl.Every(updates=WINDOW // per_update),
    )  # fmt: skip
    return next((row.seconds for row in run.history if row.training_loss <= TARGET), float("inf"))


def slowed_ddp(rank: int, workers: int, case: Case, orders: Connection) -> None:
    """The usual loop, with a rank whose every pass takes four times as long; tells time and loss of each step."""
    inputs, targets = data()
    shard = torch.arange(rank, len(targets), workers)
    orders.send("ready")
    while (asked := orders.recv()) != "stop":
        torch.manual_seed(asked)
        net = torch.nn.parallel.DistributedDataParallel(case.model())
        optimizer = torch.optim.SGD(net.parameters(), lr=case.lr)
        losses: list[tuple[float, float]] = []
        torch.distributed.barrier()
        began = time.perf_counter()
        for number in range(STEPS):
            per_epoch = len(shard) // case.batch
            if number % per_epoch == 0:
                order = shard[torch.randperm(len(shard))]
            rows = order[number % per_epoch * case.batch :][: case.batch]
            step_began = time.perf_counter()
            optimizer.zero_grad()
            loss = cross_entropy(net(inputs[rows]), targets[rows])
            if rank == SLOW:  # before the all-reduce that the backward pass contains
                time.sleep((TIMES - 1) * 3 * (time.perf_counter() - step_began))
            loss.backward()
            optimizer.step()
            losses.append((time.perf_counter() - began, float(loss.detach())))
        orders.send(losses)


def ddp_seconds(team: Team, seed: int) -> float:
    told = team.ask(seed)
    window = WINDOW // WORKERS
    means = [sum(each[step][1] for each in told) / WORKERS for step in range(len(told[0]))]
    for step in range(window, len(means) + 1):
        if sum(means[step - window : step]) / window <= TARGET:
            return max(each[step - 1][0] for each in told)
    return float("inf")


def measure(case: Case, seeds: int) -> dict[str, Any]:
    team = Team(slowed_ddp, case, WORKERS)
    seconds: dict[str, list[float]] = {name: [] for name in ("DDP", *STRATEGIES)}
    for seed in range(seeds):
        seconds["DDP"].append(ddp_seconds(team, seed))
        for name, strategy in STRATEGIES.items():
            seconds[name].append(ours(case, strategy, seed))
        print(seed, {name: round(values[-1], 3) for name, values in seconds.items()}, flush=True)
    team.close()

    def against(other: str) -> dict[str, float]:
        pairs = {name: zip(seconds[other], seconds[name], strict=True) for name in STRATEGIES}
        return {name: round(median(a / b for a, b in both), 2) for name, both in pairs.items() if name != other}

    return {
        "time of a mini-batch in 4 blocks over that in one": cost_of_blocks(case, 4),
        "seconds": seconds,
        "times as fast as DDP": against("DDP"),
        "times as fast as SSGD": against("SSGD"),
    }


def main() -> None:
    torch.set_num_threads(1)
    seeds = min(parse().rounds, 3)
    save("stragglers", {"target": TARGET, **{name: measure(case, seeds) for name, case in CASES.items()}})


if __name__ == "__main__":
    main()
