"""The cases of the map of rules and of the advisor's record: fleets, tasks, data, targets, and how rates are tuned.

    python benchmarks/cases.py      find the targets anew, and what a run of each task costs

A case is a fleet, a task, and whether the workers' data are like or unlike. Everything is a frozen value, and ``run`` a
function of such values: the same arguments give the same curve on the same machine. Time is virtual; a mini-batch takes
one second in the median on a usual worker.

Budget   of a task: so many updates of the synchronous rule; on a fleet, the seconds that these take there.
Target   of a task and its data: the median over the seeds ``AIMED`` of the smallest test loss that the synchronous rule
         reaches in ``AIM`` of its budget on equal workers, at its best learning rate of ``RATES``.
Run      ends when an evaluation is at the target, or after ``LONGEST`` times the budget.
Rate     of a rule in a case: by ``tuned_rate``, the same search for every rule, on the seed ``TUNED``.

Rules are compared on the seeds ``COMPARED``, which neither targets nor rates have seen. Images are those of
PACELINE_DATA, or of /tmp/data.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy

import paceline as pl
from paceline.data.images import ImageSet, Labelled, read_cifar10, read_mnist
from paceline.data.partition import Partition
from paceline.delays import Delay, LogNormal, Pareto, SlowSpells
from paceline.strategies.names import parse_strategy
from paceline.strategy import Strategy

WORKERS = 8
NETWORK = pl.Network(latency=0.05)  # each way: a tenth of a mini-batch for both
COMPARED = (0, 1, 2, 3, 4)  # seeds that rules are compared on
TUNED = 100  # the seed that learning rates are chosen on
AIMED = (200, 201, 202)  # the seeds that targets are taken from
AIM = 0.5  # of the synchronous rule's budget: what it reaches by then is the target
LONGEST = 1.25  # times that budget: when a run ends that has not reached the target
EVALUATIONS = 50  # in that budget
Data = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]  # inputs and targets to train and to test on
RATES = tuple(2.0**power for power in range(-10, 4))  # of which a learning rate is chosen


def fleet(delays: Sequence[Delay], **conditions: object) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(delays, network=NETWORK, **conditions)  # type: ignore[arg-type]


USUAL = LogNormal(1.0, 0.1)
FLEETS: Mapping[str, pl.SimulatedFleet] = {
    "equal": fleet([USUAL] * 8),
    "one slow": fleet([USUAL] * 7 + [LogNormal(4.0, 0.1)]),
    "three kinds": fleet([USUAL] * 2 + [LogNormal(2.0, 0.1)] * 2 + [LogNormal(3.0, 0.1)] * 4),
    "heavy tail": fleet([Pareto(0.63, 1.5)] * 8),  # of median 1, and mean 1.9
    "drifting": fleet([USUAL] * 8, slowness=[SlowSpells(4.0, lasts=15.0, every=45.0)]),
    "spot": fleet([USUAL] * 8, availability=pl.Availability(mean_up=40.0, mean_down=10.0, notice=2.0)),
}


@dataclass(frozen=True)
class TaskSetting:
    """What is trained.

    rounds  the budget: so many updates of the synchronous rule
    batch_size  of one worker
    """

    name: str
    make: Callable[[int], pl.Task]
    batch_size: int
    rounds: int
    unlike: Partition
    targets: Mapping[str, float]  # the loss on the test samples to be reached, for like and for unlike data


class Case(NamedTuple):
    """A fleet, a task, and whether workers have like or unlike data, by their names."""

    fleet: str
    task: str
    data: str

    @property
    def partition(self) -> Partition:
        return pl.Equal() if self.data == "like" else TASKS[self.task].unlike

    @property
    def target(self) -> float:
        return TASKS[self.task].targets[self.data]

    def rule(self, strategy: str | Strategy) -> Strategy:
        """The rule of a text, in which ``{total}`` stands for the samples of one update of all workers."""
        if not isinstance(strategy, str):
            return strategy
        text = strategy.format(total=TASKS[self.task].batch_size * WORKERS)
        return parse_strategy(text).strategy(FLEETS[self.fleet].medians)

    @property
    def budget(self) -> float:
        """Seconds that the synchronous rule takes for the task's rounds on the fleet."""
        return synchronous_seconds(self.fleet, TASKS[self.task].rounds)


