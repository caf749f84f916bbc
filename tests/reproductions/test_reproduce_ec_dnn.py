"""``python -m reproductions ec-dnn``: local and global models, how speed is measured, what is claimed."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR

import paceline as pl
from paceline.learning.models.ensemble import Ensemble
from reproductions.ec_dnn.claims import claims, run_rows, settings
from reproductions.ec_dnn.evaluation import evaluate, training_losses
from reproductions.ec_dnn.figures import tables
from reproductions.ec_dnn.findings import Findings, curve, gains, speed, violations
from reproductions.ec_dnn.paper import PAPER
from reproductions.ec_dnn.plan import (
    COMPRESSING,
    QUICK,
    SMALL,
    EcDnnPlan,
    Runs,
    Taus,
    choose_learning_rates,
    choose_taus,
    cost,
    rows,
    tuning,
)
from reproductions.ec_dnn.training import (
    BATCH,
    Case,
    Flipped,
    Run,
    Size,
    Swept,
    Training,
    fleet_of,
    network,
    strategy_of,
)
from reproductions.pipeline.card import Card
from reproductions.pipeline.plan import Options

NAMES = {
    "diff_lg.ensemble.min", "diff_lg.ma.share_negative", "error.ma_g", "error.e_g", "error.ec_s_g", "error.ec_r_g",
    "error.ec_m_g", "speed.ec_s_g", "jensen.violations",
}  # fmt: skip


@pytest.fixture(scope="module")
def pictures() -> tuple[Tensor, Tensor]:
    """Noise with labels, seed 0."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(256, 3, 32, 32, generator=generator), torch.randint(10, (256,), generator=generator)


def training(case: Case, steps: int = 12) -> Training:
    return Training("DIR", "lenet", case, 0.02, 3, Size(samples=256, steps=steps, followed=64, tested=64))


def vector(model: nn.Module) -> Tensor:
    return parameters_to_vector(model.parameters()).detach()


