"""Reproduces *Group SGD* (Gao & Chen, 2020): its Figs 5 to 8, its theorem, and the controls that it lacks.

The paper gives each strategy a step of its own and does not say how it was chosen, so a difference may be the step's.
Two controls tell them apart, both by rules that treat all strategies alike:

tuned   each strategy with the step of one grid that ends with the lowest loss
common  all with one step of that grid: the one with which the worst of the three ends best
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.theory.group_bound import Toy
from reproductions.datasets.readers import read_mnist
from reproductions.group_sgd.claims import timing_claims, training_claims
from reproductions.group_sgd.training import BATCH, MODELS, STRATEGIES, UNITS, Setting, run_once
from reproductions.pipeline.card import Card, Options
from reproductions.pipeline.runs import Job, Result, run_jobs

TOY, TOY_UPDATES = Toy(step=0.02), 220
COSTS = {"ssgd": 1.0, "gsgd": 2.0, "asgd": 6.0}  # measured, roughly
# The SVM's curvature is at most 38, that of logistic regression a quarter of it: its steps are four times as large.
LOWEST = {"svm": 0.002, "logistic": 0.008}


@dataclass(frozen=True)
class Scale:
    """How much is run: seeds of the runs and of the search for steps, the grid of steps (by octaves), and how long."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    tuning_seeds: tuple[int, ...] = (5,)
    octaves: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)
    units: float = 600.0
    reduced: str = ""


FULL = Scale()
QUICK = Scale(
    seeds=(0,),
    tuning_seeds=(0,),
    octaves=(0, 2, 4),
    units=300.0,
    reduced="one seed, 300 of 600 units of time, and three steps to choose from",
)


def reproduce(options: Options) -> Card:
    """The card of the paper, in full or quick."""
    read_mnist(options.data)  # refused here, in one line, before any process is started
    return reproduce_at(QUICK if options.quick else FULL, options)


def reproduce_at(scale: Scale, options: Options) -> Card:
    """The card at any scale."""
    if options.data is None:
        raise ConfigError("group-sgd needs MNIST: give its folder")
    search = _Search(scale, Setting("", "", 0.0, 0, scale.units, str(Path(options.data).resolve())), options, {})
    paper = [replace(each, step=MODELS[each.model].steps[each.strategy]) for each in search.each(scale.seeds)]
    search.run([*paper, *search.grid()], "paper's steps, and search for others")
    common, tuned = search.common_steps(), search.tuned_steps()
    with_common = [replace(each, step=common[each.model]) for each in search.each(scale.seeds)]
    with_tuned = [replace(each, step=tuned[each.model, each.strategy]) for each in search.each(scale.seeds)]
    search.run([*with_common, *with_tuned], "controls")
    runs = [
        {"steps": steps, **_about(setting), **search.found[setting]}
        for steps, settings in (("paper", paper), ("common", with_common), ("tuned", with_tuned))
        for setting in settings
    ]
    runs += [{"steps": "search", **_about(each), **_end(search.found[each])} for each in search.grid()]
    claims = [*timing_claims(TOY, TOY_UPDATES), *training_claims(runs, scale.units, scale.reduced)]
    return Card("group-sgd", _settings(scale, common, tuned), claims, runs)


def figures(card: Card, directory: Path) -> list[Path]:
    """The paper's Figs 5 to 8, the controls, and the theorem."""
    from reproductions.group_sgd.figures import draw

    return draw(card, directory, TOY, TOY_UPDATES)


@dataclass(frozen=True)
class _Search:
    """The runs that were made, and the steps that are chosen from them."""

    scale: Scale
    blank: Setting
    options: Options
    found: dict[Setting, Result]

    def each(self, seeds: Sequence[int]) -> list[Setting]:
        """For each seed, model and strategy; the long runs come first."""
        return [
            replace(self.blank, model=model, strategy=strategy, seed=seed)
            for strategy in reversed(STRATEGIES)
            for seed in seeds
            for model in MODELS
        ]

    def grid(self) -> list[Setting]:
        on_the_way = self.scale.tuning_seeds == self.scale.seeds  # then the best of them are the controls as well
        return [
            replace(each, step=step, on_the_way=on_the_way)
            for each in self.each(self.scale.tuning_seeds)
            for step in self.steps(each.model)
        ]

    def steps(self, model: str) -> list[float]:
        return [LOWEST[model] * 2**octave for octave in self.scale.octaves]

    def run(self, settings: Sequence[Setting], label: str) -> None:
        missing = sorted(dict.fromkeys(s for s in settings if s not in self.found), key=lambda s: -COSTS[s.strategy])
        jobs = [Job(run_once, setting, COSTS[setting.strategy]) for setting in missing]
        results = run_jobs(jobs, work=self.options.work, processes=self.options.processes, label=label)
        self.found.update(zip(missing, results, strict=True))

    def loss(self, model: str, strategy: str, step: float) -> float:
        """At the end, the mean over the seeds of the search; infinite if a run diverged."""
        ends = [
            _end(self.found[each])["loss"][0]
            for each in self.grid()
            if (each.model, each.strategy, each.step) == (model, strategy, step)
        ]
        return math.fsum(math.inf if end is None else end for end in ends) / len(ends)

    def tuned_steps(self) -> dict[tuple[str, str], float]:
        return {
            (model, strategy): min(self.steps(model), key=lambda step: self.loss(model, strategy, step))
            for model in MODELS
            for strategy in STRATEGIES
        }

    def common_steps(self) -> dict[str, float]:
        return {
            model: min(self.steps(model), key=lambda step: max(self.loss(model, s, step) for s in STRATEGIES))
            for model in MODELS
        }


def _about(setting: Setting) -> dict[str, Any]:
    return {"model": setting.model, "strategy": setting.strategy, "step": setting.step, "seed": setting.seed}


def _end(result: Result) -> dict[str, Any]:
    """The last row; a run that diverged has no loss."""
    last: dict[str, Any] = {name: result[name][-1:] for name in ("updates", "units", "loss", "accuracy")}
    if result["ended"] == "diverged":
        last["loss"] = [None]
    return {"ended": result["ended"], **last}


def _settings(scale: Scale, common: dict[str, float], tuned: dict[tuple[str, str], float]) -> dict[str, Any]:
    return {
        "scale": f"reduced: {scale.reduced}" if scale.reduced else "full",
        "data": "MNIST, odd against even, 60,000 images to train and 10,000 to test, pixels from 0 to 1",
        "workers": len(UNITS),
        "units_of_time": list(UNITS),
        "horizon": scale.units,
        "batch_size": BATCH,
        "sampling": "32 distinct images of the worker's own, drawn afresh for each mini-batch",
        "initial_model": "w = 0, no bias",
        "penalty": {name: model.penalty for name, model in MODELS.items()},
        "loss": "with its penalty, on all training images",
        "seeds": list(scale.seeds),
        "steps": {
            "paper": {name: model.steps for name, model in MODELS.items()},
            "common": common,
            "tuned": {model: {s: tuned[model, s] for s in STRATEGIES} for model in MODELS},
        },
        "search": {
            "steps": {model: [low * 2**octave for octave in scale.octaves] for model, low in LOWEST.items()},
            "seeds": list(scale.tuning_seeds),
            "tuned": "each strategy's step with the lowest loss at the end",
            "common": "the step with which the worst of the three strategies ends with the lowest loss",
        },
    }
