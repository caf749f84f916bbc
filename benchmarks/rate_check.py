"""Does the check of the learning rate cry wolf? Runs over a grid of learning rates, each judged by the smaller ones.

    python benchmarks/rate_check.py [--save] [--seeds 0 1] [--keep FILE.jsonl] [--tasks linear mlp ...]

Tasks, fleets, rules, momentum and learning rates are crossed; every run is short and on simulated workers. A run is
*worse* if it diverged, or if its loss over the last quarter of its time is more than 1.25 times that of the best
smaller learning rate of the grid, all else equal. The check sees one run, never the others. Told are, for the shipped
rule and for others: the hit rate (of the runs that were worse, the share that is warned of), the false-alarm rate (of
the others, the share that is warned of), and of the warnings the share that is false. The rule was chosen on seed 0;
the other seeds are a test of it.

--keep appends a line for each run to a file; those that the file has already are not run again.
"""

import argparse
import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measuring import write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import paceline as pl
from paceline.config.experiment import make_task
from paceline.config.tasks import TaskChoice
from paceline.delays import LogNormal, Pareto, ShiftedExponential
from paceline.learning.curvature import Effort
from paceline.prediction.rate_check import PRODUCTS, SAMPLES, TOLERANCE, Evidence, evidence_of
from paceline.strategies.names import parse_strategy
from paceline.theory.stability.net_weights import NetWeights
from paceline.trace.measure import measure

WORSE = 1.25  # times the loss of the best smaller learning rate
EFFORT = Effort(SAMPLES, PRODUCTS, TOLERANCE)
GRID = {0.0: (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0), 0.9: (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)}


class Setting(NamedTuple):
    """A fleet with a partition, the time of a run on it, and the rules to train with."""

    fleet: pl.SimulatedFleet
    partition: pl.Equal | pl.Pathological
    seconds: float
    rules: Sequence[str]


DURATIONS = [LogNormal(median, 0.2) for median in (1.0,) * 4 + (2.0,) * 4 + (3.0,) * 6]
SETTINGS = {
    "16 unequal workers, two classes each": Setting(
        pl.SimulatedFleet([*DURATIONS, *[Pareto(2.4, 3.0)] * 2], recall="block"),
        pl.Pathological(2), 80.0, ("ssgd", "asgd", "lgc:quorum=8,blocks=4", "gsgd"),
    ),
    "8 like workers": Setting(
        pl.SimulatedFleet(ShiftedExponential(shift=0.5, mean=0.5), workers=8, recall="block"),
        pl.Equal(), 60.0, ("ssgd", "asgd", "lgc:quorum=4,blocks=4"),
    ),
}  # fmt: skip


def digits(seed: int, model: Callable[[], nn.Module], loss: Any = cross_entropy) -> pl.Task:
    data = make_task(TaskChoice("digits", "linear"), seed)
    torch.manual_seed(seed)
    return pl.Task(model=model(), loss=loss, train=data.train, test=data.test)


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3),
        nn.ReLU(), nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - one_hot(targets, 10)).square().mean(1)


TASKS: Mapping[str, Callable[[int], pl.Task]] = {
    "linear": lambda seed: make_task(TaskChoice("digits", "linear"), seed),
    "least squares": lambda seed: digits(seed, lambda: nn.Linear(64, 10), squares),
    "mlp": lambda seed: make_task(TaskChoice("digits", "mlp", hidden=(32,)), seed),
    "lenet": lambda seed: digits(seed, lenet),
}
Record = dict[str, Any]


def key(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("seed", "task", "setting", "rule", "momentum", "lr"))


def plans(seeds: Sequence[int], tasks: Sequence[str]) -> Iterator[Record]:
    names = ("seed", "task", "setting", "rule", "momentum", "lr")
    for seed, task, (setting, about) in product(seeds, tasks, SETTINGS.items()):
        for rule, (momentum, rates) in product(about.rules, GRID.items()):
            for lr in rates:
                yield dict(zip(names, (seed, task, setting, rule, momentum, lr), strict=True))