def by_train(wanted: Training, strategy: pl.strategy.Strategy, pictures: tuple[Tensor, Tensor]) -> pl.Run:
    return pl.train(
        pl.Task(network(wanted), cross_entropy, pictures),
        strategy=strategy,
        fleet=fleet_of(wanted),
        optimizer=lambda parameters: SGD(parameters, lr=0.02, momentum=0.9, weight_decay=1e-4),
        scheduler=lambda optimizer: MultiStepLR(optimizer, [wanted.steps * 3 // 4], 0.1),
        batch_size=BATCH,
        seed=wanted.seed,
        progress=False,
    )


# Training


@pytest.mark.parametrize("case", [Case("ma", 2, 5), Case("ec_r", 2, 6), Case("e", 2), Case("s", 1)], ids=str)
def test_a_run_is_what_train_does_bit_for_bit(case: Case, pictures: tuple[Tensor, Tensor]) -> None:
    wanted = training(case, steps=12 if case.workers > 1 else 2)
    run = Run(wanted, network(wanted), pictures)
    last = list(run.communications())[-1]
    assert last.steps == wanted.steps
    same = by_train(wanted, run.strategy, pictures)
    assert torch.equal(vector(run.server.model), vector(same.model))
    assert last.seconds == same.history[-1].seconds
    assert run.workers.costs == same.costs


@pytest.mark.parametrize("in_campaign", [False, True], ids=["torch's", "compiled"])
def test_members_of_an_ensemble_begin_with_weights_of_their_own_in_every_layer(
    in_campaign: bool, pictures: tuple[Tensor, Tensor]
) -> None:
    wanted = training(Case("ec_s", 2, 4))
    first, second = Run(wanted, network(wanted, in_campaign=in_campaign), pictures).members
    pairs = zip(first.named_parameters(), second.parameters(), strict=True)
    assert [name for (name, own), other in pairs if torch.equal(own, other)] == []


def test_the_local_models_of_model_averaging_are_seen_as_they_were_handed_in(pictures: tuple[Tensor, Tensor]) -> None:
    wanted = training(Case("ma", 2, 4))
    run = Run(wanted, network(wanted), pictures)
    for _ in run.communications():
        first, second = (vector(member) for member in run.members)
        assert not torch.equal(first, second)
        assert torch.allclose((first + second) / 2, vector(run.server.model), atol=1e-7)


def test_only_ensembles_are_communications_not_what_follows_a_compression(pictures: tuple[Tensor, Tensor]) -> None:
    wanted = training(Case("ec_s", 2, 10), steps=30)
    assert [at.steps for at in Run(wanted, network(wanted), pictures).communications()] == [10, 20, 30]


def test_evaluating_e_dnn_on_the_way_changes_nothing(pictures: tuple[Tensor, Tensor]) -> None:
    wanted = training(Case("e", 2), steps=20)
    run = Run(wanted, network(wanted), pictures)
    assert [at.steps for at in run.communications()] == list(range(2, 21, 2))
    same = by_train(wanted, pl.FinalEnsemble(20), pictures)
    assert torch.equal(vector(run.server.model), vector(same.model))


@pytest.mark.parametrize("case", [Case("ma", 2, 4), Case("ec_s", 2, 6)], ids=str)
def test_evaluating_models_on_the_way_changes_nothing(case: Case, pictures: tuple[Tensor, Tensor]) -> None:
    """Their dropout and mirrored pictures go on."""
    wanted = training(case)
    alone, watched = (Run(wanted, network(wanted), pictures) for _ in range(2))
    for _, _ in zip(alone.communications(), watched.communications(), strict=True):
        evaluate(watched.server.model, watched.members, (pictures[0][:8], pictures[1][:8]))
        assert all(member.training for member in watched.members)
        assert torch.equal(vector(alone.server.model), vector(watched.server.model))


def test_each_method_has_its_rule() -> None:
    assert strategy_of(Case("ma", 4, 16), 500) == pl.ModelAveraging(every=16, steps=500)
    assert strategy_of(Case("ec_m", 4, 50), 500) == pl.EnsembleCompression(every=50, steps=500, weights="margin")
    pooled = pl.EnsembleCompression(every=50, steps=500, weights="regression", pooled=True)
    assert strategy_of(Case("ec_r_pooled", 4, 50), 500) == pooled
    no_local = strategy_of(Case("ec_s", 4, 50, "local"), 500)
    assert isinstance(no_local, pl.EnsembleCompression)
    assert (no_local.compressed, no_local.diversity) == (50, 0)
    no_diversity = strategy_of(Case("ec_s", 4, 50, "diversity"), 500)
    assert isinstance(no_diversity, pl.EnsembleCompression)
    assert (no_diversity.compressed, no_diversity.diversity) == (5, 0)


def test_pictures_are_mirrored_in_training_only() -> None:
    torch.manual_seed(0)
    rows = torch.arange(32.0).expand(200, 3, 32, 32)
    module = Flipped()
    firsts = module(rows)[:, 0, 0, 0]
    assert set(firsts.tolist()) == {0.0, 31.0}
    assert 70 < int((firsts == 31).sum()) < 130  # 200 tosses: within 4 standard deviations of 100
    assert torch.equal(module.eval()(rows), rows)


# Evaluation


def test_an_ensemble_is_evaluated_from_its_members_outputs(pictures: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(1)
    members = [nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)) for _ in range(3)]
    for weights in ([1 / 3] * 3, [1.5, -0.4, 0.1]):
        whole = Ensemble(members, weights)
        seen = evaluate(whole, members, pictures)
        wrong = [(each(pictures[0]).argmax(1) != pictures[1]).double().mean().item() for each in (whole, *members)]
        assert [seen.error, *seen.errors] == wrong
    assert evaluate(Ensemble(members), members, pictures).error == seen.simple_error
    assert seen.violations == 0
    assert seen.losses == pytest.approx(training_losses(members, pictures), rel=1e-5)


def test_an_average_is_evaluated_by_itself(pictures: tuple[Tensor, Tensor]) -> None:
    """Two networks that differ in the order of their hidden units agree; their average is another function."""
    torch.manual_seed(2)
    first, second, average = (
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 20), nn.ReLU(), nn.Linear(20, 10)) for _ in range(3)
    )
    order = torch.randperm(20)
    own = first.state_dict()
    other = {"1.weight": own["1.weight"][order], "1.bias": own["1.bias"][order]}
    other |= {"3.weight": own["3.weight"][:, order], "3.bias": own["3.bias"]}
    second.load_state_dict(other)
    average.load_state_dict({name: (own[name] + other[name]) / 2 for name in own})
    seen = evaluate(average, [first, second], pictures)
    assert seen.errors[0] == seen.errors[1] == seen.simple_error
    assert seen.error == (average(pictures[0]).argmax(1) != pictures[1]).double().mean().item() != seen.errors[0]


# Findings


