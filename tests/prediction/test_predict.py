"""``paceline predict``, and the warnings of ``train`` and ``compare``."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline as pl
from paceline.cli.main import main
from paceline.core.errors import ConfigError
from paceline.prediction.predict import Descent, descent_of, predict
from paceline.prediction.sources import predict_all, read_source
from paceline.theory import critical_step
from paceline.trace.measure import measure
from support.quadratic import quadratic
from support.saved_runs import save_run
from support.tiny import changed, refused, tiny

__all__ = ["tiny"]

FLEET = """
strategy = ["ssgd", "asgd"]
[[fleet.workers]]
count = 4
delay = "shifted-exponential"
shift = 0.0
mean = 1.0
"""


@pytest.fixture(autouse=True)
def short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the usual length is enough here."""
    monkeypatch.setattr("paceline.theory.runtime.costs.PIECES_OF_WORK", 3_000)


def rows(*arguments: str) -> dict[str, Any]:
    """What ``paceline predict --json`` writes, the rows by strategy."""
    assert main(["predict", *arguments, "--json", "out.json"]) == 0
    told = json.loads(Path("out.json").read_text())
    return {**told, "rows": {row.pop("strategy"): row for row in told["rows"]}}


def test_a_fleet_alone_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four memoryless workers: 1 / (1 + 1/2 + 1/3 + 1/4) and 4 updates a second, staleness 0 and geometric."""
    monkeypatch.chdir(tmp_path)
    Path("fleet.toml").write_text(FLEET)
    told = rows("fleet.toml", "--momentum", "0.9")
    alone, together = told["rows"]["asgd"], told["rows"]["ssgd"]
    assert together["updates_per_second"] == {"value": pytest.approx(12 / 25), "source": "exact", "error": None}
    assert alone["updates_per_second"]["value"] == pytest.approx(4.0)
    assert alone["mean_staleness"] == {"value": 3.0, "source": "exact", "error": None}
    assert [alone["staleness"]["shares"][str(age)] for age in range(3)] == pytest.approx([0.25, 0.1875, 0.140625])
    assert together["limit"]["value"] == pytest.approx(2.0)
    assert together["limit_as_optimized"]["value"] == pytest.approx(3.8)
    assert alone["limit"]["value"] > 5 * alone["limit_as_optimized"]["value"]
    assert alone["limit_as_optimized"]["value"] < alone["limit_in_the_mean"]["value"]
    assert together["largest_step"] is together["recommended"] is told["curvature"] is None
    assert together["seconds_to_epsilon"]["value"] > 0


def test_a_model_gives_learning_rates(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = rows(str(tiny), "--strategy", "ssgd", "--strategy", "lgc:quorum=2,blocks=4", "--margin", "0.25")
    synchronous, compensated = told["rows"]["ssgd"], told["rows"]["lgc:quorum=2,blocks=4"]
    found = told["looked_at"]["curvature"]
    assert (found["converged"], found["samples"]) == (True, 1438)
    assert told["looked_at"]["message_bytes"] == 4 * 650
    assert synchronous["largest_step"]["value"] == pytest.approx(2 / found["value"])
    assert synchronous["recommended"]["value"] == pytest.approx(0.5 / found["value"])
    assert synchronous["limit"] == synchronous["limit_as_optimized"]  # the file's SGD has no momentum
    assert compensated["limit"]["source"] == "simulation"
    printed = capsys.readouterr().out
    assert "tiny.toml: 4 workers; largest curvature of the model's loss" in printed
    assert re.search(r"ssgd .*\n +quadrature +exact", printed)
    assert "stable in mean square" in printed


def test_what_is_predicted_happens() -> None:
    """Linear regression, whose curvature stays: a fifth below the largest rate ASGD converges, a quarter beyond not.

    Sixteen workers in turn, so that every gradient is 15 updates old; F(x) = (x - 1)^2 / 2, from x = 0.
    """
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0)] * 16)
    for momentum in (0.0, 0.9):
        found = predict(pl.Asynchronous(), fleet, descent=Descent(momentum), curvature=1.0)
        assert found.largest_learning_rate is not None
        assert found.largest_learning_rate.value == pytest.approx(critical_step(15, momentum), rel=5e-3)
        for share, ends in ((0.8, True), (1.25, False)):
            assert ends == (abs(_after(momentum, share * found.largest_learning_rate.value)) < 1)


def test_a_task_brings_its_curvature_and_the_size_of_its_model() -> None:
    """F(x) = (x - 1)^2 / 2: curvature 1, and with one worker every learning rate below 2 is stable."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0)], network=pl.Network(bandwidth=4.0))
    found = predict("ssgd", fleet, task=quadratic(b=[1.0] * 16))
    assert found.curvature == pytest.approx(1.0)
    assert found.largest_learning_rate is not None
    assert found.largest_learning_rate.value == pytest.approx(2.0)
    assert found.runtime.seconds_per_update.value == pytest.approx(1.0 + 2 * 8 / 4.0)
    assert predict("ssgd", fleet, curvature=4.0, message_bytes=0).runtime.updates_per_second.value == 1.0
    with pytest.raises(ConfigError, match="a curvature of 0 bounds no learning rate"):
        predict("ssgd", fleet, curvature=0.0)