def recorded(plan: Record, initial: float) -> Record:
    """Train once, and tell what the check would see, and more."""
    setting, momentum, lr = SETTINGS[plan["setting"]], plan["momentum"], plan["lr"]
    task = TASKS[plan["task"]](plan["seed"])
    run = pl.train(
        task,
        strategy=parse_strategy(plan["rule"]).strategy(setting.fleet.medians),
        fleet=setting.fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum),
        stop=pl.Stop(seconds=setting.seconds),
        partition=setting.partition,
        every=pl.Every(seconds=setting.seconds / 40),
        seed=plan["seed"],
        progress=False,
    )
    measures = measure(run.trace)
    weights = NetWeights(measures.weight_by_age, measures.weight_by_gap)
    limit = pl.Descent(momentum=momentum).limit(weights)
    try:
        final = pl.curvature(task, EFFORT, model=run.model).value
    except pl.ConfigError:  # the loss overflows at these weights
        final = math.inf
    evidence = evidence_of(run.history, run.ended, lr * initial / limit)
    seen = evidence._asdict() | {"beyond_at_the_end": lr * final / limit, "first": run.history[0].loss}
    return plan | {name: value if math.isfinite(value) else str(value) for name, value in seen.items()}


def judged(records: Sequence[Record]) -> list[tuple[Record, Evidence, bool]]:
    """Each run with its evidence, and whether it was worse than one with a smaller learning rate."""
    cells = defaultdict[tuple[Any, ...], list[Record]](list)
    for record in records:
        cells[key(record)[:-1]].append(record)
    told = []
    for cell in cells.values():
        best = math.inf
        for record in sorted(cell, key=lambda each: each["lr"]):
            evidence = Evidence(*(float(record[name]) for name in Evidence._fields))
            told.append((record, evidence, not evidence.left <= WORSE * best))
            best = min(best, evidence.left)
    return told


RULES: Mapping[str, Callable[[Record, Evidence], bool]] = {
    "as shipped": lambda record, seen: seen.too_large,
    "beyond the limit at the initial weights": lambda record, seen: seen.beyond > 1,
    "3 times beyond it": lambda record, seen: seen.beyond > 3,
    "15 times beyond it": lambda record, seen: seen.beyond > 15,
    "beyond the limit at the final weights": lambda record, seen: float(record["beyond_at_the_end"]) > 1,
    "the loss rose and stayed high": lambda record, seen: seen.loss_stayed_high,
}


def rates(told: Sequence[tuple[Record, Evidence, bool]], rule: Callable[[Record, Evidence], bool]) -> dict[str, Any]:
    warned = [(rule(record, evidence), worse) for record, evidence, worse in told]
    hits, false = sum(said and worse for said, worse in warned), sum(said and not worse for said, worse in warned)
    bad, good = sum(worse for _, worse in warned), sum(not worse for _, worse in warned)
    return {
        "runs": len(warned), "worse": bad, "hits": hits, "false_alarms": false,
        "hit_rate": round(hits / bad, 3) if bad else None,
        "false_alarm_rate": round(false / good, 3) if good else None,
        "false_among_warnings": round(false / (hits + false), 3) if hits + false else None,
    }  # fmt: skip


def result(records: Sequence[Record]) -> dict[str, Any]:
    told = judged(records)
    shipped = RULES["as shipped"]
    by_seed = {s: [each for each in told if each[0]["seed"] == s] for s in sorted({r["seed"] for r in records})}
    by_task = {t: [each for each in told if each[0]["task"] == t] for t in TASKS}
    return {
        "rules": {name: rates(told, rule) for name, rule in RULES.items()},
        "as shipped, by seed": {str(seed): rates(each, shipped) for seed, each in by_seed.items()},
        "as shipped, by task": {task: rates(each, shipped) for task, each in by_task.items()},
        "false alarms": [record for record, evidence, worse in told if shipped(record, evidence) and not worse],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--keep", type=Path, help="a file of runs, to continue with")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("paceline").setLevel(logging.ERROR)  # contributions that are not finite are expected
    known = (
        [json.loads(line) for line in asked.keep.read_text().splitlines()] if asked.keep and asked.keep.exists() else []
    )
    records = {key(record): record for record in known}
    curvatures: dict[tuple[int, str], float] = {}
    for plan in plans(asked.seeds, asked.tasks):
        if key(plan) in records:
            continue
        of = plan["seed"], plan["task"]
        if of not in curvatures:
            curvatures[of] = pl.curvature(TASKS[plan["task"]](plan["seed"]), EFFORT).value
        records[key(plan)] = recorded(plan, curvatures[of])
        if asked.keep:
            with asked.keep.open("a") as file:
                print(json.dumps(records[key(plan)]), file=file)
    write("rate_check", result([*records.values()]), save=asked.save)


if __name__ == "__main__":
    main()
