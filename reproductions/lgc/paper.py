"""``python -m reproductions lgc``: live gradient compensation, its time at full length and its accuracy on CIFAR-10.

Xu, *Live Gradient Compensation for Evading Stragglers in Distributed Learning*.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reproductions.datasets.readers import read_cifar10
from reproductions.lgc.claims import Findings, accuracy_claims, training_rows
from reproductions.lgc.plan import QUICK, SMALL, Plan, Results, Runs, choose, cost, tuning
from reproductions.lgc.timing import ITERATIONS, Timing, run_timing, timing_claims, timing_rows, timings
from reproductions.lgc.training import VALIDATED, Training, run_training
from reproductions.pipeline.card import Card, Options
from reproductions.pipeline.runs import Job, run_jobs

__all__ = ["figures", "reproduce"]
NETWORKS = {"vgg": "VGG-11 of 1/8 width with GroupNorm", "lenet": "LeNet"}


def reproduce(options: Options) -> Card:
    """Time first, then the steps, then everything else that is trained."""
    return reproduce_plan(QUICK if options.quick else SMALL, options)


def reproduce_plan(plan: Plan, options: Options) -> Card:
    """The same for any plan; ``lgc_plans.FULL`` is the largest."""
    read_cifar10(options.data)  # refused now rather than after the simulations
    seconds = simulated(timings(plan.repeats, plan.iterations), options)
    data = str(Path(options.data or ".").resolve())
    tuned = _train(tuning(plan, data), options, "choosing steps")
    runs = Runs(plan, data, choose(plan, tuned))
    found = Findings(runs, _train(runs.all(), options, "training"))
    claims = [*timing_claims(seconds), *accuracy_claims(found)]
    rows = [*timing_rows(seconds), *training_rows({**tuned, **found.results})]
    return Card("lgc", _settings(plan, runs), claims, rows)


def simulated(wanted: Sequence[Timing], options: Options) -> dict[Timing, float]:
    """The virtual seconds of simulations."""
    jobs = [Job(run_timing, timing) for timing in wanted]
    results = run_jobs(jobs, work=options.work, processes=options.processes, label="timing")
    return {timing: float(result["seconds"]) for timing, result in zip(wanted, results, strict=True)}


def figures(card: Card, directory: Path) -> list[Path]:
    """Draw what the card's runs came to."""
    from reproductions.lgc.figures import draw

    return draw(card, directory)


def _train(trainings: Sequence[Training], options: Options, label: str) -> Results:
    jobs = [Job(run_training, training, cost(training)) for training in trainings]
    results = run_jobs(jobs, work=options.work, processes=options.processes, label=label)
    return dict(zip(trainings, results, strict=True))


def _settings(plan: Plan, runs: Runs) -> dict[str, Any]:
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
        "step_rule": _step_rule(plan),
        "steps_tried": list(plan.steps),
        "steps": {model: asdict(chosen) for model, chosen in runs.chosen.items()},
        "grids": [asdict(grid) for grid in plan.grids],
        "frontier": [list(each) for each in plan.frontier],
        "partial": [list(each) for each in plan.partial],
    }


def _step_rule(plan: Plan) -> str:
    if len(plan.steps) == 1:
        return "not tuned: the paper's step, for all methods"
    return f"highest accuracy of Full-SGD (c=3, seed 0) on {VALIDATED} samples not trained on; all methods share it"