@dataclass(frozen=True)
class Curve:
    """The loss on the test samples against time; ``reached`` is when it first was at the target, else infinity."""

    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    reached: float
    ended: str
    updates: int
    staleness: float

    @property
    def least(self) -> float:
        return min(self.losses)


@dataclass(frozen=True)
class InOrder:
    """Shards of consecutive samples: for samples that are sorted by what they are."""

    def shards(self, samples: Labelled, workers: int, generator: np.random.Generator) -> Sequence[np.ndarray]:
        return np.array_split(np.arange(len(samples)), workers)


def data_folder() -> Path:
    return Path(os.environ.get("PACELINE_DATA", "/tmp/data"))


def pictures(found: ImageSet, train: int, test: int) -> Data:
    """The first pictures with sides of half the length, less the mean picture, of deviation 1."""
    halved = [
        avg_pool2d(torch.from_numpy(part.images[:count]).float().reshape(count, -1, *part.images.shape[-2:]), 2)
        for part, count in ((found.train, train), (found.test, test))
    ]
    mean, deviation = halved[0].mean(0), (halved[0] - halved[0].mean(0)).std()
    inputs = [(images - mean) / deviation for images in halved]
    labels = [torch.from_numpy(found.train.labels[:train]), torch.from_numpy(found.test.labels[:test])]
    return (inputs[0], labels[0]), (inputs[1], labels[1])


@cache
def mnist() -> Data:
    return pictures(read_mnist(data_folder() / "mnist"), 8_000, 500)


@cache
def cifar10() -> Data:
    return pictures(read_cifar10(data_folder() / "cifar10"), 6_000, 300)


def convex(seed: int) -> pl.Task:
    """Logistic regression on MNIST, 14 by 14."""
    train, test = mnist()
    torch.manual_seed(seed)
    return pl.Task(nn.Sequential(nn.Flatten(), nn.Linear(196, 10)), cross_entropy, train, test)


def lenet(seed: int) -> pl.Task:
    """LeNet on CIFAR-10, 16 by 16: the two convolutions and two of the three dense layers."""
    train, test = cifar10()
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),  # 6 x 8 x 8
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2)),  # 16 x 2 x 2
        *(nn.Flatten(), nn.Linear(64, 84), nn.ReLU(), nn.Linear(84, 10)),
    )
    return pl.Task(model, cross_entropy, train, test)


LETTERS, CONTEXT, DIALECTS = 16, 4, WORKERS
TRAINED, TESTED = 2_000, 64  # windows of each dialect


@cache
def text() -> Data:
    """Windows of letters and the letter that follows, sorted by dialect.

    Each dialect is a Markov chain: the logits of a letter after another are a table that all dialects share, plus half
    as much of one of its own.
    """
    generator = np.random.default_rng(2026)
    common = generator.normal(size=(LETTERS, LETTERS))
    parts = []
    for _ in range(DIALECTS):
        logits = 2.0 * common + 1.0 * generator.normal(size=common.shape)
        tables = np.cumsum(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), axis=-1)
        letters = [0]
        for drawn in generator.random(TRAINED + TESTED + 2 * CONTEXT):
            letters.append(min(int(np.searchsorted(tables[letters[-1]], drawn)), LETTERS - 1))
        windows = torch.tensor(letters).unfold(0, CONTEXT + 1, 1)
        parts.append((windows[:, :-1], windows[:, -1]))
    train = tuple(torch.cat([part[each][:TRAINED] for part in parts]) for each in (0, 1))
    test = tuple(torch.cat([part[each][-TESTED:] for part in parts]) for each in (0, 1))
    return train, test  # type: ignore[return-value]


def language(seed: int) -> pl.Task:
    """The neural language model of Bengio et al. (2003): embeddings of the last letters, one hidden layer."""
    train, test = text()
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Embedding(LETTERS, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 64), nn.Tanh(), nn.Linear(64, LETTERS))
    )
    return pl.Task(model, cross_entropy, train, test)


