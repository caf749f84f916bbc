"""Fine-pruning at length: LeNet, all 50,000 pictures, 60 epochs, five seeds, and a paired test.

The paper trains for 200 epochs and divides the learning rate after 60, 120 and 160; here it is 60, 18, 36 and 48. It
names no setting of its windows. The first schedule has windows along the learning rate; the two others begin later,
and prune in fewer epochs but more samples. All save 15 % of the samples, and each has its own random control.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

from paceline.core.fields import table_of
from paceline.pruning.rules import FineRule, SoftRule
from paceline.pruning.schedule import Schedule
from reproductions.fine_pruning.formulas import TABLE_2
from reproductions.fine_pruning.plan import as_random, cost
from reproductions.fine_pruning.training import LEARNING_RATES, Choice, Size, Training, run_in_campaign
from reproductions.pipeline.campaign import Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import Claim, NotRun, Value, by_test, listed, made, of_plan, seeds_in_words
from reproductions.pipeline.plan import Plan
from reproductions.pipeline.samples import unpacked
from reproductions.pipeline.verdicts import FEW, Difference, over_samples, over_seeds

KEPT = 0.5  # points: "maintaining the accuracy"
ACCURACY_KEPT = "(accuracy kept)"  # of SoftPruning, of which the paper does not know
SAVED = 0.15
WINDOWS = {  # of 60 epochs whose learning rate is divided after 18, 36 and 48
    "rate": Schedule(6, 3, 3, windows=(18, 18, 12, 12)),
    "late": Schedule(9, 3, 3, windows=(18, 18, 12, 12)),
    "blocks": Schedule(4, 4, 2, windows=(18, 18, 12, 12)),
}
Results = Mapping[Training, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class LongPlan(Plan):
    """One network, its size, and the seeds; the first schedule comes before all others."""

    size: Size
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    schedules: tuple[str, ...] = tuple(WINDOWS)

    def rule(self, schedule: str) -> FineRule:
        """The schedule, with the share of samples that makes it save 15 %."""
        windows = WINDOWS[schedule]
        pruned = sum(windows.pruned(epoch) for epoch in range(1, self.size.epochs + 1))
        return FineRule(windows, fraction=SAVED * self.size.epochs / pruned)

    def arms(self) -> dict[str, tuple[Choice | None, float]]:
        """The rule and the share of the epochs of each way to train."""
        first = self.rule(self.schedules[0])
        listed: dict[str, tuple[Choice | None, float]] = {
            "regular": (None, 1.0), "pruned": (first, 1.0), "random": (as_random(first), 1.0),
            "shortened": (None, 1 - SAVED), "soft": (SoftRule(0.3, until=round(0.875 * self.size.epochs)), 1.0),
        }  # fmt: skip
        for name in self.schedules[1:]:
            rule = self.rule(name)
            listed |= {f"pruned.{name}": (rule, 1.0), f"random.{name}": (as_random(rule), 1.0)}
        return listed

    def run(self, data: str, arm: str, seed: int) -> Training:
        rule, share = self.arms()[arm]
        return Training(data, "lenet", self.seed + seed, self.size, rule, share)

    def runs(self, data: str) -> list[Training]:
        """Seed by seed, the four ways that the claims are about first."""
        arms = list(self.arms())
        return [self.run(data, arm, seed) for some in (arms[:4], arms[4:]) for seed in self.seeds for arm in some]


# Five seeds of nine ways: 45 runs of 3 million pictures, about five hours of one core.
LONG = LongPlan(name="all 50,000 pictures, 60 epochs", size=Size(50_000, 60, 128))


def seconds(training: Training) -> float:
    """Of one core, about: LeNet trains on 8,000 pictures a second."""
    saved = SAVED if training.rule is not None else 0.0
    return cost(training) * (1 - saved) / 8_000


@dataclass(frozen=True)
class _Found:
    plan: LongPlan
    data: str
    results: Results

    def seeds(self, *arms: str) -> list[int]:
        """Those of which all these arms were run."""
        return [s for s in self.plan.seeds if all(self.plan.run(self.data, a, s) in self.results for a in arms)]

    def results_of(self, arm: str, seeds: Iterable[int]) -> list[Mapping[str, Any]]:
        runs = [self.plan.run(self.data, arm, seed) for seed in seeds]
        if not runs:
            raise NotRun(self.plan.run(self.data, arm, self.plan.seeds[0]).name)
        return [self.results[run] for run in runs]

    def accuracies(self, arm: str, seeds: Iterable[int]) -> list[float]:
        return [100 * float(each["accuracy"]) for each in self.results_of(arm, seeds)]

    def between(self, one: str, other: str) -> tuple[Difference, str]:
        """How much better an arm is than another, and each seed's difference."""
        seeds = self.seeds(one, other)
        for arm in (one, other) if not seeds else ():
            self.results_of(arm, self.seeds(arm))  # which tells the one that is missing
        ones, others = self.accuracies(one, seeds), self.accuracies(other, seeds)
        differences = [mine - theirs for mine, theirs in zip(ones, others, strict=True)]
        note = f"{seeds_in_words(len(seeds))}: {listed(differences)}"
        if len(seeds) >= FEW and (found := over_seeds(differences)) is not None:
            return found, note
        bits = [
            np.concatenate([unpacked(each["right"], self.plan.size.tested) for each in self.results_of(arm, seeds)])
            for arm in (one, other)
        ]
        return over_samples(bits[0], bits[1]), f"{note}; of the last models, the best three epochs' means before it"


