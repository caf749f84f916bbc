"""Small files that would cost gigabytes, hours or a traceback, and files that change while they are looked at."""

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.cli.main import main
from paceline.core.codec import real
from paceline.files import HOLEY, check_regular, open_regular, read_regular
from paceline.pruning.record import FILE, read_pruning
from paceline.storage.checkpoint import KEY, read_checkpoint, write_checkpoint
from paceline.storage.reading import read_run
from paceline.storage.run_directory import RunDirectory
from paceline.storage.saved_models import read_tensors
from paceline.trace.format import MOST_SECONDS
from paceline.trace.reading import lines_of, read_trace
from support.resumable import CASES
from support.saved_runs import save_run

HUGE = "1" + "0" * 400  # larger than any float


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_run(tmp_path / "run", pl.Asynchronous(), seconds=10)
    return tmp_path / "run"


# Numbers that no float can be


def test_a_number_is_one_that_a_float_can_be() -> None:
    assert (real(3), real(-1.5)) == (3, -1.5)
    for value in (int(HUGE), -int(HUGE), 10**5000, float("inf"), True, "1"):
        with pytest.raises(ValueError, match="is no finite number"):
            real(value)


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the object in a file, or in its first line."""
    first, *rest = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    values = json.loads(first)
    change(values)
    file.write_text("\n".join([json.dumps(values), *rest]) + "\n")


@pytest.mark.parametrize("command", [["report", "RUN", "--out", "page.html"], ["replay", "RUN", "-s", "asgd"]])
def test_a_huge_number_in_the_metrics_is_refused(
    run: Path, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    edit(run / "metrics.jsonl", lambda row: row.update(seconds=int(HUGE)))
    assert main([str(run) if each == "RUN" else each for each in command]) == 2
    assert "line 1 of" in (said := capsys.readouterr().err)
    assert said.count("\n") == 1


def test_nor_is_a_run_resumed_from_it(tmp_path: Path) -> None:
    CASES["busy server"].run(tmp_path / "run", pl.Stop(updates=4))
    edit(tmp_path / "run/metrics.jsonl", lambda row: row.update(seconds=int(HUGE)))
    checkpoint = tmp_path / "run/checkpoint.safetensors"
    state = read_checkpoint(checkpoint)
    state["metrics"]["bytes"] = (tmp_path / "run/metrics.jsonl").stat().st_size
    write_checkpoint(checkpoint, state)
    with pytest.raises(pl.ConfigError, match=r"its metrics\.jsonl cannot be understood"):
        CASES["busy server"].run(tmp_path / "run", pl.Stop(updates=6), resume=True)


def test_huge_limits_of_a_run_are_no_limits(run: Path) -> None:
    edit(run / "config.json", lambda config: config["stop"].update(target=int(HUGE), seconds=int(HUGE)))
    (run / "config.toml").write_text(f"target = {HUGE}\n")
    assert (read_run(run).target, read_run(run).stopped_at) == (None, 0)


def test_huge_numbers_in_the_summary(run: Path) -> None:
    edit(run / "summary.json", lambda summary: summary.update(mean_staleness=int(HUGE)))
    assert 0 < pl.load_run(run).mean_staleness < 5  # from the trace
    edit(run / "summary.json", lambda summary: summary.update(worker_seconds={"training": int(HUGE)}))
    with pytest.raises(pl.ConfigError, match=r"summary\.json cannot be understood: worker_seconds"):
        pl.load_run(run)


def test_a_run_that_says_it_ended_after_all_time_has_a_timeline(run: Path) -> None:
    edit(run / "config.json", lambda config: config["stop"].update(seconds=1e308))
    assert read_run(run).stopped_at == MOST_SECONDS
    assert main(["report", str(run), "--perfetto", str(run.parent / "timeline.json")]) == 0


# Files of holes, which say that they have gigabytes and take a few thousand bytes


@pytest.fixture
def holes(tmp_path: Path) -> Iterator[Path]:
    """A file with six tensors of zeros, of gigabytes together, none of which lies on the disk."""
    path, each = tmp_path / FILE, 1 << 30
    tensors = {
        f"t{n}": {"dtype": "F32", "shape": [each // 4], "data_offsets": [n * each, (n + 1) * each]} for n in range(6)
    }
    header = json.dumps({**tensors, "__metadata__": {KEY: "1 00000000 {}"}}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 6 * each)
    yield path
    path.unlink()  # whoever reads it reads gigabytes


READERS = [
    read_checkpoint,
    read_tensors,
    check_regular,
    open_regular,
    read_regular,
    lambda path: read_pruning(path.parent),
]


@pytest.mark.parametrize("read", READERS, ids=range(6))
def test_a_file_of_holes_is_refused(holes: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(pl.ConfigError, match="is nearly nothing but holes, and no run wrote it"):
        read(holes)


@pytest.mark.parametrize(("size", "data"), [(1 << 20, 0), (HOLEY + 10, 2 << 20)], ids=["small", "with data"])
def test_other_files_with_holes_are_not(tmp_path: Path, size: int, data: int) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(os.urandom(data))
        file.truncate(size)
    check_regular(tmp_path / "file")


def test_a_checkpoint_is_compared_with_its_checksum_before_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    write_checkpoint(path, {f"tensor {n}": torch.full((1000,), float(n)) for n in range(8)})
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    copies = 0

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal copies
        copies += 1
        return tensor

    monkeypatch.setattr(torch.Tensor, "clone", clone)
    with pytest.raises(pl.ConfigError, match="is damaged: its checksum does not fit"):
        read_checkpoint(path)
    assert copies == 0


# A file that becomes another one after it was looked at


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("becomes", ["pipe", "hard link"])
def test_a_trace_that_becomes_something_else_is_not_written_to(
    tmp_path: Path, becomes: str, resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["busy server"]
    ours = tmp_path / "ours"
    if resume:
        case.run(tmp_path / "run", pl.Stop(updates=4))
        ours.write_bytes((tmp_path / "run/trace.jsonl").read_bytes())
    else:
        ours.write_text("keep")
    kept, begin = ours.read_bytes(), RunDirectory._begin

    def and_then(self: RunDirectory, spec: Any, *, resume: bool) -> None:
        begin(self, spec, resume=resume)
        (self.path / "trace.jsonl").unlink(missing_ok=True)
        if becomes == "pipe":
            os.mkfifo(self.path / "trace.jsonl")
        else:
            os.link(ours, self.path / "trace.jsonl")

    monkeypatch.setattr(RunDirectory, "_begin", and_then)
    said = "is a pipe, not a file|begins with ''" if becomes == "pipe" else "has a second hard link"
    with pytest.raises(pl.ConfigError, match=said):
        case.run(tmp_path / "run", pl.Stop(updates=6), resume=resume)
    assert ours.read_bytes() == kept


def test_a_trace_that_becomes_a_link_or_a_pipe_is_not_read(run: Path) -> None:
    trace, link = read_trace(run), run.parent / "link.jsonl"
    link.symlink_to((run / "trace.jsonl").rename(run.parent / "elsewhere.jsonl"))
    assert next(iter(read_trace(link)))  # the user names it
    (run / "trace.jsonl").symlink_to(run.parent / "elsewhere.jsonl")
    with pytest.raises(pl.ConfigError, match="is a symbolic link, which is not followed"):
        next(iter(trace))
    (run / "trace.jsonl").unlink()
    os.mkfifo(run / "trace.jsonl")
    with pytest.raises(pl.ConfigError, match="is a pipe, not a file"):
        next(lines_of(run / "trace.jsonl"))


def test_weights_that_are_loaded_are_those_that_were_saved(run: Path) -> None:
    model = nn.Linear(3, 2)
    model.load_state_dict(read_tensors(run / "model.safetensors"))
    assert torch.equal(model.weight, pl.load(run, model=nn.Linear(3, 2)).state_dict()["weight"])
