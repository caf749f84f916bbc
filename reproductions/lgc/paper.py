"""``python -m reproductions lgc``: live gradient compensation, its time at full length and its accuracy on CIFAR-10.

Xu, *Live Gradient Compensation for Evading Stragglers in Distributed Learning*.
"""

from dataclasses import asdict
from typing import Any

from paceline.data.images import read_cifar10
from reproductions.lgc.claims import Findings, accuracy_claims, training_rows
from reproductions.lgc.plan import FULL, QUICK, SMALL, LgcPlan, Results, Runs, choose, cost, tuning
from reproductions.lgc.timing import ITERATIONS, run_timing, timing_claims, timing_rows, timings
from reproductions.lgc.training import VALIDATED, run_training
from reproductions.pipeline.campaign import Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.paper import AtLength, Paper
from reproductions.pipeline.runs import Runner

NETWORKS = {"vgg": "VGG-11 of 1/8 width with GroupNorm", "lenet": "LeNet"}


def make_card(plan: LgcPlan, data: str, runner: Runner) -> Card:
    """Time first, then the learning rates, then everything else that is trained."""
    timed = runner.run(run_timing, timings(plan.repeats, plan.iterations, plan.seed), label="timing")
    seconds = {timing: float(result["seconds"]) for timing, result in timed.items()}
    found, tuned = _trained(plan, data, runner)
    claims = [*timing_claims(seconds), *accuracy_claims(found)]
    rows = [*timing_rows(seconds), *training_rows({**tuned, **found.results})]
    return Card("lgc", _settings(plan, found.runs), claims, rows)


def long_card(plan: LgcPlan, data: str, campaign: Campaign) -> Card:
    """What was trained so far; the times are of the paper's length in the usual card already."""
    found, tuned = _trained(plan, data, campaign)
    return Card("lgc", _settings(plan, found.runs), accuracy_claims(found), training_rows({**tuned, **found.results}))


def _trained(plan: LgcPlan, data: str, runner: Runner | Campaign) -> tuple[Findings, Results]:
    tuned = runner.run(run_training, tuning(plan, data), cost=cost, label="choosing learning rates")
    runs = Runs(plan, data, choose(plan, tuned))
    return Findings(runs, runner.run(run_training, runs.all(), cost=cost, label="training")), tuned


def _settings(plan: LgcPlan, runs: Runs) -> dict[str, Any]:
    size = plan.size
    return {
        "plan": plan.name,
        "timing": f"at the paper's settings: N=10, K=7, 0.05+Exp(0.02) s, {plan.iterations} of its {ITERATIONS} "
        f"iterations, {plan.repeats} of its 3 repeats",
        "networks": [NETWORKS[model] for model in plan.models],
        "training": (
            f"{plan.name}: {size.samples} of 50000 training samples, {size.epochs} epochs ({size.updates} updates) of "
            f"60 (9360), judged on {size.tested} test samples"
        ),
        "as_in_the_paper": "batches of 32, s=4, momentum 0.9, weight decay 0.0005, step / 10 half-way, 2/60 warm-up",
        "late_workers": "complete their batch at no cost in time, as the paper assumes; in Fig. 6, r of 4 blocks",
        "step_rule": _learning_rate_rule(plan),
        "steps_tried": list(plan.learning_rates),
        "steps": {model: {"step": each.lr, "smaller": each.smaller} for model, each in runs.chosen.items()},
        "grids": [asdict(grid) for grid in plan.grids],
        "frontier": [list(each) for each in plan.frontier],
        "partial": [list(each) for each in plan.partial],
    }


def _learning_rate_rule(plan: LgcPlan) -> str:
    if len(plan.learning_rates) == 1:
        return "not tuned: the paper's step, for all methods"
    first = f"c=3, seed {plan.seed}"
    shorter = "" if plan.tuned is None else f" after {plan.tuned.epochs} epochs of {plan.tuned.samples} samples"
    return (
        f"highest accuracy of Full-SGD ({first}){shorter} on {VALIDATED} samples not trained on; all methods share it"
    )


PAPER = Paper("lgc", QUICK, SMALL, make_card, read_cifar10, AtLength(FULL, long_card, read_cifar10))
