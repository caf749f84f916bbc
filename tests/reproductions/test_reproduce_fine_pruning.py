"""The reproduction of fine-pruning: its plans, its claims, its runs on a tiny scale."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import paceline as pl
from paceline.pruning.rules import SoftRule
from reproductions.fine_pruning.claims import Found, choose, claims, rows
from reproductions.fine_pruning.paper import PAPER
from reproductions.fine_pruning.plan import ARMS, QUICK, SMALL, FinePruningPlan, as_random, ending
from reproductions.fine_pruning.timing import Timing, run_timing
from reproductions.fine_pruning.training import Size, chosen_samples
from reproductions.pipeline.card import Card
from reproductions.pipeline.plan import Options


@pytest.mark.parametrize("plan", [QUICK, SMALL], ids=["quick", "scaled down"])
def test_every_variant_saves_as_much_as_the_schedule_and_the_schedule_fifteen_percent(plan: FinePruningPlan) -> None:
    size = plan.searched
    assert 1 - plan.share >= 0.15 - 1e-12
    for name, rule in plan.variants().items():
        if isinstance(rule, SoftRule):
            assert not rule.plan(size.samples, size.epochs).exact
        else:
            assert rule is not None
            assert rule.plan(size.samples, size.epochs).saved >= 1 - plan.share - 1e-12, name


def test_the_schedule_is_the_one_that_the_page_describes() -> None:
    plan = SMALL.fine.plan(4_000, 30)
    assert plan.pruned_epochs == (4, 5, 6, 8, 9, 13, 14, 16, 17, 18, 22, 24, 28, 29, 30)
    assert plan.saved == 0.15
    late = ending(SMALL.fine, 24, Size(4_000, 30))
    assert late.plan(4_000, 30).pruned_epochs == plan.pruned_epochs[:12]
    assert late.fraction == pytest.approx(0.375)


def test_runs_are_paired_and_listed_once() -> None:
    listed = SMALL.arms("DIR")
    assert len({run for _, _, run in listed}) == len(listed) == 5 * (3 + 1)
    one = {arm: SMALL.run("DIR", "lenet", arm, 1) for arm in ARMS}
    assert one["regular"] == replace(one["shortened"], share=1.0)
    assert one["random"].rule == as_random(SMALL.fine)
    assert one["random"].rule.plan(100, 30) == SMALL.fine.plan(100, 30)
    assert {run.seed for _, run in SMALL.search("DIR")} & {0, 1, 2} == set()  # seeds of their own
    assert all(run.size.validation for _, run in SMALL.search("DIR"))
    assert not any(run.size.validation for run in SMALL.confirmed("DIR", "random"))


def found_with(accuracy: dict[str, float], tried: dict[str, float]) -> Found:
    def result(value: float) -> dict[str, Any]:
        return {"accuracy": value, "saved": 0.15, "times_pruned": [0], "trends": [[1.0]]}

    arms = {(model, arm, run.seed): result(accuracy[arm] + run.seed / 1000) for model, arm, run in SMALL.arms("DIR")}
    searched = {(name, run.seed): result(tried.get(name, 0.4)) for name, run in SMALL.search("DIR")}
    return Found(SMALL, {"whole": 1.002, "pruned": 0.71, "overhead": 0.002}, arms, searched)


def test_claims_tell_what_does_not_hold() -> None:
    accuracy = {"regular": 0.60, "pruned": 0.58, "random": 0.59, "soft": 0.6, "shortened": 0.57}
    found = found_with(accuracy, {"soft, weighed": 0.5})
    assert choose(found) == "soft, weighed"
    confirmed = {seed: {"accuracy": 0.6, "saved": 0.14, "times_pruned": [], "trends": []} for seed in (0, 1, 2)}
    made = {claim.name: claim for claim in claims(found, "soft, weighed", confirmed)}
    assert made["accuracy.pruned"].ours == pytest.approx(58.1)
    assert made["points_lost.pruned"].ours == pytest.approx(2.0)
    assert made["points_lost.pruned"].holds is False
    assert made["selection_helps.against_random"].holds is False
    assert made["selection_helps.against_shortened"].holds is True
    assert made["samples_saved_percent"].holds is True
    assert made["time_saved_percent"].ours == pytest.approx(14.4)
    assert made["time_saved_percent"].holds is True
    assert made["overhead_percent"].ours == pytest.approx(0.2)
    assert made["beyond.saved_percent"].holds is False
    assert made["beyond.no_worse_than_random"].holds is True
    wanted = {f"accuracy.{arm}" for arm in ARMS} | {f"accuracy.vgg.{arm}" for arm in ARMS}
    assert wanted <= made.keys()
    assert {f"n_prune.200_60_30_5_3_2.{each}" for each in ("window", "literal", "formula3")} <= made.keys()
    assert made["n_prune.200_60_30_5_3_2.window"].ours == 86
    assert made["n_prune.200_60_30_5_3_2.literal"].ours == 100
    formula = made["n_prune.200_60_30_5_3_2.formula3"]
    assert (formula.ours, formula.holds) == (54, False)
    assert [made[f"table_1.{each}"].holds for each in ("LeNet", "VggNet-13", "WRN-22")] == [True] * 3
    assert made["table_1.mean"].holds is False
    card = Card("fine-pruning", {}, list(made.values()), rows(found, "soft, weighed", confirmed))
    assert not any("times_pruned" in row for row in card.runs)


def test_samples_are_as_many_of_each_class() -> None:
    labels = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9] * 7)
    assert np.bincount(labels[chosen_samples(labels, 30)]).tolist() == [3] * 10


def test_the_timing_compares_epochs_in_turn() -> None:
    timed = run_timing(Timing(samples=256, rounds=3, fraction=0.5))
    assert 0 < timed["overhead"] < 1
    assert timed["pruned"] < timed["whole"]


def test_without_data_it_says_how_to_get_them() -> None:
    with pytest.raises(pl.ConfigError, match="python -m reproductions fetch cifar10"):
        PAPER.reproduce_plan(QUICK, Options())
