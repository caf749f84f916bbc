"""``python -m reproductions group-sgd``: Figs 5 to 8 of *Group SGD*, its theorem, and the controls that it lacks.

Gao and Chen, *Group SGD*, 2020.
"""

from collections.abc import Mapping
from typing import Any

from reproductions.group_sgd.claims import timing_claims, training_claims
from reproductions.group_sgd.nonconvex import NONCONVEX, nonconvex_card
from reproductions.group_sgd.plan import FULL, LOWEST, QUICK, GroupSgdPlan, Search, end_of
from reproductions.group_sgd.training import BATCH, MODELS, STRATEGIES, UNITS, Training
from reproductions.pipeline.card import Card
from reproductions.pipeline.paper import AtLength, Paper
from reproductions.pipeline.runs import Runner


def make_card(plan: GroupSgdPlan, data: str, runner: Runner) -> Card:
    """The paper's learning rates and the search for others, then the controls."""
    search = Search(plan, data, runner)
    paper = search.with_learning_rates({(m, s): MODELS[m].learning_rates[s] for m in MODELS for s in STRATEGIES})
    search.run([*paper, *search.grid()], "paper's learning rates, and search for others")
    common, tuned = search.common(), search.tuned()
    with_common = search.with_learning_rates({(m, s): common[m] for m in MODELS for s in STRATEGIES})
    with_tuned = search.with_learning_rates(tuned)
    search.run([*with_common, *with_tuned], "controls")
    runs = [
        {"rates": which, **_about(each), **search.results[each]}
        for which, trainings in (("paper", paper), ("common", with_common), ("tuned", with_tuned))
        for each in trainings
    ]
    runs += [{"rates": "search", **_about(each), **end_of(search.results[each])} for each in search.grid()]
    claims = [*timing_claims(), *training_claims(runs, plan.units, plan.reduced)]
    return Card("group-sgd", _settings(plan, common, tuned), claims, runs)


def _about(training: Training) -> dict[str, Any]:
    return {"model": training.model, "strategy": training.strategy, "learning_rate": training.lr, "seed": training.seed}


def _settings(
    plan: GroupSgdPlan, common: Mapping[str, float], tuned: Mapping[tuple[str, str], float]
) -> dict[str, Any]:
    return {
        "scale": f"reduced: {plan.reduced}" if plan.reduced else "full",
        "data": "MNIST, odd against even, 60,000 images to train and 10,000 to test, pixels from 0 to 1",
        "workers": len(UNITS),
        "units_of_time": list(UNITS),
        "horizon": plan.units,
        "batch_size": BATCH,
        "sampling": "32 distinct images of the worker's own, drawn afresh for each mini-batch",
        "initial_model": "w = 0, no bias",
        "penalty": {name: model.penalty for name, model in MODELS.items()},
        "loss": "with its penalty, on all training images",
        "seeds": [plan.seed + seed for seed in plan.seeds],
        "learning_rates": {
            "paper": {name: model.learning_rates for name, model in MODELS.items()},
            "common": common,
            "tuned": {model: {s: tuned[model, s] for s in STRATEGIES} for model in MODELS},
        },
        "search": {
            "learning_rates": {model: plan.learning_rates(model) for model in LOWEST},
            "seeds": [plan.seed + seed for seed in plan.tuning_seeds],
            "tuned": "each strategy's learning rate with the lowest loss at the end",
            "common": "the learning rate with which the worst of the three strategies ends with the lowest loss",
        },
    }


AT_LENGTH = AtLength(NONCONVEX, nonconvex_card, ("mnist", "cifar10"))
PAPER = Paper("group-sgd", QUICK, FULL, make_card, ("mnist",), AT_LENGTH)