def long_card(plan: LongPlan, data: str, campaign: Campaign) -> Card:
    """All ways to train for every seed; claims are made of what there is."""
    found = _Found(plan, data, campaign.run(run_in_campaign, plan.runs(data), label="training", cost=seconds))
    rows = [
        {"kind": "training", "arm": arm, "seed": run.seed, **_row(found.results[run])}
        for arm in plan.arms()
        for seed in plan.seeds
        if (run := plan.run(data, arm, seed)) in found.results
    ]
    settings = {
        "plan": plan.name, "network": "LeNet", "size": plan.size.table(),
        "learning_rates": LEARNING_RATES["lenet"], "seeds": [plan.seed + seed for seed in plan.seeds],
        "schedules": {name: table_of(plan.rule(name)) for name in plan.schedules},
    }  # fmt: skip
    return Card("fine-pruning", settings, of_plan(_claims(found), plan.name), rows)


def _row(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "right"}


def _claims(found: _Found) -> Iterable[Claim]:
    papers = dict(zip(("regular", "pruned"), TABLE_2["LeNet"], strict=True))
    for arm in found.plan.arms():
        yield made(f"accuracy.{arm}", papers.get(arm), None, partial(_accuracy, found, arm))
    yield made("points_lost.pruned", 0.43, KEPT, partial(_lost, found, "pruned", 0.43))
    yield made("points_lost.soft", ACCURACY_KEPT, KEPT, partial(_lost, found, "soft", ACCURACY_KEPT))
    for schedule in found.plan.schedules:
        suffix = "" if schedule == found.plan.schedules[0] else f".{schedule}"
        for control in (f"random{suffix}", "shortened"):
            name = f"selection_helps.against_{control.split('.')[0]}{suffix}"
            pair = f"pruned{suffix}", control
            yield made(name, "(pruned is better)", "above 0", partial(_helps, found, pair))


def _accuracy(found: _Found, arm: str, name: str) -> Claim:
    seeds = found.seeds(arm)
    values = found.accuracies(arm, seeds)
    saved = 100 * fmean(float(each["saved"]) for each in found.results_of(arm, seeds))
    paper = dict(zip(("regular", "pruned"), TABLE_2["LeNet"], strict=True)).get(arm)
    note = f"{seeds_in_words(len(seeds))}: {listed(values)}; {saved:.1f} % of the samples saved"
    return Claim(name, paper, fmean(values), None, None, note)


def _lost(found: _Found, arm: str, paper: Value, name: str) -> Claim:
    """At most half a point: what is gained is no loss."""
    gap, note = found.between("regular", arm)
    return by_test(name, paper, gap, KEPT, gap.at_most(KEPT), f"regular less {arm}; {note}")


def _helps(found: _Found, pair: tuple[str, str], name: str) -> Claim:
    gain, note = found.between(*pair)
    return by_test(name, "(pruned is better)", gain, "above 0", gain.above(), f"points; control; {note}")