def test_speed_is_the_time_to_the_smallest_error_of_model_averaging() -> None:
    averaging = [(1.0, 0.6), (2.0, 0.5), (3.0, 0.4), (4.0, 0.4)]
    assert speed(averaging, averaging) == 1.0
    assert speed([(1.0, 0.5), (1.5, 0.39), (2.0, 0.3)], averaging) == 2.0
    assert speed([(6.0, 0.4)], averaging) == 0.5
    assert speed([(1.0, 0.41)], averaging) == 0.0


def test_what_is_charged_is_chosen() -> None:
    costs = {"compute": 1.0, "relabelling": 0.5, "communication": 0.25}
    result = {"local": 1, "curve": [{**costs, "error": 0.3, "errors": [0.6, 0.4]}]}
    assert [curve(result, "g", clock) for clock in ("steps", "steps_relabelling", "all")] == [
        [(1.0, 0.3)], [(1.5, 0.3)], [(1.75, 0.3)],
    ]  # fmt: skip
    assert curve(result, "l") == [(1.75, 0.4)]


def invented(run: Training) -> dict[str, Any]:
    """A result whose errors tell the method: MA-DNN's averages are 2 points worse than its local models."""
    case = run.case
    error = {"ma": 0.52, "e": 0.47, "ec_s": 0.45, "ec_r": 0.46, "ec_m": 0.44}.get(case.method, 0.5)
    error += 0.01 * run.seed + (0.03 if case.without else 0.0) + (run.lr - 0.02) ** 2
    point = {
        "steps": 50, "seconds": 1.75, "compute": 1.0, "relabelling": 0.5, "communication": 0.25, "error": error,
        "errors": [0.5 + 0.01 * run.seed] * case.workers, "simple_error": error, "violations": 0,
    }  # fmt: skip
    return {
        "problem": None, "curve": [point, {**point, "steps": 100, "seconds": 3.5}], "local": 0,
        "error_g": error, "error_l": error + 0.02, "error_l_validated": error + 0.01, "validation_error_g": error,
    }  # fmt: skip


def found(plan: EcDnnPlan) -> Findings:
    runs = Runs(plan, "DIR", dict.fromkeys(plan.sizes, 0.02))
    taus = Taus(plan.averaging[0], plan.compressing[-1])
    return Findings(runs, taus, {run: invented(run) for run in (*runs.first(), *runs.others(taus))})


@pytest.mark.parametrize("plan", [QUICK, SMALL], ids=["quick", "small"])
def test_a_plan_lists_every_run_once_and_all_claims_are_made_of_them(plan: EcDnnPlan) -> None:
    findings = found(plan)
    others = findings.runs.others(findings.taus)
    assert len(set(others)) == len(others)
    made = {claim.name: claim for claim in claims(findings)}
    assert made.keys() >= NAMES
    assert made["error.ma_g"].paper == 10.3
    assert made["error.e_g"].ours == pytest.approx(47.0 + (len(plan.seeds) > 1))
    assert made["diff_lg.ma.share_negative"].ours == 100.0
    assert made["diff_lg.ensemble.min"].ours == pytest.approx(3.0 if plan is QUICK else 0.0)  # pooled: 50 % for all
    assert made["jensen.violations"].holds
    assert all(plan.name in claim.note for claim in made.values())
    Card("ec-dnn", settings(findings), list(made.values()))  # which refuses a name that is there twice


def test_the_default_takes_about_forty_minutes_of_one_core_and_quick_one() -> None:
    for plan, minutes in ((SMALL, 46), (QUICK, 1.1)):
        runs = found(plan).results.keys() | set(tuning(plan, "DIR"))
        assert sum(map(cost, runs)) < 60 * minutes


def test_all_seeds_and_workers_are_run_for_all_methods() -> None:
    runs = found(SMALL).results
    for method in ("ma", "e", "ec_s", "ec_r", "ec_m"):
        those = {(run.case.workers, run.seed) for run in runs if run.case.method == method and run.model == "lenet"}
        assert those == {(workers, seed) for workers in (4, 8) for seed in (0, 1, 2)}
    assert {run.case.method for run in runs if run.model == "nin"} == {"ma", "e", "ec_s"}


def test_gains_and_violations_are_of_all_communications() -> None:
    findings = found(QUICK)
    assert gains(findings.results, averaged=True) == pytest.approx([-2.0, -2.0])
    assert len(gains(findings.results, averaged=False)) == 2 * 4
    assert violations(findings.results) == (0, 8 * QUICK.size.followed)


