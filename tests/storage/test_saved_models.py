"""Final models, saved and loaded: by whoever has the class, and by a process that has not."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.learning.models.ensemble import Ensemble
from support.digits import digits
from support.local_models import mlp, sgd

STRATEGIES: dict[str, pl.strategy.Strategy] = {
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


def train(directory: Path, strategy: pl.strategy.Strategy, model: Callable[[], nn.Module] = Own) -> pl.Run:
    training, test = digits()
    return pl.train(
        pl.Task(model(), cross_entropy, train=training, test=test),
        strategy=strategy,
        fleet=pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.3), workers=3, network=pl.Network(latency=0.1)),
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
inputs, *directories = sys.argv[1:]
x = torch.load(inputs)
found = {}
for directory in directories:
    for which in ("global", "local"):
        model = paceline.load(directory, which, trust=True)
        assert not model.training
        with torch.no_grad():
            found[directory, which] = model.eval()(x)
            assert model(x[:1]).shape == (1, 10)
        try:
            model.train()
        except paceline.ConfigError as error:
            assert "can be called, not trained" in str(error)
        else:
            raise AssertionError
torch.save(found, inputs + ".out")
"""


def test_a_process_without_the_class_computes_the_same(saved: dict[str, pl.Run], tmp_path: Path) -> None:
    file = tmp_path / "inputs.pt"
    torch.save(digits()[1][0], file)
    command = [sys.executable, "-c", SCRIPT, str(file), *(str(run.directory) for run in saved.values())]
    environment = {**os.environ, "PYTHONPATH": str(Path(pl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    found = torch.load(f"{file}.out")
    for run in saved.values():
        for which, expected in outputs(run).items():
            torch.testing.assert_close(found[str(run.directory), which], expected)


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
        pl.load(tmp_path, trust=True)
    for data in (b"nothing", headed([-1]), headed([1 << 40]), headed(["x"]), headed([1 << 70])):
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(pl.ConfigError, match="is not a model that Paceline saved") as refusal:
            pl.load(tmp_path, model=mlp())
        assert "\n" not in str(refusal.value)


def headed(shape: list[Any]) -> bytes:
    """A file of no numbers whose header tells of a tensor of this shape."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return len(header).to_bytes(8, "little") + header


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


# A directory from somebody else. What is hidden in it leaves a mark if it is ever run.


class Mark:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.file),)


def pickled(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def in_a_weight(parts: dict[str, bytes], mark: Path) -> None:
    name = next(each for each in parts if each.endswith("weights/model_weights_config.json"))
    config = json.loads(parts[name])
    first = next(iter(config["config"].values()))
    first["use_pickle"] = True
    parts[name] = json.dumps(config).encode()
    parts[name.replace("model_weights_config.json", first["path_name"])] = pickled(Mark(mark))


def in_the_sample_inputs(parts: dict[str, bytes], mark: Path) -> None:
    name = next(each for each in parts if each.endswith("sample_inputs/model.pt"))
    parts[name] = pickled(Mark(mark))


def in_a_size(parts: dict[str, bytes], mark: Path) -> None:
    """No pickle at all: torch gives the text to sympy, which evaluates it."""
    name = next(each for each in parts if each.endswith("models/model.json"))

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            code = {"expr_str": f"__import__('os').mkdir({str(mark)!r})"} if "expr_str" in value else {}
            return {key: replaced(each) for key, each in value.items()} | code
        return [replaced(each) for each in value] if isinstance(value, list) else value

    parts[name] = json.dumps(replaced(json.loads(parts[name]))).encode()


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("hide", [in_a_weight, in_the_sample_inputs, in_a_size])
def test_code_that_is_hidden_in_a_directory_is_not_run(
    hide: Callable[[dict[str, bytes], Path], None], name: str, saved: dict[str, pl.Run], tmp_path: Path
) -> None:
    directory, mark = tmp_path / "run", tmp_path / "was here"
    trained = saved[name].directory
    assert trained is not None
    shutil.copytree(trained, directory)
    with zipfile.ZipFile(directory / "architecture.pt2") as archive:
        parts = {each: archive.read(each) for each in archive.namelist()}
    hide(parts, mark)
    with zipfile.ZipFile(directory / "architecture.pt2", "w") as archive:
        for each, data in parts.items():
            archive.writestr(each, data)
    for which, expected in outputs(saved[name]).items():
        with pytest.raises(
            pl.ConfigError, match=r"Give load\(directory, model=\) a module.*load\(directory, trust=True\)"
        ):
            pl.load(directory, which)  # type: ignore[arg-type]
        filled = pl.load(directory, which, model=Own())  # type: ignore[arg-type]
        torch.testing.assert_close(filled(digits()[1][0]).detach(), expected, rtol=0, atol=0)
        assert not mark.exists()
    with pytest.raises(pl.ConfigError, match="cannot be read"):
        pl.load(directory, trust=True)
    assert mark.exists()  # so the attack is a real one, and this is what trust means


@pytest.mark.parametrize("file", ["model.safetensors", "architecture.pt2"])
def test_a_link_in_a_directory_is_not_followed(file: str, saved: dict[str, pl.Run], tmp_path: Path) -> None:
    directory = tmp_path / "run"
    assert saved["average"].directory is not None
    shutil.copytree(saved["average"].directory, directory)
    (directory / file).rename(tmp_path / file)
    (directory / file).symlink_to(tmp_path / file)
    with pytest.raises(pl.ConfigError, match=f"{file} is a symbolic link, which is not followed"):
        pl.load(directory, trust=True)


@pytest.mark.parametrize("change", [{"members.x.weight": torch.zeros(1)}, {"weights": torch.zeros(2, 7)}])
def test_an_ensemble_that_cannot_be_is_refused(
    change: dict[str, Tensor], saved: dict[str, pl.Run], tmp_path: Path
) -> None:
    assert saved["ensemble"].directory is not None
    save_file(load_file(saved["ensemble"].directory / "model.safetensors") | change, tmp_path / "model.safetensors")
    with pytest.raises(pl.ConfigError, match=r"do not fit the model|coefficients of shape"):
        pl.load(tmp_path, model=Own())
