"""Disks that are full, places that are read-only, evaluations that fail: one line, nothing lost, and how to go on."""

import errno
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import paceline as pl
from paceline.cli.main import main
from paceline.core.errors import CannotWrite
from support.resumable import Case
from support.saved_runs import save_run
from support.tiny import changed, tiny

__all__ = ["tiny"]
TRAIN = ["train", "tiny.toml", "--strategy", "asgd", "--lr", "0.1", "--no-check-step"]
STOP = pl.Stop(updates=40)
PAIRS = torch.ones(64, 2), torch.ones(64, 1)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def full(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return err


def test_a_disk_that_is_full_at_the_end_of_a_run_is_told(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--directory", "whole"]) == 0
    sizes = {path.name: path.stat().st_size for path in Path("whole").iterdir()}
    checkpoint, limit = sizes.pop("checkpoint.safetensors"), max(sizes.values())
    assert checkpoint > limit
    capsys.readouterr()
    with files_of_at_most(limit):
        assert main([*TRAIN, "--directory", "run"]) == 1
    told = one_line(capsys)
    assert "cannot write run/checkpoint.safetensors: the file would be larger than is allowed here" in told
    assert "paceline train --resume run continues from its start, for there is no checkpoint" in told
    assert Path("run/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert "checkpoint.safetensors" in json.loads(Path("run/summary.json").read_text())["problem"]
    assert main(["train", "--resume", "run", "--no-check-step"]) == 0
    assert contents(Path("run")) == contents(Path("whole"))


def test_an_older_checkpoint_is_kept_when_there_is_no_room_for_the_last(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--directory", "run"]) == 0
    before = Path("run/checkpoint.safetensors").read_bytes()
    Path("run/config.toml").write_text(Path("run/config.toml").read_text().replace("seconds = 12.0", "seconds = 14.0"))
    monkeypatch.setattr("paceline.engine.checkpoints.write_checkpoint", _fails_to_write)
    capsys.readouterr()
    assert main(["train", "--resume", "run", "--no-check-step"]) == 1
    assert "the disk is full; paceline train --resume run continues from its last checkpoint" in one_line(capsys)
    assert Path("run/checkpoint.safetensors").read_bytes() == before


def _fails_to_write(path: Path, state: object) -> None:
    raise CannotWrite(f"cannot write {path}: the disk is full")


@pytest.mark.parametrize("every", [(), ("--checkpoint", "5")], ids=["no checkpoint", "checkpoints"])
def test_a_disk_that_gets_full_ends_a_run_that_can_go_on(
    tiny: Path, capsys: pytest.CaptureFixture[str], every: tuple[str, ...]
) -> None:
    changed(tiny, "seconds = 12", "seconds = 200")
    assert main([*TRAIN, "--directory", "whole", *every]) == 0
    sizes = {path.name: path.stat().st_size for path in Path("whole").iterdir()}
    limit = sizes.pop("trace.jsonl") - 500
    assert limit > max(sizes.values())
    capsys.readouterr()
    with files_of_at_most(limit):
        assert main([*TRAIN, "--directory", "run", *every]) == 1
    told = one_line(capsys)
    assert told.startswith("error: cannot write run/trace.jsonl: the file would be larger than is allowed here; ")
    assert f"--resume run continues from its {'last checkpoint' if every else 'start'}" in told
    assert not Path("run/summary.json").exists()
    assert main(["train", "--resume", "run", "--no-check-step"]) == 0
    assert contents(Path("run")) == contents(Path("whole"))


@pytest.mark.parametrize(
    ("name", "limit"), [("config.json", 100), ("metrics.jsonl", 5000), ("model.safetensors", 200_000)]
)
def test_every_other_file_that_cannot_be_written_is_named(tmp_path: Path, name: str, limit: int) -> None:
    one = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=1)
    case = Case(fleet=one, model=lambda: torch.nn.Linear(64, 1000), every=pl.Every(updates=1))
    with files_of_at_most(limit), pytest.raises(CannotWrite) as refused:
        case.run(tmp_path / "run", STOP)
    assert str(refused.value).startswith(f"cannot write {tmp_path}/run/{name}: the file would be larger")


def test_what_only_reads_runs_names_the_file_that_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path / "run", pl.Synchronous(), seconds=10.0)
    monkeypatch.setattr(os, "fsync", full)
    for command in (
        ["report", "run", "--out", "page.html"],
        ["report", "run", "--perfetto", "line.json"],
        ["predict", "run", "-s", "asgd", "--json", "out.json"],
    ):
        monkeypatch.chdir(tmp_path)
        assert main(command) == 1
        assert one_line(capsys) == f"error: cannot write {command[-1]}: the disk is full\n"
        assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "command",
    [
        [*TRAIN, "--directory", "/proc/paceline/run"],
        ["compare", "tiny.toml", "--jobs", "1", "--figure", "/proc/paceline/curves.png"],
        ["predict", "--json", "/proc/paceline/out.json"],
        ["profile", "tiny.toml", "--fleet", "processes", "--output", "/proc/paceline/out"],
        ["report", "tiny.toml", "--out", "/proc/paceline/page.html"],
    ],
    ids=lambda command: " ".join(command[:1] + command[-2:-1]),
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_done(
    tiny: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main(command) == 2
    assert "/proc/paceline" in one_line(capsys)
    assert [path.name for path in Path.cwd().iterdir()] == ["tiny.toml"]


def test_output_that_nobody_can_take_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(OSError), open("/dev/full", "w") as out:  # closing it fails once more
        monkeypatch.setattr("sys.stdout", out)
        code = main(["--help"])
        monkeypatch.undo()
    assert code == 1
    assert one_line(capsys) == "error: the disk is full\n"


class Failing:
    """An evaluation that raises at its third call, or at those from then on."""

    def __init__(self, calls: int = 2, times: int = 1) -> None:
        self._bad = range(calls, calls + times)
        self._calls = -1

    def __call__(self, model: torch.nn.Module) -> dict[str, float]:
        self._calls += 1
        if self._calls in self._bad:
            raise ZeroDivisionError("an own\nfault")
        return {"loss": float(next(model.parameters()).sum()), "accuracy": 0.5}


def evaluated_by(evaluate: Failing, directory: Path | None, *, resume: bool = False) -> pl.Run:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(64, 6, generator=generator), torch.arange(64) % 2
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 2)
    return pl.train(
        pl.Task(model, torch.nn.functional.cross_entropy, data, evaluate=evaluate),
        strategy=pl.Asynchronous(),
        fleet=pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.7)]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        stop=pl.Stop(updates=12),
        every=pl.Every(seconds=2.0),
        batch_size=4,
        directory=directory,
        resume=resume,
    )


