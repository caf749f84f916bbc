"""``python -m reproductions lgc``: live gradient compensation, its time at full length and its accuracy on CIFAR-10.

Xu, *Live Gradient Compensation for Evading Stragglers in Distributed Learning*.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from reproductions.lgc.claims import Findings, accuracy_claims, gap_rows, training_rows
from reproductions.lgc.plan import (
    FULL,
    QUICK,
    SMALL,
    Chosen,
    LgcPlan,
    Results,
    Runs,
    choose,
    cost,
    tuning,
    with_smaller,
)
from reproductions.lgc.timing import ITERATIONS, run_timing, timing_claims, timing_rows, timings
from reproductions.lgc.training import VALIDATED, run_training
from reproductions.pipeline.campaign import Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import waiting
from reproductions.pipeline.paper import AtLength, Paper
from reproductions.pipeline.runs import Runner

NETWORKS = {"vgg": "VGG-11 of 1/8 width with GroupNorm", "lenet": "LeNet"}


def make_card(plan: LgcPlan, data: str, runner: Runner) -> Card:
    """Time first, then the learning rates, then everything else that is trained."""
    timed = runner.run(run_timing, timings(plan.repeats, plan.iterations, plan.seed), label="timing")
    seconds = {timing: float(result["seconds"]) for timing, result in timed.items()}
    tuned = _tuned(plan, data, runner)
    found = _trained(Runs(plan, data, choose(plan, tuned)), runner)
    claims = [*timing_claims(seconds), *accuracy_claims(found)]
    rows = [*timing_rows(seconds), *training_rows({**tuned, **found.results})]
    return Card("lgc", _settings(plan, found.runs.chosen), claims, rows)


def long_card(plan: LgcPlan, data: str, campaign: Campaign) -> Card:
    """What was trained so far; the times are of the paper's length in the usual card already."""
    tuned = _tuned(plan, data, campaign)
    if len(tuned) < len(tuning(plan, data)):
        return _choosing(plan, data, campaign, tuned)
    found = _trained(Runs(plan, data, choose(plan, tuned)), campaign)
    rows = [*training_rows({**tuned, **found.results}), *gap_rows(found)]
    return Card("lgc", _settings(plan, found.runs.chosen), accuracy_claims(found), rows)


def _choosing(plan: LgcPlan, data: str, campaign: Campaign, tuned: Results) -> Card:
    """All claims wait for a choice between learning rates; which runs they need then is not known yet."""
    some = with_smaller(plan, plan.learning_rates[0])  # as good as any to count what comes later
    runs = Runs(plan, data, dict.fromkeys(plan.models, some))
    campaign.expect(map(cost, runs.all()))
    missing = f"{plan.name}: learning rates are being chosen"
    claims = [waiting(each.name, each.paper, each.tolerance, missing) for each in accuracy_claims(Findings(runs, {}))]
    return Card("lgc", _settings(plan, {}), claims, training_rows(tuned))


def _tuned(plan: LgcPlan, data: str, runner: Runner | Campaign) -> Results:
    return runner.run(run_training, tuning(plan, data), cost=cost, label="choosing learning rates")


def _trained(runs: Runs, runner: Runner | Campaign) -> Findings:
    return Findings(runs, runner.run(run_training, runs.all(), cost=cost, label="training"))


def _settings(plan: LgcPlan, chosen: Mapping[str, Chosen]) -> dict[str, Any]:
    size = plan.size
    rates = {model: (each.lr, each.smaller) for model, each in chosen.items()}
    return {
        "plan": plan.name,
        "timing": f"at the paper's settings: N=10, K=7, 0.05+Exp(0.02) s, {plan.iterations} of its {ITERATIONS} "
        f"iterations, {plan.repeats} of its 3 repeats",
        "networks": [NETWORKS[model] for model in plan.models],
        "training": (
            f"{plan.name}: {size.samples} of 50000 training samples, {size.epochs} epochs ({size.updates} updates) of "
            f"60 (9360), judged on {size.tested} test samples"
        ),
        "as_in_the_paper": "batches of 32, s=4, momentum 0.9, weight decay 0.0005, learning rate / 10 half-way, "
        "2/60 warm-up",
        "late_workers": "complete their batch at no cost in time, as the paper assumes; in Fig. 6, r of 4 blocks",
        "learning_rate_rule": _learning_rate_rule(plan),
        "learning_rates_tried": list(plan.learning_rates),
        "learning_rates": {
            model: dict(zip(("shared", "smaller"), rates.get(model, (None, None)), strict=True))
            for model in plan.models
        },
        "grids": [asdict(grid) for grid in plan.grids],
        "frontier": [list(each) for each in plan.frontier],
        "partial": [list(each) for each in plan.partial],
    }


def _learning_rate_rule(plan: LgcPlan) -> str:
    if len(plan.learning_rates) == 1:
        return "not tuned: the paper's learning rate, for all methods"
    first = f"c=3, seed {plan.seed}"
    shorter = "" if plan.tuned is None else f" after {plan.tuned.epochs} epochs of {plan.tuned.samples} samples"
    return (
        f"highest accuracy of Full-SGD ({first}){shorter} on {VALIDATED} samples not trained on; all methods share it"
    )


PAPER = Paper("lgc", QUICK, SMALL, make_card, ("cifar10",), AtLength(FULL, long_card, ("cifar10",)))
