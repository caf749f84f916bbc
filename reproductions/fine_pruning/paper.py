"""``python -m reproductions fine-pruning``: what pruning saves, what accuracy it costs, whether the selection helps.

Li, He, Ren and Mao, *Data Fine-Pruning: A Simple Way to Accelerate Neural Network Training*, 2019.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.config.toml import table_of
from reproductions.datasets.readers import read_cifar10
from reproductions.fine_pruning.claims import Found, choose, claims, rows
from reproductions.fine_pruning.pictures import pictures_row
from reproductions.fine_pruning.plan import QUICK, SMALL, Plan, cost
from reproductions.fine_pruning.timing import Timing, run_timing
from reproductions.fine_pruning.training import STEPS, Training, run_training
from reproductions.pipeline.card import Card, Options
from reproductions.pipeline.runs import Job, Result, run_jobs

__all__ = ["figures", "reproduce"]


def reproduce(options: Options) -> Card:
    """Time, then the five ways to train, then the search for a better one."""
    return reproduce_plan(QUICK if options.quick else SMALL, options)


def reproduce_plan(plan: Plan, options: Options) -> Card:
    """The same for any plan; ``fine_pruning_plans.FULL`` is as long as the paper's."""
    read_cifar10(options.data)  # refused now rather than after minutes
    data = str(Path(options.data or ".").resolve())
    samples, rounds = plan.timed
    timing = Timing(samples, rounds, plan.fine.fraction)
    timed = run_jobs([Job(run_timing, timing)], work=options.work, processes=1, label="timing")[0]
    listed, tried = plan.runs(data), plan.search(data)
    trainings = [run for _, _, run in listed] + [run for _, run in tried]
    results = dict(zip(trainings, _train(trainings, options, "training"), strict=True))
    found = Found(
        plan=plan,
        timed=timed,
        arms={(model, arm, run.seed): results[run] for model, arm, run in listed},
        tried={(name, run.seed): results[run] for name, run in tried},
    )
    best = choose(found)
    confirming = plan.confirmed(data, best)
    confirmed = dict(zip((run.seed for run in confirming), _train(confirming, options, "confirming"), strict=True))
    drawn = pictures_row(data, plan, [found.arms["lenet", "pruned", seed] for seed in plan.seeds["lenet"]])
    return Card("fine-pruning", _settings(plan), claims(found, best, confirmed), [*rows(found, best, confirmed), drawn])


def figures(card: Card, directory: Path) -> list[Path]:
    """Draw what the card's runs came to."""
    from reproductions.fine_pruning.figures import draw

    return draw(card, directory)


def _train(trainings: Sequence[Training], options: Options, label: str) -> list[Result]:
    jobs = [Job(run_training, training, cost(training)) for training in trainings]
    return run_jobs(jobs, work=options.work, processes=options.processes, label=label)


def _settings(plan: Plan) -> dict[str, Any]:
    size = plan.sizes["lenet"]
    planned = plan.fine.plan(size.samples, size.epochs)
    return {
        "plan": plan.name,
        "networks": {"lenet": "LeNet", "vgg": "VGG-11 of 1/8 width with GroupNorm"},
        "sizes": {model: asdict(each) for model, each in plan.sizes.items()},
        "seeds": {model: list(each) for model, each in plan.seeds.items()},
        "paper": "50000 samples, 200 epochs; its window, start, block, count, number and tolerance are not stated",
        "schedule": table_of(plan.fine),
        "pruned_epochs": list(planned.pruned_epochs),
        "soft": table_of(plan.soft),
        "shortened": f"{plan.share:.4g} of the epochs, the schedule of the step shortened with them",
        "steps": STEPS,
        "search": f"{len(plan.variants()) + 1} variants, {len(plan.search_seeds)} seeds, {plan.searched.samples} "
        f"samples, judged on {plan.searched.tested} training samples that no run trains on",
    }