TASKS: Mapping[str, TaskSetting] = {
    each.name: each
    for each in (
        TaskSetting("convex", convex, 16, 60, pl.Pathological(2), {"like": 0.392, "unlike": 0.394}),
        TaskSetting("LeNet", lenet, 16, 40, pl.Pathological(2), {"like": 2.109, "unlike": 2.120}),
        TaskSetting("language", language, 16, 60, InOrder(), {"like": 1.883, "unlike": 1.891}),
    )
}
CASES = tuple(Case(fleet, task, data) for task in TASKS for data in ("like", "unlike") for fleet in FLEETS)


@cache
def synchronous_seconds(fleet: str, rounds: int) -> float:
    """What so many updates of the synchronous rule take on a fleet."""
    trace = pl.simulate("ssgd", FLEETS[fleet], pl.Stop(updates=rounds), seed=AIMED[0])
    return max(event.at for event in trace if isinstance(event, pl.strategy.Arrived))


def run_to_target(
    case: Case, strategy: str | Strategy, learning_rate: float, seed: int, *, budgets: float | None = None
) -> pl.Run:
    """Train once, to the target or at most ``LONGEST`` times the budget; with ``budgets``, so many, whatever comes."""
    setting, fleet, rule = TASKS[case.task], FLEETS[case.fleet], case.rule(strategy)
    logging.getLogger("paceline").setLevel(logging.ERROR)  # that a run diverged is in its curve
    if budgets is None:
        stop = pl.Stop(seconds=LONGEST * case.budget, metric="loss", below=case.target)
    else:
        stop = pl.Stop(seconds=budgets * case.budget)
    return pl.train(
        setting.make(seed),
        strategy=rule,
        fleet=fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=learning_rate),
        stop=stop,
        batch_size=None if isinstance(rule, pl.UnequalBatches) else setting.batch_size,
        partition=case.partition,
        every=pl.Every(seconds=case.budget / EVALUATIONS),
        seed=seed,
        progress=False,
    )


def run(
    case: Case, strategy: str | Strategy, learning_rate: float, seed: int, *, budgets: float | None = None
) -> Curve:
    """The curve of ``run_to_target``."""
    found = run_to_target(case, strategy, learning_rate, seed, budgets=budgets)
    rows = [row for row in found.history if math.isfinite(row.loss)]
    return Curve(
        tuple(row.seconds for row in rows),
        tuple(row.loss for row in rows),
        next((row.seconds for row in rows if row.loss <= case.target), math.inf),
        found.ended,
        found.history[-1].updates,
        found.mean_staleness,
    )


def tuned_rate(start: float, judged: Callable[[float], tuple[float, float]]) -> float:
    """The best learning rate of ``RATES`` by a search from ``start``: while a neighbour is better, go there.

    ``judged`` tells of a rate when the target was reached, and the smallest loss; less is better, the time first. Where
    both neighbours are better, the better one is taken. It takes three runs where ``start`` is best.
    """
    at = min(range(len(RATES)), key=lambda each: abs(math.log(RATES[each] / start)))
    known: dict[int, tuple[float, float]] = {}
    while True:
        around = [each for each in (at, at - 1, at + 1) if 0 <= each < len(RATES)]
        for each in around:
            if each not in known:
                known[each] = judged(RATES[each])
        best = min(around, key=lambda each: known[each])
        if best == at:
            return RATES[at]
        at = best


def aimed(task: str, data: str) -> tuple[float, float]:
    """The best rate of the synchronous rule, and the target, as the head of this file says."""
    case = Case("equal", task, data)
    rate = tuned_rate(0.25, lambda rate: (math.inf, run(case, "ssgd", rate, TUNED, budgets=AIM).least))
    return rate, median(run(case, "ssgd", rate, seed, budgets=AIM).least for seed in AIMED)


def main() -> None:
    torch.set_num_threads(1)
    for task, setting in TASKS.items():
        for data in setting.targets:
            rate, target = aimed(task, data)
            print(f"{task}, {data} data: the synchronous rule with {rate:g} reaches {target:.3f}", flush=True)
        for strategy in ("ssgd", "asgd", "ma:every=8"):
            begin = time.process_time()
            run(Case("three kinds", task, "like"), strategy, 0.1, TUNED, budgets=1.0)
            print(f"    {strategy}: {time.process_time() - begin:.2f} s of one core for a budget", flush=True)


if __name__ == "__main__":
    main()
