"""Final models, saved and loaded: by whoever has the class, and by a process that has not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.learning.ensemble import Ensemble
from support.digits import digits
from support.local_models import mlp, sgd

STRATEGIES: dict[str, pl.Strategy] = {
    "ensemble": pl.EnsembleCompression(4, "regression", compression_steps=1, steps=8),
    "average": pl.ModelAveraging(4, steps=8),
}


class Own(nn.Module):
    """A class that only this file knows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(dropout=0.3, norm=True)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = 2 * self.body(inputs)
        return outputs


def train(directory: Path, strategy: pl.Strategy, model: Callable[[], nn.Module] = Own) -> pl.Run:
    training, test = digits()
    return pl.train(
        pl.Task(model(), cross_entropy, train=training, test=test),
        strategy=strategy,
        fleet=pl.SimulatedFleet(pl.LogNormal(1.0, 0.3), workers=3, network=pl.Network(latency=0.1)),
        optimizer=sgd(momentum=0.9),
        batch_size=16,
        directory=directory,
        progress=False,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.Run]:
    root = tmp_path_factory.mktemp("runs")
    return {name: train(root / name, strategy) for name, strategy in STRATEGIES.items()}


def outputs(run: pl.Run) -> dict[str, Tensor]:
    inputs = digits()[1][0]
    assert run.local is not None
    with torch.no_grad():
        return {"global": run.model.eval()(inputs), "local": run.local.eval()(inputs)}


SCRIPT = """
import sys, torch, paceline
directory, inputs = sys.argv[1:]
x = torch.load(inputs)
found = {}
for which in ("global", "local"):
    model = paceline.load(directory, which)
    assert not model.training
    with torch.no_grad():
        found[which] = model.eval()(x)
        assert model(x[:1]).shape == (1, 10)
    try:
        model.train()
    except paceline.ConfigError as error:
        assert "can be called, not trained" in str(error)
    else:
        raise AssertionError
torch.save(found, inputs + ".out")
"""


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_process_without_the_class_computes_the_same(name: str, saved: dict[str, pl.Run], tmp_path: Path) -> None:
    file = tmp_path / "inputs.pt"
    torch.save(digits()[1][0], file)
    command = [sys.executable, "-c", SCRIPT, str(saved[name].directory), str(file)]
    environment = {**os.environ, "PYTHONPATH": str(Path(pl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    found = torch.load(f"{file}.out")
    for which, expected in outputs(saved[name]).items():
        torch.testing.assert_close(found[which], expected)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_module_of_the_same_architecture_can_be_filled(name: str, saved: dict[str, pl.Run]) -> None:
    directory = saved[name].directory
    assert directory is not None
    inputs = digits()[1][0]
    for which, expected in outputs(saved[name]).items():
        loaded = pl.load(directory, which, model=Own())  # type: ignore[arg-type]
        assert not loaded.training
        assert isinstance(loaded, Ensemble if (name, which) == ("ensemble", "global") else Own)
        torch.testing.assert_close(loaded(inputs).detach(), expected, rtol=0, atol=0)
        loaded.train()


def test_the_summary_tells_the_costs(saved: dict[str, pl.Run]) -> None:
    directory, run = saved["ensemble"].directory, saved["ensemble"]
    assert directory is not None
    assert run.costs is not None
    told = json.loads((directory / "summary.json").read_text())["worker_seconds"]
    costs = run.costs
    assert told == {
        "compute": costs.compute, "relabelling": costs.relabelling, "communication": costs.communication,
    }  # fmt: skip
    assert all(value > 0 for value in told.values())


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_same_run_leaves_the_same_bytes(name: str, saved: dict[str, pl.Run], tmp_path: Path) -> None:
    first, second = saved[name].directory, tmp_path / "again"
    train(second, STRATEGIES[name])
    assert first is not None
    files = sorted(file.name for file in first.iterdir())
    assert files == [
        "architecture.pt2", "checkpoint.safetensors", "config.json", "local.safetensors", "metrics.jsonl",
        "model.safetensors", "summary.json", "trace.jsonl",
    ]  # fmt: skip
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


# Bad input


def test_what_is_not_there_is_said(saved: dict[str, pl.Run], tmp_path: Path) -> None:
    with pytest.raises(pl.ConfigError, match=r"no global model in .*: model.safetensors is missing"):
        pl.load(tmp_path)
    directory = saved["average"].directory
    assert directory is not None
    for file in ("model.safetensors", "local.safetensors"):
        (tmp_path / file).write_bytes((directory / file).read_bytes())
    with pytest.raises(pl.ConfigError, match="holds weights only: give load"):
        pl.load(tmp_path)
    with pytest.raises(pl.ConfigError, match="do not fit the model"):
        pl.load(tmp_path, model=mlp())
    (tmp_path / "architecture.pt2").write_bytes(b"nothing")
    with pytest.raises(pl.ConfigError, match=r"architecture.pt2 cannot be read"):
        pl.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(pl.ConfigError, match="is not a model that Paceline saved"):
        pl.load(tmp_path)


class Unexportable(Own):
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.body(inputs)
        return outputs * (1 if outputs.sum().item() > -1e9 else 2)  # control flow that depends on the data


def test_a_model_that_torch_cannot_export_is_saved_without_its_architecture(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(tmp_path / "run", pl.ModelAveraging(4, steps=4), Unexportable)
    assert "the model's architecture cannot be saved" in caplog.text
    assert not (tmp_path / "run/architecture.pt2").exists()
    loaded = pl.load(tmp_path / "run", "local", model=Unexportable())
    torch.testing.assert_close(loaded(digits()[1][0]).detach(), outputs(run)["local"], rtol=0, atol=0)