def test_learning_rate_and_tau_are_chosen_by_validation_errors() -> None:
    plan = replace(SMALL, nin=None)
    tried = tuning(plan, "DIR")
    assert {(run.case, 4 * run.size.steps) for run in tried} == {(Case("s", 1), plan.size.steps)}
    assert choose_learning_rates(plan, {run: invented(run) for run in tried}) == {"lenet": 0.02}
    assert choose_learning_rates(plan, {run: {"validation_error_g": None} for run in tried}) == {"lenet": 0.005}
    runs = Runs(plan, "DIR", {"lenet": 0.02})
    errors = {1: 0.4, 16: 0.3, 50: 0.3, 100: 0.5, 250: 0.1}
    results = {run: {"validation_error_g": errors.get(run.case.tau, 0.9)} for run in runs.first()}
    assert choose_taus(runs, results) == Taus(averaging=50, compressing=50)
    assert {method: Taus(50, 50).of(method) for method in COMPRESSING} == dict.fromkeys(COMPRESSING, 50)


def test_weights_by_margin_and_by_regression_may_choose_a_tau_of_their_own() -> None:
    runs = Runs(replace(SMALL, by_margin=(16, 100), regressing=(100, 250)), "DIR", {"lenet": 0.02, "nin": 0.02})
    errors = {("ec_m", 16): 0.2, ("ec_r", 250): 0.3}
    results = {run: {"validation_error_g": errors.get((run.case.method, run.case.tau), 0.9)} for run in runs.first()}
    taus = choose_taus(runs, results)
    assert (taus.by_margin, taus.regressing) == (16, 250)
    table = {case.method: case.tau for case in rows(4, taus)}
    assert (table["ec_s"], table["ec_m"], table["ec_r"]) == (100, 16, 250)  # the larger of equal ones
    told = settings(Findings(runs, taus, {run: invented(run) for run in (*runs.first(), *runs.others(taus))}))
    assert told["taus"] == {"averaging": 50, "compressing": 100, "by_margin": 16, "regressing": 250}
    assert told["tau_rule"] == "smallest validation error of MA_G, EC-S_G, EC-M_G, EC-R_G each, 4 workers, seed 0"
    assert "-M and -R as -S" in settings(found(SMALL))["tau_rule"]


def test_a_share_of_the_steps_that_rounds_to_the_chosen_one_is_not_run_and_cannot_be_told() -> None:
    """10 and 15 % of 16 steps are two."""
    findings = found(replace(SMALL, compressing=(16,), influence=(), swept=(0, 1, 2)))
    tried = {run.case.compression for run in findings.results if isinstance(run.case, Swept)}
    assert tried == {0.05, 0.1, 0.2}
    told = {claim.name: claim for claim in claims(findings) if claim.name.startswith("chosen.p.")}
    assert told["chosen.p.10_below_15"].verdict == "cannot be told"
    assert "the same number of the 16 steps" in told["chosen.p.10_below_15"].note
    assert "seed by seed" in told["chosen.p.10_below_20"].note


def test_tables_and_figures_are_made_of_the_card(tmp_path: Path) -> None:
    findings = found(SMALL)
    card = Card("ec-dnn", settings(findings), claims(findings), run_rows(findings.results))
    lines = tables(card).splitlines()
    assert lines[0] == "| | K=4: error, % | speed | τ | K=8: error, % | speed | τ |"
    assert lines[2] == "| MA-DNN_G | 53.00 ± 1.00 | 1.00 (1.00) | 1 | 53.00 ± 1.00 | 1.00 (1.00) | 1 |"
    assert lines[9].startswith("| EC-DNN-S_L | 48.00 ± 1.00 [47.00] | 1.00 (1.00) | 100 |")
    assert {line.count("|") for line in lines if line} == {8}
    drawn = PAPER.figures(card, tmp_path)
    assert [path.name for path in drawn] == [
        "ec-dnn-gain.png", "ec-dnn-curves.png", "ec-dnn-tau-ablation.png", "ec-dnn-tables.md",
    ]  # fmt: skip
    assert all(path.stat().st_size > 500 for path in drawn)
    assert not any(math.isnan(value) for value in _numbers(card.table()))


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Mapping):
        return [number for each in value.values() for number in _numbers(each)]
    if isinstance(value, list):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, float) else []


def test_without_data_it_says_how_to_get_them() -> None:
    with pytest.raises(pl.ConfigError, match="python -m reproductions fetch cifar10"):
        PAPER.reproduce_plan(QUICK, Options())
