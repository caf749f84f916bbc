"""Evaluations that return names of their own: in the history, on disk, and in runs that are resumed."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.cli.main import main
from paceline.storage.metrics import read_rows
from support.digits import digits_task, weights
from support.tiny import tiny

__all__ = ["tiny"]


def train(evaluate: Callable[[nn.Module], Any], **more: Any) -> pl.Run:
    usual: dict[str, Any] = {
        "strategy": pl.Synchronous(),
        "fleet": pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "stop": pl.Stop(updates=3),
    }
    return pl.train(replace(digits_task(), evaluate=evaluate), **{**usual, **more})


def test_an_evaluation_may_return_any_names(tmp_path: Path) -> None:
    values = {"perplexity": torch.tensor(12.5), "loss": np.float32(0.25), "seconds": 3}
    run = train(lambda model: values, directory=tmp_path / "run")
    returned = {"perplexity": 12.5, "loss": 0.25, "seconds": 3.0}
    assert [dict(row.metrics) for row in run.history] == [returned] * 4
    last = run.history[-1]
    assert (last.loss, isnan(last.accuracy), last.seconds) == (0.25, True, 3.0)
    assert {type(value) for value in last.metrics.values()} == {float}
    assert run.summary()["metrics"] == {"perplexity": 12.5, "seconds": 3.0}
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[-1].metrics == returned
    assert pickle.loads(pickle.dumps(last)).metrics == returned
    with pytest.raises(TypeError):
        last.metrics["loss"] = 0.0  # type: ignore[index]


def test_the_usual_evaluation_reports_an_accuracy_only_of_classes() -> None:
    task = digits_task()
    assert {*task.evaluator()(task.model)} == {"loss", "accuracy"}
    x = torch.randn(8, 3)
    regression = pl.Task(nn.Linear(3, 1), nn.functional.mse_loss, train=(x, x[:, :1]))
    assert {*regression.evaluator()(regression.model)} == {"loss"}
    with pytest.deprecated_call():
        loss, accuracy = regression.judge()(regression.model)
    assert loss > 0
    assert isnan(accuracy)


def test_a_run_that_is_resumed_keeps_its_metrics(tmp_path: Path) -> None:
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"norm": float(weights(model).norm())}

    straight = train(evaluate, stop=pl.Stop(updates=6), directory=tmp_path / "straight")
    train(evaluate, directory=tmp_path / "run")
    resumed = train(evaluate, stop=pl.Stop(updates=6), directory=tmp_path / "run", resume=True)
    assert [row.metrics for row in resumed.history] == [row.metrics for row in straight.history]
    assert len({row.metrics["norm"] for row in resumed.history}) == 7


# Ending a run by a metric


def falling(model: nn.Module) -> dict[str, float]:
    """From 1 down, and from -1 up, as the weights move."""
    distance = float((weights(model) - weights(digits_task().model)).norm())
    return {"perplexity": 1.0 - distance, "negative": distance - 1.0}


@pytest.mark.parametrize(
    ("limits", "ended"),
    [
        ({"metric": "perplexity", "below": 0.9}, "perplexity below 0.9"),
        ({"metric": "negative", "above": -0.9}, "negative above -0.9"),
    ],
)
def test_a_run_ends_when_a_metric_is_low_or_high_enough(limits: Any, ended: str, tmp_path: Path) -> None:
    run = train(falling, stop=pl.Stop(updates=500, **limits), directory=tmp_path / "run")
    assert run.ended == ended
    assert run.history[-1].metrics["perplexity"] <= 0.9
    assert all(row.metrics["perplexity"] > 0.9 for row in run.history[:-1])
    assert run.seconds_to(**limits) == run.history[-1].seconds
    again = train(falling, stop=pl.Stop(updates=500, **limits), directory=tmp_path / "run", resume=True)
    assert (again.ended, len(again.history)) == (ended, len(run.history))


def test_the_earliest_end_counts() -> None:
    assert train(falling, stop=pl.Stop(updates=2, metric="perplexity", below=-100.0)).ended == "updates"
    assert train(falling, stop=pl.Stop(updates=2, metric="perplexity", below=1.0, epochs=9)).ended == (
        "perplexity below 1"
    )


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (
            pl.Stop(metric="preplexity", below=2.0),
            r"Stop\(metric='preplexity'\) waits for 'preplexity', which the evaluation does not return: "
            r"did you mean 'perplexity'\? \(known: perplexity, negative\)",
        ),
        (pl.Stop(target=0.5), r"Stop\(target=0.5\) waits for 'accuracy', .*: choose from perplexity, negative"),
    ],
)
def test_a_metric_that_nobody_reports_is_refused(stop: pl.Stop, said: str, tmp_path: Path) -> None:
    with pytest.raises(pl.ConfigError, match=f"^{said}$"):
        train(falling, stop=stop, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metric": "f1"}, "Stop cannot have metric='f1' alone: give either below or above"),
        ({"metric": "f1", "below": 1.0, "above": 2.0}, "Stop cannot have metric='f1' alone"),
        ({"below": 1.0}, "Stop cannot have below=1.0 alone: name the metric, as in metric='loss'"),
        ({"updates": 3, "above": 1.0}, "Stop cannot have above=1.0 alone"),
        ({"metric": "f1", "below": float("nan")}, "Stop cannot have below=nan: it must be finite"),
        ({"metric": 3, "below": 1.0}, "Stop cannot have metric=3: give a text, or None"),
        ({"metric": "f1", "below": "1"}, "Stop cannot have below='1': give a number, or None"),
        ({}, "a run needs an end: give Stop one of updates, epochs, seconds, target, or a metric"),
    ],
)
def test_a_wrong_limit_is_refused(given: Any, said: str) -> None:
    with pytest.raises(pl.ConfigError) as error:
        pl.Stop(**given)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "seconds_to() needs a target: an accuracy, or metric= with below= or above="),
        ({"accuracy": 0.5}, "no evaluation of this run has a 'accuracy': choose from perplexity, negative"),
        ({"metric": "negativ", "above": 0.0}, "no evaluation of this run has a 'negativ': did you mean 'negative'?"),
        ({"metric": "negative"}, "metric='negative' needs one limit: give either below or above"),
        ({"accuracy": 0.5, "metric": "negative", "above": 0.0}, "target=0.5 is an accuracy, and metric='negative'"),
    ],
)
def test_the_time_to_a_target_needs_one_that_was_evaluated(given: Any, said: str, ended: pl.Run) -> None:
    assert ended.seconds_to(metric="perplexity", below=-100.0) is None
    with pytest.raises(pl.ConfigError) as error:
        ended.seconds_to(**given)
    assert str(error.value).startswith(said)


@pytest.fixture(scope="module")
def ended() -> pl.Run:
    return train(falling)


def test_a_file_may_name_a_metric(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In ``[stop]``, as in Python."""
    text = tiny.read_text()
    start = text.index("[stop]") + len("[stop]\n")
    tiny.write_text(text[:start] + 'metric = "loss"\nbelow = 2.28\n' + text[start:])
    assert main(["train", str(tiny), "--strategy", "ssgd", "--lr", "0.1", "--directory", "run", "--no-check-lr"]) == 0
    assert "ended by loss below 2.28" in capsys.readouterr().out
    assert json.loads(Path("run/summary.json").read_text())["loss"] <= 2.28
    tiny.write_text(text[:start] + 'metric = "f1"\nabove = 0.5\n' + text[start:])
    assert main(["train", str(tiny), "--strategy", "ssgd", "--lr", "0.1", "--directory", "other", "--no-check-lr"]) == 2
    assert "choose from loss, accuracy" in capsys.readouterr().err
    assert not Path("other").exists()
