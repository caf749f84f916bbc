"""How much of Group SGD is run, and the search for learning rates.

The paper gives each strategy a learning rate of its own and does not say how it was chosen, so a difference may be the
learning rate's. Two controls tell them apart, both by rules that treat all strategies alike:

tuned   each strategy with the learning rate of one grid that ends with the lowest loss
common  all with one learning rate of that grid: the one with which the worst of the three ends best
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reproductions.group_sgd.training import MODELS, STRATEGIES, Training, run_training
from reproductions.pipeline.plan import Plan, best_learning_rate
from reproductions.pipeline.runs import Result, Runner

COSTS = {"ssgd": 1.0, "gsgd": 2.0, "asgd": 6.0}  # measured, roughly
# The SVM's curvature is at most 38, that of logistic regression a quarter of it: its rates are four times as large.
LOWEST = {"svm": 0.002, "logistic": 0.008}


@dataclass(frozen=True, kw_only=True)
class GroupSgdPlan(Plan):
    """How much is run.

    seeds         of the runs, and ``tuning_seeds`` of the search for learning rates
    octaves       the grid of learning rates: powers of 2 times the lowest
    units         of time that each run takes
    reduced       what is less than in the usual plan, for the notes of claims
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seeds: tuple[int, ...] = (5,)
    octaves: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    units: float = 600.0
    reduced: str = ""

    def learning_rates(self, model: str) -> list[float]:
        return [LOWEST[model] * 2**octave for octave in self.octaves]

    def trainings(self, data: str, seeds: Sequence[int]) -> list[Training]:
        """A run without a learning rate for each strategy, seed and model; the long ones come first."""
        return [
            Training(model, strategy, 0.0, self.seed + seed, self.units, data)
            for strategy in reversed(STRATEGIES)
            for seed in seeds
            for model in MODELS
        ]


FULL = GroupSgdPlan(name="full")
QUICK = GroupSgdPlan(
    name="reduced",
    seeds=(0,),
    tuning_seeds=(0,),
    octaves=(0, 2, 4),
    units=300.0,
    reduced="one seed, 300 of 600 units of time, and three steps to choose from",
)


@dataclass(frozen=True)
class Search:
    """The results of a plan's runs so far, and the learning rates that are chosen from them."""

    plan: GroupSgdPlan
    data: str
    runner: Runner
    results: dict[Training, Result] = field(default_factory=dict)

    def run(self, trainings: Sequence[Training], label: str) -> None:
        """Run those that were not run yet."""
        missing = sorted({each: None for each in trainings if each not in self.results}, key=lambda each: -cost(each))
        self.results.update(self.runner.run(run_training, missing, cost=cost, label=label))

    def with_learning_rates(self, chosen: Mapping[tuple[str, str], float]) -> list[Training]:
        """All seeds of all models and strategies, each with its learning rate."""
        return [
            replace(each, lr=chosen[each.model, each.strategy])
            for each in self.plan.trainings(self.data, self.plan.seeds)
        ]

    def grid(self) -> list[Training]:
        """The runs of the search."""
        on_the_way = self.plan.tuning_seeds == self.plan.seeds  # then the best of them are the controls as well
        return [
            replace(each, lr=lr, on_the_way=on_the_way)
            for each in self.plan.trainings(self.data, self.plan.tuning_seeds)
            for lr in self.plan.learning_rates(each.model)
        ]

    def loss(self, model: str, strategy: str, lr: float) -> float:
        """At the end, the mean over the seeds of the search; infinite if a run diverged."""
        ends = [
            end_of(self.results[each])["loss"][0]
            for each in self.grid()
            if (each.model, each.strategy, each.lr) == (model, strategy, lr)
        ]
        return math.fsum(math.inf if end is None else end for end in ends) / len(ends)

    def tuned(self) -> dict[tuple[str, str], float]:
        """The best learning rate of each model and strategy."""
        return {
            (model, strategy): best_learning_rate(
                {lr: self.loss(model, strategy, lr) for lr in self.plan.learning_rates(model)}
            )
            for model in MODELS
            for strategy in STRATEGIES
        }

    def common(self) -> dict[str, float]:
        """The learning rate of each model with which the worst strategy does best."""
        return {
            model: best_learning_rate(
                {lr: max(self.loss(model, each, lr) for each in STRATEGIES) for lr in self.plan.learning_rates(model)}
            )
            for model in MODELS
        }


def cost(training: Training) -> float:
    """How long a run takes; those of SSGD take 1."""
    return COSTS[training.strategy]


def end_of(result: Result) -> dict[str, Any]:
    """The last row of a run; one that diverged has no loss."""
    last: dict[str, Any] = {name: result[name][-1:] for name in ("updates", "units", "loss", "accuracy")}
    if result["ended"] == "diverged":
        last["loss"] = [None]
    return {"ended": result["ended"], **last}