def _after(momentum: float, lr: float) -> float:
    run = pl.train(
        quadratic(b=[1.0] * 16),
        strategy=pl.Asynchronous(),
        fleet=pl.SimulatedFleet([pl.delays.Constant(1.0)] * 16),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum),
        stop=pl.Stop(updates=900 if momentum else 500),
        batch_size=1,
        every=pl.Every(updates=900),
    )
    return run.history[-1].loss - 1  # evaluating the quadratic gives x


def test_the_time_to_an_error_is_that_of_the_recursion() -> None:
    """One worker, no momentum: x shrinks by 1 - 1/100 an update of 2 seconds in a direction 100 times flatter."""
    fleet = pl.SimulatedFleet([pl.delays.Constant(2.0)])
    found = predict(pl.Synchronous(), fleet, margin=0.5, epsilon=0.01, condition=100.0)
    assert found.seconds_to_epsilon is not None
    assert found.seconds_to_epsilon.value == pytest.approx(2 * math.log(0.01) / math.log(0.99))


def test_a_recorded_run_is_a_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run itself is measured; other strategies are predicted on its workers' durations."""
    monkeypatch.chdir(tmp_path)
    run = save_run(Path("run"), pl.Asynchronous(), seconds=40.0)
    told = rows("run", "--strategy", "ssgd", "--strategy", "asgd", "--curvature", "2.0")
    recorded, again = told["rows"]["as recorded"], told["rows"]["asgd"]
    assert recorded["mean_staleness"] == {"value": run.mean_staleness, "source": "measured", "error": None}
    assert again["updates_per_second"]["value"] == pytest.approx(recorded["updates_per_second"]["value"], rel=0.15)
    assert again["mean_staleness"]["value"] == 4.0
    assert told["rows"]["ssgd"]["updates_per_second"]["value"] < 1 / 2
    assert rows("run/trace.jsonl", "--strategy", "ssgd")["rows"].keys() == {"as recorded", "ssgd"}
    assert rows("run")["rows"].keys() == {"as recorded"}
    fleet = read_source(Path("run")).fleet
    assert fleet.network.latency == pytest.approx(0.05)
    assert fleet.medians[3] > 2 * fleet.medians[0]


