"""Group SGD where its theory ends: LeNet on MNIST and CIFAR-10, rates tuned for each rule, five seeds, and its rivals.

The workers are the paper's: 16 of three speeds. Beside its three rules are those that want the same: ``Buffered`` with
the size of a mean group, which knows no speeds; ``Regrouped``, which finds the groups; ``UnequalBatches``, which has
nobody wait because slow workers compute less. All have as long, and the learning rate of one grid with which they end
with the lowest training loss on a seed of its own. Where that is the largest of the grid, larger ones are tried too.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from paceline import Buffered, Every, Regrouped, Run, Stop, Task, UnequalBatches, train
from paceline.data.images import Labelled, read_cifar10, read_mnist
from paceline.strategy import Strategy
from reproductions.group_sgd.training import BATCH, FLEET, STRATEGIES, UNITS
from reproductions.models.compiled import lenet
from reproductions.pipeline.campaign import Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import Claim, NotRun, made, of_plan
from reproductions.pipeline.plan import Plan, search
from reproductions.pipeline.resuming import resumed
from reproductions.pipeline.samples import packed, right
from reproductions.pipeline.values import rounded
from reproductions.pipeline.verdicts import over_seeds

VERSION = 1  # of the campaign's experiment: raise it when settings, arithmetic or data change, not rounding
TASKS = ("mnist", "cifar10")
RIVALS = ("buffered", "regrouped", "unequal")
RULES: Mapping[str, Strategy] = {
    **STRATEGIES,
    "buffered": Buffered(5),
    "regrouped": Regrouped(),
    "unequal": UnequalBatches(total=BATCH * len(UNITS)),
}
SEEN = 20  # evaluations in a run
AT_END, THROUGHOUT = "at the end", "in the mean of the whole time"
TESTED = 10_000
SPEED, FORWARD = 6_000, 20_000  # pictures a second that one core trains on, and passes forward
Results = Mapping["Nonconvex", Mapping[str, Any]]


@dataclass(frozen=True)
class Nonconvex:
    """One run of LeNet for so many units of time."""

    data: str
    task: str
    rule: str
    lr: float
    seed: int
    units: float
    samples: int = 0  # of the training set; 0 for all

    @property
    def name(self) -> str:
        return f"{self.task}-{self.rule}-{self.units:g}-units-lr{self.lr:g}-seed{self.seed}"


def run_nonconvex(run: Nonconvex, scratch: Path | None = None) -> dict[str, Any]:
    """Train, and evaluate on all test pictures on the way."""
    return trained(run, *pictures(run.data, run.task, run.samples), scratch)


def seconds(run: Nonconvex) -> float:
    """Of one core, about."""
    gradients = run.units * (len(UNITS) / max(UNITS) if run.rule in ("ssgd", "unequal") else sum(1 / u for u in UNITS))
    return gradients * BATCH / SPEED + SEEN * TESTED / FORWARD


Part = tuple[Tensor, Tensor]


def trained(run: Nonconvex, examples: Part, tests: Part, scratch: Path | None = None) -> dict[str, Any]:
    found = resumed(scratch, lambda: _trained(run, examples, tests, scratch))
    some = examples[0][:10_000], examples[1][:10_000]
    ended = Task(found.model, cross_entropy, examples, some).evaluator()(found.model)
    diverged = found.ended == "diverged"
    return {
        "ended": found.ended, "updates": found.history[-1].updates, "train_loss": None if diverged else ended["loss"],
        "train_accuracy": ended["accuracy"], "test_accuracy": found.history[-1].accuracy,
        "right": packed(right(found.model, tests)),
        "curve": [
            (rounded(row.seconds), row.updates, rounded(row.training_loss), rounded(row.accuracy))
            for row in found.history
        ],
    }  # fmt: skip


def _trained(run: Nonconvex, examples: Part, tests: Part, scratch: Path | None) -> Run:
    torch.manual_seed(run.seed)
    model = lenet(colours=examples[0].shape[1], pixels=examples[0].shape[2])
    return train(
        Task(model, cross_entropy, examples, tests),
        strategy=RULES[run.rule],
        fleet=FLEET,
        optimizer=lambda parameters: SGD(parameters, lr=run.lr),
        stop=Stop(seconds=run.units),
        batch_size=BATCH,
        every=Every(seconds=run.units / SEEN),
        seed=run.seed,
        directory=scratch,
        checkpoint=None if scratch is None else Every(seconds=run.units / 8),
        resume=scratch is not None,
        progress=None if scratch is not None else False,
    )


@lru_cache(maxsize=1)
def pictures(data: str, task: str, samples: int) -> tuple[Part, Part]:
    """Of mean 0 and deviation 1 over all pixels of the training pictures."""
    read = read_mnist(data) if task == "mnist" else read_cifar10(data)

    def part(labelled: Labelled) -> Part:
        images = torch.from_numpy(labelled.images)
        return (images if images.dim() == 4 else images.unsqueeze(1)).float().div(255), torch.from_numpy(
            labelled.labels
        )

    (inputs, labels), (tests, wanted) = part(read.train), part(read.test)
    mean, deviation = inputs.mean(), inputs.std()
    kept = slice(samples or None)
    return (((inputs - mean) / deviation)[kept], labels[kept]), ((tests - mean) / deviation, wanted)


@dataclass(frozen=True, kw_only=True)
class NonconvexPlan(Plan):
    """Tasks, rules and seeds; how long each run takes; the grid of learning rates, and the seed of the search.

    The ``further`` rates are tried one by one, while the largest that was tried is the best.
    """

    tasks: tuple[str, ...] = TASKS
    rules: tuple[str, ...] = tuple(RULES)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seed: int = 5
    rates: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2)
    further: tuple[float, ...] = (0.5, 1.0, 2.0)
    units: float = 2_000.0
    samples: int = 0

    def run(self, data: str, task: str, rule: str, lr: float, seed: int) -> Nonconvex:
        return Nonconvex(data, task, rule, lr, self.seed + seed, self.units, self.samples)

    def search(self, data: str, task: str, rule: str, results: Results) -> tuple[list[Nonconvex], float | None]:
        """The grid of learning rates as far as these results call for it, and the best one if all of it was run."""
        runs = [self.run(data, task, rule, lr, self.tuning_seed) for lr in (*self.rates, *self.further)]
        ends = {run.lr: results[run]["train_loss"] for run in runs if run in results}
        scores = {lr: math.inf if end is None else float(end) for lr, end in ends.items()}
        tried, best = search(self.rates, self.further, scores)
        return [run for run in runs if run.lr in tried], best

    @property
    def stages(self) -> list[tuple[str, tuple[str, ...]]]:
        """What is run before what: task by task the paper's own rules, then their rivals."""
        own = tuple(rule for rule in self.rules if rule in STRATEGIES)
        others = tuple(rule for rule in self.rules if rule not in STRATEGIES)
        return [(task, rules) for task in self.tasks for rules in (own, others)]