@pytest.mark.parametrize("calls", [2, 4], ids=["on the way", "at the end"])
def test_an_evaluation_that_raises_loses_nothing(tmp_path: Path, calls: int) -> None:
    evaluated_by(Failing(100), tmp_path / "whole")
    run = tmp_path / "run"
    with pytest.raises(ZeroDivisionError, match="an own") as raised:
        evaluated_by(Failing(calls), run)
    summary = json.loads((run / "summary.json").read_text())
    (note,) = raised.value.__notes__
    assert note == (
        f"the evaluation raised ZeroDivisionError: an own fault: the run ended after {summary['updates']} updates; "
        f"{run} has its weights; train(..., directory={str(run)!r}, resume=True) continues from its last checkpoint"
    )
    assert summary["problem"] == "the evaluation raised ZeroDivisionError: an own fault"
    assert summary["loss"] is None
    assert load_file(run / "model.safetensors").keys() == {"weight", "bias"}
    evaluated_by(Failing(100), run, resume=True)
    assert contents(run) == contents(tmp_path / "whole")


def test_an_evaluation_that_raises_at_once_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        evaluated_by(Failing(0), tmp_path / "run")
    assert raised.value.__notes__ == [
        f"nothing was trained; train(..., directory='{tmp_path / 'run'}', resume=True) continues from its start, for "
        "there is no checkpoint"
    ]
    assert evaluated_by(Failing(100), tmp_path / "run", resume=True).history[-1].updates == 12


def test_without_a_directory_it_is_said_that_nothing_is_kept() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        evaluated_by(Failing(), None)
    assert "nothing was kept: give a directory" in raised.value.__notes__[0]


class Faulty(torch.optim.Optimizer):
    """An optimizer of the user's own that raises at its fifth step."""

    calls = -1

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        Faulty.calls = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        Faulty.calls += 1
        if Faulty.calls == 5:
            raise ZeroDivisionError("an own fault")


@pytest.mark.parametrize("checkpoint", [pl.Every(updates=2), None])
def test_training_that_raises_says_how_to_go_on(checkpoint: pl.Every | None, tmp_path: Path) -> None:
    run, task = tmp_path / "run", pl.Task(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, PAIRS)
    with pytest.raises(ZeroDivisionError) as raised:
        pl.train(
            task, strategy=pl.Synchronous(), fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2), stop=STOP,
            optimizer=Faulty, directory=run, checkpoint=checkpoint,
        )  # fmt: skip
    there = "its last checkpoint" if checkpoint else "its start, for there is no checkpoint"
    assert raised.value.__notes__ == [
        f"the run ended after 4 updates; train(..., directory={str(run)!r}, resume=True) continues from {there}"
    ]


def test_the_directory_of_a_run_is_met_with_resume(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--directory", "run"]) == 0
    before = contents(Path("run"))
    capsys.readouterr()
    assert main([*TRAIN, "--directory", "run"]) == 2
    assert one_line(capsys) == (
        "error: run holds a run already: resume it (paceline train --resume run, or train(..., resume=True) in "
        "Python), or choose another directory\n"
    )
    assert contents(Path("run")) == before