def test_a_run_of_the_command_line_brings_its_model_along(tiny: Path) -> None:
    assert main(["train", str(tiny), "--strategy", "gsgd", "--lr", "0.1", "--directory", "run", "--no-check-step"]) == 0
    told = rows("run")
    assert list(told["rows"]) == ["as recorded", "gsgd"]
    assert told["curvature"] == told["looked_at"]["curvature"]["value"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--margin", "1.5"], "margin=1.5 cannot be asked for: between 0 and 1"),
        (["--epsilon", "0"], "epsilon=0 cannot be asked for: between 0 and 1"),
        (["--condition", "0.5"], "condition=0.5 cannot be asked for: at least 1"),
        (["--momentum", "1"], "a momentum of 1.0 never forgets"),
        (["--curvature", "-3"], "a curvature of -3 bounds no learning rate"),
        (["--strategy", "k-sgd:quorum=5"], "strategy 'k-sgd:quorum=5': a quorum of 5 does not fit 4 workers"),
        (["--strategy", "asgdd"], "unknown strategy 'asgdd': did you mean 'asgd'?"),
        (["--json", "out.txt"], "out.txt must end with .json"),
    ],
)
def test_what_cannot_be_is_refused(
    tiny: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(["predict", str(tiny), *arguments], capsys)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strategy = 'asgd'", "file.toml: the section [fleet] is missing"),
        (FLEET.replace('strategy = ["ssgd", "asgd"]', ""), "file.toml names no strategy: give one with --strategy"),
        (FLEET.replace("strategy", "stratgy"), "file.toml: top level: unknown key 'stratgy': did you mean 'strategy'?"),
        (FLEET + "rate = 3", "file.toml: fleet.workers[0]: unknown key 'rate'"),
        ("[fleet", "file.toml is not valid TOML"),
    ],
)
def test_files_that_say_too_little_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.toml").write_text(text)
    assert said in refused(["predict", "file.toml"], capsys)


def test_a_trace_of_models_predicts_by_mini_batches(tmp_path: Path) -> None:
    """Workers of 1 s a mini-batch, recorded in pieces of 16: SSGD makes an update a second, averaging one in 16."""
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=4)
    pl.simulate(pl.ModelAveraging(every=16), fleet, pl.Stop(updates=20), trace=tmp_path / "trace.jsonl")
    found = predict_all(read_source(tmp_path, ["ssgd", "asgd", "ma:every=16"])).by_strategy
    rates = {label: each.runtime.updates_per_second for label, each in found.items()}
    assert {label: rate.value for label, rate in rates.items()} == pytest.approx(
        {"as recorded": 1 / 16, "ssgd": 1.0, "asgd": 4.0, "ma:every=16": 1 / 16}
    )
    assert [rate.source for rate in rates.values()] == ["measured", "exact", "exact", "simulation"]


def test_missing_files_and_empty_traces_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "cannot read nowhere.toml" in refused(["predict", "nowhere.toml"], capsys)
    Path("empty").mkdir()
    assert "no trace at empty/trace.jsonl" in refused(["predict", "empty"], capsys)
    pl.simulate(
        pl.FastestK(1),
        pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(9.0)]),
        pl.Stop(updates=3),
        trace="t.jsonl",
    )
    assert "worker 1 finished nothing in the recorded run" in refused(["predict", "t.jsonl", "-s", "ssgd"], capsys)


def test_notes_say_what_the_numbers_leave_out(tiny: Path) -> None:
    changed(tiny, 'name = "SGD"', 'name = "Adam"')
    assert any(
        "Adam scales its updates by itself" in note for note in rows(str(tiny), "--no-model", "-s", "ssgd")["notes"]
    )
    changed(tiny, "[partition]", "[fleet.network]\nbandwidth = 1e6\n[partition]")
    assert any("messages have no size" in note for note in rows(str(tiny), "--no-model", "-s", "ssgd")["notes"])
    assert rows(str(tiny), "-s", "ssgd")["notes"] == []


def test_optimizers() -> None:
    assert descent_of("Adam", {"lr": 0.1}) is None
    descent = descent_of("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.5})
    assert descent == Descent(0.9, nesterov=True, weight_decay=0.5)
    assert descent.sharpness(2.0) == 2.5
    fresh = measure(pl.simulate(pl.Synchronous(), pl.SimulatedFleet([pl.delays.Constant(1.0)]), pl.Stop(updates=3)))
    assert (fresh.weight_by_age, fresh.weight_by_gap) == ({0: 1.0}, {0: 1.0})
    with pytest.raises(ConfigError, match=r"a dampening of 1 leaves no gradient"):
        Descent(0.9, dampening=1)
