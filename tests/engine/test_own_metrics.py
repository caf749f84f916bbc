"""Evaluations that return names of their own: in the history, on disk, and in runs that are resumed."""

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
from paceline.storage.metrics import read_rows
from support.digits import digits_task, weights


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
