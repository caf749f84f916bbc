"""One worker of four is four times as slow for each sample: time to the same training loss with unequal mini-batches.

    python benchmarks/unequal_batches.py [--save] [--rounds N]      (a round is a seed)

Two settings. *Waiting* workers take 2 ms and 1 ms for each sample, the slow one 4 ms, and wait for most of that, as for
an accelerator of their own: they do not compete for this machine's cores. *Computing* ones train convolutions, and
everything that the slow one does takes four times as long.

Compared in the same run: DDP and SSGD with 32 samples a worker, SSGD with sizes by hand, and sizes by measured speed,
which begin with 32 each. An update is the mean over 128 samples in all of them, with the same model, data and learning
rate. The training loss is the mean over the samples of the last four updates; nothing is evaluated on the way. A slow
rank of DDP sleeps before its backward pass, which contains the all-reduce.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
from against_ddp import Body, Case, Team
from measuring import parse, save
from stragglers import CASES, LR, SLOW, STEPS, TARGET, TIMES, WORKERS, data, ddp_seconds, slowed_ddp
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.delays import Constant, Delay, PerSample

TOTAL, SIZE = 128, 32
FIXED, EACH = 0.002, 0.001  # seconds of a mini-batch, and of a sample
Rule = tuple[pl.strategy.Strategy, int | Sequence[int]]
RULES: dict[str, Rule] = {
    "SSGD": (pl.Synchronous(), SIZE),
    "sizes by hand": (pl.Synchronous(), pl.sizes_by_speed([1.0, 1.0, 1.0, 1 / TIMES], TOTAL)),
    "sizes by measured speed": (pl.UnequalBatches(pl.Synchronous(), total=TOTAL, window=5), SIZE),
}


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def each_sample(worker: int) -> float:
    return EACH * (TIMES if worker == SLOW else 1.0)


def waiting_ddp(rank: int, workers: int, case: Case, orders: Connection) -> None:
    """The usual loop, in which a mini-batch takes as long as that of a waiting worker."""
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
            ready = time.perf_counter() + FIXED + len(rows) * each_sample(rank)
            optimizer.zero_grad()
            loss = cross_entropy(net(inputs[rows]), targets[rows])
            time.sleep(max(0.0, ready - time.perf_counter()))
            loss.backward()
            optimizer.step()
            losses.append((time.perf_counter() - began, float(loss.detach())))
        orders.send(losses)


@dataclass(frozen=True)
class Setting:
    case: Case
    slow: Mapping[int, float | Delay]
    ddp: Body


SETTINGS = {
    "waiting": Setting(
        Case(perceptron, (64,), steps=STEPS, lr=3 * LR),
        {worker: PerSample(FIXED, Constant(each_sample(worker))) for worker in range(WORKERS)},
        waiting_ddp,
    ),
    "computing": Setting(CASES["convolutions"], {SLOW: TIMES}, slowed_ddp),
}


def ours(setting: Setting, rule: Rule, seed: int) -> tuple[float, list[list[int]]]:
    """The seconds to the target, and the sizes after each change."""
    case, (strategy, batch_size) = setting.case, rule
    torch.manual_seed(seed)
    run = pl.train(
        pl.Task(case.model(), cross_entropy, data(), evaluate=lambda model: {"loss": 0.0}), strategy=strategy,
        fleet=pl.ProcessFleet(WORKERS, slow=setting.slow, threads=1), seed=seed, progress=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=case.lr), batch_size=batch_size,
        stop=pl.Stop(updates=STEPS), every=pl.Every(updates=4),
    )  # fmt: skip
    sizes = [[*fact.sizes.values()] for fact in run.trace if isinstance(fact, pl.strategy.Resize)]
    return next((row.seconds for row in run.history if row.training_loss <= TARGET), float("inf")), sizes


def measure(setting: Setting, seeds: int) -> dict[str, Any]:
    team = Team(setting.ddp, setting.case, WORKERS)
    seconds: dict[str, list[float]] = {name: [] for name in ("DDP", *RULES)}
    sizes: list[list[list[int]]] = []
    for seed in range(seeds):
        seconds["DDP"].append(ddp_seconds(team, seed))
        for name, rule in RULES.items():
            took, changed = ours(setting, rule, seed)
            seconds[name].append(took)
            sizes += [changed] if changed else []
        print(seed, {name: round(values[-1], 3) for name, values in seconds.items()}, sizes[-1], flush=True)
    team.close()

    def against(other: str) -> dict[str, float]:
        pairs = {name: zip(seconds[other], seconds[name], strict=True) for name in seconds if name.startswith("sizes")}
        return {name: round(median(a / b for a, b in both), 2) for name, both in pairs.items()}

    return {
        "seconds": seconds,
        "sizes by measured speed": sizes,
        "times as fast as DDP": against("DDP"),
        "times as fast as SSGD": against("SSGD"),
    }


def main() -> None:
    torch.set_num_threads(1)
    seeds = min(parse().rounds, 3)
    save("unequal_batches", {"target": TARGET, **{name: measure(each, seeds) for name, each in SETTINGS.items()}})


if __name__ == "__main__":
    main()
