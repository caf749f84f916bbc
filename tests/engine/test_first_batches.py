"""What does not fit is one line before anything is written, and the trial that shows it leaves no trace."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.learning.workload import try_first_batches
from paceline.prediction.profile import profile
from support.tiny import refused

FLEET = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2)
X, Y = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3
DOES_NOT_FIT = "raised RuntimeError on the first 8 training samples: mat1 and mat2 shapes cannot be multiplied"
OWN = """
import paceline, torch


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 3)

    def forward(self, inputs):
        return self.layer(inputs)


def make():
    data = torch.zeros(64, 4), torch.arange(64) % 3
    return paceline.Task(Own(), torch.nn.functional.cross_entropy, train=data, test=data)
"""
FILE = """
batch_size = 8
strategy = ["ssgd", "asgd"]
[task]
factory = "unfit:make"
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 4
target = 0.9
[[fleet.workers]]
count = 2
delay = "constant"
value = 1.0
"""


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def run(task: pl.Task, **more: Any) -> pl.Run:
    usual = {"strategy": "ssgd", "fleet": FLEET, "optimizer": sgd, "stop": pl.Stop(updates=3), "batch_size": 8}
    return pl.train(task, **{**usual, "progress": False, **more})


def unfit(**given: Any) -> pl.Task:
    usual = {"model": nn.Linear(5, 3), "loss": nn.functional.cross_entropy, "train": (X, Y)}
    return pl.Task(**{**usual, **given})


@pytest.mark.parametrize(
    "use",
    [
        lambda task, place: run(task, directory=place),
        lambda task, place: run(task, directory=place, stop=pl.Stop(updates=3, target=0.9)),
        lambda task, place: profile(task, fleet=pl.ProcessFleet(1), seconds=0.5, batch_size=8, directory=place),
    ],
    ids=["train", "train to a target", "profile"],
)
def test_a_model_that_does_not_fit_its_data_is_one_line(use: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(pl.ConfigError, match=DOES_NOT_FIT) as error:
        use(unfit(), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "use",
    [
        lambda task: pl.predict("ssgd", FLEET, task=task),
        lambda task: pl.advise(task, fleet=FLEET, optimizer=sgd, batch_size=8),
        lambda task: pl.compare(
            task, strategies=["ssgd", "asgd"], fleet=FLEET, optimizer=sgd, stop=pl.Stop(updates=3), batch_size=8,
            jobs=1, progress=False, target=0.5,
        ),
    ],
    ids=["predict", "advise", "compare"],
)  # fmt: skip
def test_whatever_it_is_given_to(use: Callable[[pl.Task], object]) -> None:
    with pytest.raises(pl.ConfigError, match="raised RuntimeError on the first 32 training samples") as error:
        use(unfit())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "command", ["train --strategy ssgd", "predict", "advise", "compare --jobs 1 --strategy ssgd", "compare --jobs 2"]
)
def test_a_command_says_where_in_one_s_own_file(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unfit.py").write_text(OWN)
    (tmp_path / "own.toml").write_text(FILE)
    name, *options = command.split()
    told = refused([name, "own.toml", *options], capsys)
    assert "raised RuntimeError on the first" in told
    assert told.endswith("(unfit.py, line 11)\n")


def test_data_to_evaluate_on_that_do_not_fit(tmp_path: Path) -> None:
    task = unfit(model=nn.Linear(4, 3), test=(torch.zeros(9, 6), Y[:9]))
    with pytest.raises(pl.ConfigError, match="RuntimeError on the first 8 samples of the evaluation: mat1"):
        run(task, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_classes_that_the_model_does_not_have() -> None:
    with pytest.raises(pl.ConfigError, match=r"raised IndexError on the first 8 training samples: Target 7 is out"):
        run(unfit(model=nn.Linear(4, 3), train=(X, torch.full((64,), 7))))


class Drawing(nn.Module):
    """Draws from all generators, and changes a buffer and an attribute in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.passes = nn.Linear(4, 3), nn.BatchNorm1d(3), 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        scale = float(np.random.rand()) + self.passes
        outputs: torch.Tensor = self.norm(nn.functional.dropout(self.layer(inputs), 0.5, self.training)) * scale
        return outputs


def drawing() -> pl.Task:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return pl.Task(Drawing(), nn.CrossEntropyLoss(), (X, Y))


def test_a_trial_leaves_no_trace() -> None:
    task, state = drawing(), torch.random.get_rng_state()
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    try_first_batches(task)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
    assert task.model.passes == 0
    assert task.model.get_buffer("norm.running_mean").tolist() == [0.0] * 3


def test_what_fails_after_the_first_update_is_raised_as_it_is(tmp_path: Path) -> None:
    """With what was trained, and how to go on."""
    with pytest.raises(ZeroDivisionError) as raised:
        run(unfit(model=FailsLater()), directory=tmp_path / "run")
    assert "the run ended after 1 updates" in str(raised.value.__notes__)
    assert (tmp_path / "run" / "config.json").is_file()


class FailsLater(nn.Module):
    """Raises in the second training pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.passes = nn.Linear(4, 3), 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        if self.passes > 2:
            raise ZeroDivisionError
        outputs: torch.Tensor = self.layer(inputs)
        return outputs


@pytest.mark.parametrize("kind", [np.int32, np.int16, np.uint8, np.uint32])
def test_targets_in_whole_numbers_of_any_width_are_classes(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    wide = run(unfit(model=nn.Linear(4, 3), train=(X.numpy(), Y.numpy())))
    assert not caplog.records
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    narrow = unfit(model=model, train=(X.numpy(), Y.numpy().astype(kind)))
    assert narrow.train[1].dtype is torch.int64
    assert caplog.messages == [f"train: targets of {np.dtype(kind)} are taken as int64, which torch's losses want"]
    assert run(narrow).history[-1].updates == wide.history[-1].updates


def test_pictures_stay_bytes() -> None:
    task = unfit(model=nn.Linear(4, 3), train=(X.numpy().astype(np.uint8), Y.numpy()))
    assert task.train[0].dtype is torch.uint8
