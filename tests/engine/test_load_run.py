"""A run is read back from its directory: what train returned, or as far as a killed run came."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.core.errors import ConfigError
from support.digits import digits_task, linear
from support.saved_runs import save_run

FLEET = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(2.0)])


def trained(directory: Path, strategy: pl.strategy.Strategy = pl.Asynchronous(), task: pl.Task | None = None) -> pl.Run:
    return pl.train(
        task or digits_task(),
        strategy=strategy,
        fleet=FLEET,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        stop=pl.Stop(updates=8),
        every=pl.Every(updates=2),
        directory=directory,
        checkpoint=pl.Every(updates=4),
        progress=False,
    )


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    mine, other = first.state_dict(), second.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_finished_run_is_what_train_returned(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    again = pl.load_run(str(tmp_path / "run"))
    assert isinstance(again, pl.Run)
    assert repr(again) == repr(run)
    assert repr(list(again.history)) == repr(list(run.history))  # a NaN is no NaN's equal
    assert list(again.trace) == list(run.trace)
    assert again.summary() == run.summary()
    assert (again.evaluation, again.non_finite, again.problem) == (run.evaluation, tuple(run.non_finite), None)
    assert again.to_pandas().equals(run.to_pandas())
    assert same_weights(again.model, run.model)


def test_weights_alone_cannot_be_called_and_fit_a_module(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    weights = pl.load_run(tmp_path / "run").model
    assert repr(weights) == "Weights(2 tensors, 650 numbers)"
    with pytest.raises(
        ConfigError, match=r"holds weights, not the code of the model: give load_run\(directory, model="
    ):
        weights(torch.zeros(1, 64))
    module = linear(seed=7)
    module.load_state_dict(weights.state_dict())
    assert same_weights(module, run.model)


def test_a_module_of_the_architecture_is_filled_and_left_alone(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    mine = linear(seed=7)
    before = mine.weight.clone()
    loaded = pl.load_run(tmp_path / "run", model=mine).model
    inputs = torch.ones(3, 64, dtype=torch.float64)
    assert torch.equal(loaded(inputs), run.model(inputs))
    assert torch.equal(mine.weight, before)
    with pytest.raises(ConfigError, match="do not fit the model"):
        pl.load_run(tmp_path / "run", model=nn.Linear(3, 2))


def killed(directory: Path, *, checkpoint: bool) -> None:
    """Leave what a run that was killed leaves."""
    for name in ("summary.json", "model.safetensors", *([] if checkpoint else ["checkpoint.safetensors"])):
        (directory / name).unlink()
    metrics = directory / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-20])
    trace = directory / "trace.jsonl"
    trace.write_text(trace.read_text()[:-5])


def test_a_killed_run_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    run = trained(tmp_path / "run")
    killed(tmp_path / "run", checkpoint=True)
    again = pl.load_run(tmp_path / "run")
    assert again.ended == "not finished"
    assert repr(list(again.history)) == repr(list(run.history)[:-1])
    assert again.mean_staleness > 0
    assert same_weights(again.model, run.model)  # its last checkpoint was that of its end
    assert same_weights(pl.load_run(tmp_path / "run", model=linear(seed=7)).model, run.model)
    assert "not finished" in repr(again)
    assert "<img" in again._repr_html_()


def test_a_killed_run_without_a_checkpoint_has_no_weights(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    killed(tmp_path / "run", checkpoint=False)
    model = pl.load_run(tmp_path / "run").model
    assert model.state_dict() == {}
    with pytest.raises(ConfigError, match="has no weights: the run did not finish, and no checkpoint at"):
        model(torch.zeros(1, 64))


def test_a_run_that_was_killed_at_once_is_read(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    killed(tmp_path / "run", checkpoint=False)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    trace = tmp_path / "run" / "trace.jsonl"
    trace.write_text(trace.read_text().splitlines(keepends=True)[0])
    again = pl.load_run(tmp_path / "run")
    assert (list(again.history), again.max_staleness) == ([], 0)
    assert repr(again).startswith("Run(ended=not finished, staleness=")


def test_models_of_the_workers_own_are_read(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", pl.ModelAveraging(2))
    again = pl.load_run(tmp_path / "run", model=linear(seed=7))
    assert run.local is not None
    assert again.local is not None
    assert same_weights(again.local, run.local)
    assert again.costs == run.costs


def test_contributions_that_were_left_out_are_found_in_the_trace(tmp_path: Path) -> None:
    class Spoils(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.passes = linear(), 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.passes += self.training
            outputs: torch.Tensor = self.inner(inputs)
            return outputs * (torch.nan if self.training and self.passes % 5 == 0 else 1.0)

    run = trained(tmp_path / "run", pl.Synchronous(), digits_task(Spoils()))
    assert run.non_finite
    assert pl.load_run(tmp_path / "run").non_finite == tuple(run.non_finite)


def test_a_summary_that_no_run_has_written_is_not_trusted(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", pl.Asynchronous())
    summary = tmp_path / "run" / "summary.json"
    told = json.loads(summary.read_text())
    summary.write_text(json.dumps(told | {"mean_staleness": "many", "spoiled_by_worker": []}))
    assert pl.load_run(tmp_path / "run").mean_staleness == pytest.approx(run.mean_staleness)
    summary.write_text(json.dumps(told | {"worker_seconds": 3}))
    with pytest.raises(ConfigError, match="cannot be understood: worker_seconds"):
        pl.load_run(tmp_path / "run")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not the directory of a run"):
        pl.load_run(tmp_path)
