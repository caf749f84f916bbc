"""``python -m reproductions fine-pruning``: what pruning saves, what accuracy it costs, whether the selection helps.

Li, He, Ren and Mao, *Data Fine-Pruning: A Simple Way to Accelerate Neural Network Training*, 2019.
"""

from typing import Any

from paceline.core.fields import table_of
from reproductions.fine_pruning.claims import Found, choose, claims, rows
from reproductions.fine_pruning.long import LONG, long_card
from reproductions.fine_pruning.pictures import pictures_row
from reproductions.fine_pruning.plan import QUICK, SMALL, FinePruningPlan, cost
from reproductions.fine_pruning.timing import Timing, run_timing
from reproductions.fine_pruning.training import LEARNING_RATES, run_training
from reproductions.pipeline.card import Card
from reproductions.pipeline.paper import AtLength, Paper
from reproductions.pipeline.runs import Runner


def make_card(plan: FinePruningPlan, data: str, runner: Runner) -> Card:
    """Time, then the five ways to train, then the search for a better one."""
    samples, rounds = plan.timed
    timing = Timing(samples, rounds, plan.fine.fraction)
    timed = runner.run(run_timing, [timing], label="timing")[timing]
    arms, tried = plan.arms(data), plan.search(data)
    trainings = [run for _, _, run in arms] + [run for _, run in tried]
    results = runner.run(run_training, trainings, cost=cost, label="training")
    found = Found(
        plan=plan,
        timed=timed,
        arms={(model, arm, run.seed): results[run] for model, arm, run in arms},
        tried={(name, run.seed): results[run] for name, run in tried},
    )
    best = choose(found)
    confirming = runner.run(run_training, plan.confirmed(data, best), cost=cost, label="confirming")
    confirmed = {run.seed: result for run, result in confirming.items()}
    drawn = pictures_row(data, plan, [found.arms["lenet", "pruned", seed] for seed in plan.seeds_of("lenet")])
    return Card("fine-pruning", _settings(plan), claims(found, best, confirmed), [*rows(found, best, confirmed), drawn])


def _settings(plan: FinePruningPlan) -> dict[str, Any]:
    size = plan.sizes["lenet"]
    planned = plan.fine.plan(size.samples, size.epochs)
    return {
        "plan": plan.name,
        "networks": {"lenet": "LeNet", "vgg": "VGG-11 of 1/8 width with GroupNorm"},
        "sizes": {model: each.table() for model, each in plan.sizes.items()},
        "seeds": {model: plan.seeds_of(model) for model in plan.seeds},
        "paper": "50000 samples, 200 epochs; its window, start, block, count, number and tolerance are not stated",
        "schedule": table_of(plan.fine),
        "pruned_epochs": list(planned.pruned_epochs),
        "soft": table_of(plan.soft),
        "shortened": f"{plan.share:.4g} of the epochs, the schedule of the learning rate shortened with them",
        "learning_rates": LEARNING_RATES,
        "search": f"{len(plan.variants()) + 1} variants, {len(plan.search_seeds)} seeds, {plan.searched.samples} "
        f"samples, judged on {plan.searched.tested} training samples that no run trains on",
    }


PAPER = Paper("fine-pruning", QUICK, SMALL, make_card, ("cifar10",), AtLength(LONG, long_card, ("cifar10",)))
