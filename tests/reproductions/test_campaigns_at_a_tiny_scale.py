"""The campaigns of all papers, in seconds, on random pictures: they run, are kept, and come to cards and figures."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from paceline import ConfigError, EnsembleCompression
from reproductions.cli import PAPERS, paper_of
from reproductions.datasets.cifar import Cifar10
from reproductions.ec_dnn import training as ec_training
from reproductions.ec_dnn.long import LONG as EC_LONG
from reproductions.ec_dnn.long import long_card as ec_card
from reproductions.ec_dnn.networks import NETWORKS, PARAMETERS, Counts, counts, table, times
from reproductions.ec_dnn.plan import FULL as EC
from reproductions.ec_dnn.plan import Runs, rows, sweeps, tuning
from reproductions.ec_dnn.plan import Taus as EcTaus
from reproductions.ec_dnn.training import strategy_of
from reproductions.fine_pruning import training as pruning_training
from reproductions.fine_pruning.long import LONG, long_card
from reproductions.fine_pruning.training import Pictures
from reproductions.group_sgd import nonconvex
from reproductions.pipeline.campaign import Campaign, Entry
from reproductions.pipeline.card import Card, score
from reproductions.pipeline.claims import Claim, waiting
from reproductions.pipeline.plan import Options, search
from reproductions.pipeline.values import plain_values
from reproductions.sdde.curved import network_claims, network_figure
from reproductions.sdde.network import NetworkStudy, study_of

RULES_TRIED = ("gsgd", "asgd")


def pictures(count: int, colours: int = 3, pixels: int = 32) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % 10
    drawn = torch.randn(count, colours, pixels, pixels, generator=torch.Generator().manual_seed(count))
    return drawn + labels[:, None, None, None] / 3, labels


def cards(make: Callable[[Campaign], Card], place: Path, runs: int) -> tuple[Card, Card, Card]:
    """Nothing run, a few runs, and all of them; what is there is not run again."""
    found = [make(Campaign(place / "results", place / "scratch", count)) for count in (0, runs, None)]
    again = Campaign(place / "results", place / "scratch")
    assert make(again).table() == found[-1].table()
    assert again.done == []
    return found[0], found[1], found[2]


def drawn(paper: str, card: Card, place: Path) -> list[str]:
    """The names of its figures, none of which is empty."""
    files = paper_of(paper).figures(card, place / "figures")
    assert all(file.stat().st_size > (10_000 if file.suffix == ".png" else 100) for file in files)
    return [file.name for file in files]


def verdicts(card: Card) -> set[str]:
    return {claim.verdict for claim in card.claims if claim.paper is not None and claim.tolerance is not None}


def test_claims_that_wait_for_runs_are_neither_counted_nor_failed() -> None:
    waits, holds = waiting("a", "lower", "above 0", "lenet-seed0"), Claim("b", 1.0, 1.0, 0.1, True)
    assert (waits.verdict, waits.note) == ("not run yet", "not run yet: lenet-seed0")
    assert score(Card("x", {}, [waits, holds])) == "1 of 1 claims hold, 0 do not; 1 not run yet"
    assert waiting("c", None, None, "lenet-seed0").verdict == "-"  # of which the paper says nothing


def test_fine_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pruning_training, "cifar10", lambda _folder, size: Pictures(pictures(80), pictures(size.tested))
    )
    size = replace(LONG.size, samples=80, epochs=20, batch=40, tested=20, last_epochs=1)
    plan = replace(LONG, size=size, seeds=(0,), schedules=("rate",))
    none, some, whole = cards(lambda campaign: long_card(plan, "", campaign), tmp_path, 2)
    assert verdicts(none) == {"not run yet"}
    assert some.claim("points_lost.pruned").test.startswith("McNemar over 20 test samples")
    assert "not run yet: lenet-random-20-epochs-seed0" in some.claim("selection_helps.against_random").note
    assert {row["arm"]: round(row["saved"], 3) for row in whole.runs if row["arm"] != "soft"} == {
        "regular": 0, "pruned": 0.15, "random": 0.15, "shortened": 0.15,
    }  # fmt: skip
    assert drawn("fine-pruning", none, tmp_path) == []
    assert drawn("fine-pruning", some, tmp_path) == ["fine-pruning-full.png"]
    assert {claim.name for claim in long_card(LONG, "", Campaign(tmp_path / "no", tmp_path / "s", 0)).claims} >= {
        "selection_helps.against_random.late", "selection_helps.against_shortened.blocks", "accuracy.soft",
    }  # fmt: skip


def test_group_sgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonconvex, "pictures", lambda *_: (pictures(520, 1, 28), pictures(20, 1, 28)))
    plan = replace(
        nonconvex.NONCONVEX, tasks=("mnist",), rules=RULES_TRIED, seeds=(0, 1), units=3.0, rates=(0.01, 0.02),
        further=(),
    )  # fmt: skip
    none, some, whole = cards(lambda campaign: nonconvex.nonconvex_card(plan, "", campaign), tmp_path, 3)
    assert verdicts(none) == verdicts(some) == {"not run yet"}
    assert some.settings["learning_rates"].keys() == {"mnist.gsgd"}  # whose grid is complete
    assert [claim.name.removeprefix("nonconvex.mnist.gsgd_below_") for claim in whole.claims] == [
        "asgd", "asgd.throughout",
    ]  # fmt: skip
    assert all(claim.test.startswith("paired over 2 seeds") for claim in whole.claims)
    mine, theirs = ([row for row in whole.runs if (row["kind"], row["rule"]) == ("training", r)] for r in RULES_TRIED)
    means = [[fmean(point[2] for point in row["curve"][1:]) for row in rows] for rows in (mine, theirs)]
    assert whole.claims[1].ours == pytest.approx(fmean(means[1]) - fmean(means[0]))
    assert (drawn("group-sgd", some, tmp_path), drawn("group-sgd", whole, tmp_path)) == ([], ["group-sgd-full.png"])


def test_learning_rates_are_searched_until_the_best_is_at_no_end() -> None:
    def searched(**losses: float) -> tuple[list[float], float | None]:
        return search((0.1, 0.2), (0.02, 0.05, 0.5), {float(f"0.{name[1:]}"): loss for name, loss in losses.items()})

    assert searched(_1=3.0) == ([0.1, 0.2], None)
    assert searched(_1=3.0, _2=4.0) == ([0.05, 0.1, 0.2], None)
    assert searched(_1=3.0, _2=4.0, _05=3.5) == ([0.05, 0.1, 0.2], 0.1)
    assert searched(_1=3.0, _2=4.0, _05=2.0, _02=1.0) == ([0.02, 0.05, 0.1, 0.2], 0.02)  # there is none below
    assert searched(_1=3.0, _2=2.0, _5=math.inf) == ([0.1, 0.2, 0.5], 0.2)
    wanted = tuning(replace(EC, learning_rates=(0.01, 0.02), further=(0.005,)), "")
    errors = {run: {"validation_error_g": run.lr} for run in wanted}
    assert [run.lr for run in tuning(replace(EC, learning_rates=(0.01, 0.02), further=(0.005,)), "", errors)] == [
        0.005, 0.01, 0.02,
    ]  # fmt: skip


def test_larger_learning_rates_are_tried_while_the_largest_is_the_best() -> None:
    plan = replace(nonconvex.NONCONVEX, rates=(0.1, 0.2), further=(0.5, 1.0))

    def searched(*losses: float | None) -> tuple[list[float], float | None]:
        rates = (*plan.rates, *plan.further)
        runs = [plan.run("", "mnist", "ssgd", lr, plan.tuning_seed) for lr in rates]
        known = {run: {"train_loss": loss} for run, loss in zip(runs, losses, strict=False)}
        wanted, best = plan.search("", "mnist", "ssgd", known)
        return [run.lr for run in wanted], best

    assert searched(0.3) == ([0.1, 0.2], None)
    assert searched(0.2, 0.3) == ([0.1, 0.2], 0.1)
    assert searched(0.3, 0.2) == ([0.1, 0.2, 0.5], None)
    assert searched(0.3, 0.2, None) == ([0.1, 0.2, 0.5], 0.2)  # it diverged
    assert searched(0.4, 0.3, 0.2, 0.1) == ([0.1, 0.2, 0.5, 1.0], 1.0)


@pytest.mark.parametrize("rule", nonconvex.RULES)
def test_every_rival_of_group_sgd_trains(rule: str) -> None:
    run = nonconvex.Nonconvex("", "mnist", rule, 0.02, 0, 3.0)
    assert nonconvex.trained(run, pictures(520, 1, 28), pictures(20, 1, 28))["ended"] == "seconds"


def test_a_run_of_group_sgd_whose_folder_cannot_be_resumed_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = nonconvex.Nonconvex("", "mnist", "ssgd", 0.02, 0, 3.0)
    data = pictures(520, 1, 28), pictures(20, 1, 28)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"nothing")
    made = [plain_values(nonconvex.trained(run, *data, tmp_path / name)) for name in ("run", "other")]
    assert made[0] == made[1]
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "anew" in each]
    assert line.startswith(f"cannot resume {tmp_path / 'run'}")
    assert line.endswith("; the run begins anew")


def test_ec_dnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def some_pictures(_folder: str, **_sizes: int) -> Cifar10:
        return Cifar10(pictures(160), pictures(20), pictures(20))

    monkeypatch.setattr(ec_training, "cifar10", some_pictures)
    monkeypatch.setattr(ec_training, "BATCH", 4)
    size = replace(EC.size, samples=160, steps=20, followed=20, tested=20)
    few = replace(EC, learning_rates=(0.01, 0.02), averaging=(2,), compressing=(10,), by_margin=(), regressing=())
    plan = replace(few, size=size, grids=((4, (0,)),))
    long = replace(EC_LONG, parts={"": replace(plan, further=(), ablation=False)})
    none, some, whole = cards(lambda campaign: ec_card(long, "", campaign), tmp_path, 7)
    assert verdicts(none) == {"not run yet"}
    assert {claim.name for claim in none.claims} == {claim.name for claim in whole.claims}
    assert "learning rates are being chosen" in none.claim("lower.ec_s_g_than_ma_g").note
    assert some.claim("lower.ec_s_g_than_ma_g").test.startswith("McNemar over 20 test samples")  # 2 + 4 + EC-DNN-M
    assert some.claim("lower.ec_m_g_than_ec_s_g").verdict in ("yes", "no", "cannot be told")
    assert some.claim("lower.ec_r_g_than_ec_s_g").missing.startswith("lenet-ec_r-k4-tau10-20-steps")  # the longest
    assert {row["method"] for row in some.settings["parts"][plan.name]["table"]} == {"ma", "e", "ec_s", "ec_m", "s"}
    assert {"chosen.p.10_below_5", "chosen.mu.70_below_30"} <= {claim.name for claim in whole.claims}
    assert "not run yet" not in verdicts(whole)
    both = ["ec-dnn-full-lenet.png", "ec-dnn-full-lenet.md"]
    assert (drawn("ec-dnn", none, tmp_path), drawn("ec-dnn", whole, tmp_path)) == ([], both)
    told = (tmp_path / "figures" / both[1]).read_text(encoding="utf-8")
    assert "τ = 2 for MA-DNN and 10 for EC-DNN" in told
    assert "| 10 Gbit/s | 62 thousand |" in told
    figure = paper_of("ec-dnn").drawings(whole)[both[0]]
    assert isinstance(figure, Figure)
    (panel,) = figure.axes
    assert len(panel.lines) == 5 * 2, "one seed and its mean of five methods, and no run with another p or mu"
    assert drawn("ec-dnn", some, tmp_path) == both
    assert "| EC-DNN-R_G | not run yet |" in (tmp_path / "figures" / both[1]).read_text(encoding="utf-8")


def test_other_p_and_mu_have_their_rule_and_leave_the_names_of_other_runs_alone() -> None:
    swept = sweeps(EcTaus(16, 64))
    assert strategy_of(swept["p", 0.05], 640) == EnsembleCompression(every=64, steps=640, compression_steps=3)
    assert strategy_of(swept["mu", 0.3], 640) == EnsembleCompression(
        every=64, steps=640, compression_steps=6, relabel=0.3
    )
    digits = Runs(EC_LONG.parts["digits."], "", {"digits": 0.02})
    files = {Entry(ec_training.run_in_campaign, run, 1.0).file for run in digits.first()}
    assert "digits-ma-k4-tau16-600-steps-lr0.02-seed0-f42578f4.json" in files  # as before there were any


def test_as_many_steps_are_made_in_all_whatever_the_workers() -> None:
    runs = Runs(EC, "", {"lenet": 0.1})
    steps = {case.workers: runs.run(case, 0).steps for k in (4, 8) for case in rows(k, EcTaus(16, 64))}
    assert steps == {4: 15_000, 8: 7_500, 1: 60_000}
    assert 60_000 * 32 / 48_000 == 40  # epochs


def test_the_time_of_other_networks_follows_from_what_was_counted() -> None:
    """1,000 messages of LeNet on a gigabit network, 500 steps, 300 mini-batches passed forward."""
    message = 1e-4 + 4 * 62_006 / 125e6
    counted = counts({"compute": 5.0, "relabelling": 1.0, "communication": 1_000 * message})
    assert (counted.steps, counted.forwards, counted.messages) == pytest.approx((500, 300, 1_000))
    assert counted.seconds(125e6, 62_006) == pytest.approx(6 + 1_000 * message)
    assert Counts(0, 0, 2).seconds(12.5e6, 9_225_610) == pytest.approx(2 * (1e-4 + 4 * 9_225_610 / 12.5e6))
    rows_of = times({"MA": {"compute": 5.0, "relabelling": 0.0, "communication": message}})
    assert len(rows_of) == len(NETWORKS) * len(PARAMETERS)
    assert table(rows_of).count("\n") == len(rows_of) + 2


@pytest.mark.filterwarnings("ignore:grad and param do not obey")
def test_sdde() -> None:
    study = NetworkStudy(
        "",
        samples=64,
        epochs=2,
        settling=2,
        directions=2,
        batch=4,
        updates=120,
        shares=(0.5, 1.1),
        random_shares=(0.5,),
    )
    found = study_of(study, pictures(64))
    assert [row["delays"] for row in found["rows"] if not row["random"]] == [{"15": 1.0}] * 2
    assert found["curvatures"] == sorted(found["curvatures"], reverse=True)
    assert found["rows"][1]["predicted"][0] is None  # above the limit there is no stationary variance
    claims = {claim.name: claim for claim in network_claims(found)}
    assert claims["network.variance_ratio.fixed.0.5"].test.startswith("geometric mean over 2 directions")
    assert len(network_figure(found).axes) == 3
    assert network_claims(None)[0].verdict == "not run yet"


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_has_a_campaign_and_missing_data_are_one_line(name: str, tmp_path: Path) -> None:
    paper = paper_of(name)
    assert paper.full is not None
    with pytest.raises(ConfigError, match=r"python -m reproductions fetch (mnist|cifar10) --to DIR"):
        paper.reproduce(Options(full=True, results=tmp_path))
