"""One worker of four is four times as slow for each sample: time to the same training loss with unequal mini-batches.

    python benchmarks/unequal_batches.py [--save] [--rounds N]      (a round is a seed)

Compared in the same run: DDP and SSGD with 32 samples a worker, SSGD with sizes by hand, and sizes by measured speed,
which begin with 32 each. An update is the mean over 128 samples in all of them, with the same model, data and learning
rate. The training loss is the mean over the samples of the last four updates; nothing is evaluated on the way. In DDP
the slow rank sleeps, before its backward pass, three times what its forward and backward passes take.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from against_ddp import Case, Team
from measuring import parse, save
from stragglers import CASES, SLOW, STEPS, TARGET, TIMES, WORKERS, data, ddp_seconds, slowed_ddp
from torch.nn.functional import cross_entropy

import paceline as pl

TOTAL = 128
Rule = tuple[pl.strategy.Strategy, int | Sequence[int]]
RULES: dict[str, Rule] = {
    "SSGD": (pl.Synchronous(), 32),
    "sizes by hand": (pl.Synchronous(), pl.sizes_by_speed([1.0, 1.0, 1.0, 1 / TIMES], TOTAL)),
    "sizes by measured speed": (pl.UnequalBatches(pl.Synchronous(), total=TOTAL, window=5), 32),
}


def ours(case: Case, rule: Rule, seed: int) -> tuple[float, list[list[int]]]:
    """The seconds to the target, and the sizes after each change."""
    strategy, batch_size = rule
    torch.manual_seed(seed)
    run = pl.train(
        pl.Task(case.model(), cross_entropy, data(), evaluate=lambda model: {"loss": 0.0}), strategy=strategy,
        fleet=pl.ProcessFleet(WORKERS, slow={SLOW: TIMES}, threads=1), seed=seed, progress=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=case.lr), batch_size=batch_size,
        stop=pl.Stop(updates=STEPS), every=pl.Every(updates=4),
    )  # fmt: skip
    sizes = [[*fact.sizes.values()] for fact in run.trace if isinstance(fact, pl.strategy.Resize)]
    return next((row.seconds for row in run.history if row.training_loss <= TARGET), float("inf")), sizes


def measure(case: Case, seeds: int) -> dict[str, Any]:
    team = Team(slowed_ddp, case, WORKERS)
    seconds: dict[str, list[float]] = {name: [] for name in ("DDP", *RULES)}
    sizes: list[list[list[int]]] = []
    for seed in range(seeds):
        seconds["DDP"].append(ddp_seconds(team, seed))
        for name, rule in RULES.items():
            took, changed = ours(case, rule, seed)
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
    save("unequal_batches", {"target": TARGET, **{name: measure(case, seeds) for name, case in CASES.items()}})


if __name__ == "__main__":
    main()