# Some 70 runs to choose learning rates and 60 more, of half a million pictures each: about two hours of one core.
NONCONVEX = NonconvexPlan(name="LeNet, 2,000 units of time")


@dataclass(frozen=True)
class _Found:
    plan: NonconvexPlan
    data: str
    rates: Mapping[tuple[str, str], float]
    results: Results

    def losses(self, task: str, rule: str, when: str) -> list[float]:
        """Training losses, one a seed: at the end, or the mean of the whole time; infinite if it diverged."""
        losses = []
        for seed in self.plan.seeds:
            run = self.plan.run(self.data, task, rule, self.rates.get((task, rule), math.nan), seed)
            if run not in self.results:
                raise NotRun(f"{task}-{rule}-seed{run.seed}")
            result = self.results[run]
            if result["train_loss"] is None:
                losses.append(math.inf)
            elif when == AT_END:
                losses.append(float(result["train_loss"]))
            else:
                losses.append(fmean(loss for _, _, loss, _ in result["curve"] if loss is not None))
        return losses


def nonconvex_card(plan: NonconvexPlan, data: str, campaign: Campaign) -> Card:
    """For some rules at a time their learning rates, each when all of its grid was run; then all seeds with them."""
    searched, results, rates = dict[Nonconvex, Any](), dict[Nonconvex, Any](), dict[tuple[str, str], float]()
    for task, rules in plan.stages:
        tried = -1
        while tried < len(searched):  # each time as far as the results call for it
            tried = len(searched)
            grids = [run for rule in rules for run in plan.search(data, task, rule, searched)[0]]
            searched |= campaign.run(run_nonconvex, grids, cost=seconds, label=f"{task}, choosing learning rates")
        best = {rule: plan.search(data, task, rule, searched)[1] for rule in rules}
        chosen = {(task, rule): lr for rule, lr in best.items() if lr is not None}
        rates |= chosen
        runs = [plan.run(data, *key, lr, seed) for seed in plan.seeds for key, lr in chosen.items()]
        results |= campaign.run(run_nonconvex, runs, cost=seconds, label=f"{task}, training")
        unknown = [plan.run(data, task, rule, plan.rates[0], 0) for rule, lr in best.items() if lr is None]
        campaign.expect(seconds(run) for run in unknown for _ in plan.seeds)
    found = _Found(plan, data, rates, results)
    rows = [
        {"task": run.task, "rule": run.rule, "learning_rate": run.lr, "seed": run.seed, "kind": kind, **_row(result)}
        for kind, results in (("search", searched), ("training", found.results))
        for run, result in results.items()
    ]
    settings = {
        "plan": plan.name, "workers": len(UNITS), "units_of_time": list(UNITS), "horizon": plan.units,
        "batch_size": BATCH, "learning_rates_tried": [*plan.rates, *plan.further],
        "seeds": [plan.seed + seed for seed in plan.seeds],
        "learning_rates": {f"{task}.{rule}": lr for (task, rule), lr in rates.items()},
    }  # fmt: skip
    return Card("group-sgd", settings, of_plan(_claims(found), plan.name), rows)


def _row(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "right"}


def _claims(found: _Found) -> Iterable[Claim]:
    for task in found.plan.tasks:
        for other in [rule for rule in found.plan.rules if rule != "gsgd"]:
            said = "lower" if other in STRATEGIES else "(lower)"
            for when, suffix in ((AT_END, ""), (THROUGHOUT, ".throughout")):
                make: Callable[[str], Claim] = partial(_lower, found, task, other, when, said)
                yield made(f"nonconvex.{task}.gsgd_below_{other}{suffix}", said, "beyond chance", make)


def _lower(found: _Found, task: str, other: str, when: str, said: str, name: str) -> Claim:  # noqa: PLR0917
    own, theirs = found.losses(task, "gsgd", when), found.losses(task, other, when)
    below = over_seeds([them - mine for mine, them in zip(own, theirs, strict=True)])
    rates = ", ".join(f"{rule} {found.rates[task, rule]:g}" for rule in ("gsgd", other))
    note = f"training loss {when} {fmean(own):.4g} against {fmean(theirs):.4g}; learning rates {rates}"
    if below is None:
        return Claim(name, said, None, "beyond chance", None, note, "a run diverged, or one seed: no test")
    return Claim(name, said, below.mean, "beyond chance", below.above(), note, below.words)
