"""Files that are torn, foreign, too new, of another model or forged are refused in one line, and nothing is changed."""

import io
import json
import os
import pickle
import random
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import paceline as pl
from paceline.storage.checkpoint import KEY, read_checkpoint, write_checkpoint
from paceline.storage.reading import read_run
from paceline.storage.run_directory import FILES
from support.digits import linear
from support.fuzz_files import fuzz
from support.resumable import CASES, MODELS, Case, dropout, sgd

CASE = CASES["grouped compensation"]
MORE = pl.Stop(updates=9)


class Boom:
    """Would leave a mark if it were ever unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("unpickled",)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run of 6 updates."""
    directory = tmp_path_factory.mktemp("run") / "run"
    CASE.run(directory, pl.Stop(updates=6))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def directory(saved: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "run"
    copy.mkdir()
    for name, data in saved.items():
        (copy / name).write_bytes(data)
    return copy


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def refused(directory: Path, case: Case = CASE) -> str:
    """Why a run cannot be resumed: one line, after which everything is as it was."""
    before = contents(directory.parent)
    with pytest.raises(pl.ConfigError) as refusal:
        case.run(directory, MORE, resume=True)
    assert contents(directory.parent) == before
    assert not Path("unpickled").exists()
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_run_that_was_not_touched_is_resumed(directory: Path) -> None:
    assert CASE.run(directory, MORE, resume=True).history[-1].updates == 9


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_torn_checkpoint_is_refused(directory: Path, share: float) -> None:
    file = directory / "checkpoint.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    assert "checkpoint.safetensors is no whole checkpoint of Paceline" in refused(directory)


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_refused(directory: Path, seed: int) -> None:
    (directory / "checkpoint.safetensors").write_bytes(random.Random(seed).randbytes(10_000))
    assert "is no whole checkpoint of Paceline" in refused(directory)


@pytest.mark.parametrize("place", [0.3, 0.6, 0.95])
def test_a_flipped_bit_is_noticed(directory: Path, place: float) -> None:
    file = directory / "checkpoint.safetensors"
    data = bytearray(file.read_bytes())
    data[int(len(data) * place)] ^= 1
    file.write_bytes(data)
    assert any(word in refused(directory) for word in ("damaged", "no whole checkpoint"))


@pytest.mark.parametrize("save", [pickle.dumps, "torch.save"], ids=["pickle", "torch.save"])
def test_a_pickle_is_refused_without_being_run(directory: Path, save: Any) -> None:
    buffer = io.BytesIO()
    torch.save(Boom(), buffer)
    (directory / "checkpoint.safetensors").write_bytes(save(Boom()) if callable(save) else buffer.getvalue())
    assert "is no whole checkpoint of Paceline" in refused(directory)


def test_another_safetensors_file_is_refused(directory: Path) -> None:
    save_file({"weight": torch.zeros(3)}, directory / "checkpoint.safetensors")
    assert "is a safetensors file, but no checkpoint of Paceline" in refused(directory)


def test_a_newer_format_is_refused(directory: Path) -> None:
    save_file({}, directory / "checkpoint.safetensors", {KEY: '2 00000000 {"whatever": 1}'})
    assert "has format 2; this version of Paceline reads format 1" in refused(directory)


def test_a_checkpoint_that_is_a_directory_a_pipe_or_a_broken_link_is_refused(directory: Path) -> None:
    file = directory / "checkpoint.safetensors"
    file.unlink()
    file.mkdir()
    assert "checkpoint.safetensors is a directory, not a file" in refused(directory)
    file.rmdir()
    os.mkfifo(file)
    assert "checkpoint.safetensors is a pipe, not a file" in refused(directory)
    file.unlink()
    file.symlink_to("nowhere")
    assert "checkpoint.safetensors is a symbolic link, which is not followed" in refused(directory)


# A directory from somebody else, with names in it that lead to files of ours.

WRITTEN = ("trace.jsonl", "metrics.jsonl")


@pytest.mark.parametrize("file", [*FILES, *WRITTEN])
def test_no_link_in_the_directory_of_a_run_is_followed(directory: Path, file: str) -> None:
    ours = directory.parent / "ours"
    ours.write_bytes((directory / file).read_bytes() if (directory / file).exists() else b"keep")
    (directory / file).unlink(missing_ok=True)
    (directory / file).symlink_to(ours)
    assert f"{file} is a symbolic link, which is not followed" in refused(directory)
    with pytest.raises(pl.ConfigError, match="is a symbolic link"):
        read_run(directory)


@pytest.mark.parametrize("file", [*FILES, *WRITTEN])
@pytest.mark.parametrize("there", [True, False], ids=["to a file", "to nowhere"])
def test_a_run_that_begins_again_cuts_nothing_that_a_link_leads_to(directory: Path, file: str, there: bool) -> None:
    """Without a checkpoint a run begins anew, and its record with it."""
    (directory / "checkpoint.safetensors").unlink()
    ours = directory.parent / "ours"
    if there:
        ours.write_text("keep")
    (directory / file).unlink(missing_ok=True)
    (directory / file).symlink_to(ours)
    assert "is a symbolic link" in refused(directory)
    assert ours.exists() == there


@pytest.mark.parametrize("file", WRITTEN)
@pytest.mark.parametrize("begins", [True, False])
def test_a_file_with_a_second_name_is_not_written_to(directory: Path, file: str, begins: bool) -> None:
    os.link(directory / file, directory.parent / "ours")
    if begins:
        (directory / "checkpoint.safetensors").unlink()
    assert f"{file} has a second hard link" in refused(directory)
    read_run(directory)  # reading does no harm


@pytest.mark.parametrize("file", ["metrics.jsonl", "trace.jsonl", "config.json", "summary.json", "config.toml"])
def test_a_pipe_in_the_directory_of_a_run_is_not_waited_for(directory: Path, file: str) -> None:
    (directory / file).unlink(missing_ok=True)
    os.mkfifo(directory / file)
    with pytest.raises(pl.ConfigError, match=f"{file} is a pipe, not a file"):
        read_run(directory)
    with pytest.raises(pl.ConfigError, match=f"{file} is a pipe, not a file"):
        CASE.run(directory, MORE, resume=True)


def test_the_name_of_a_half_written_file_may_be_a_link_already(directory: Path) -> None:
    ours = directory.parent / "ours"
    ours.write_text("keep")
    (directory / f".config.json.{os.getpid()}.partial").symlink_to(ours)
    (directory / f".summary.json.{os.getpid()}.partial").hardlink_to(ours)
    CASE.run(directory, MORE, resume=True)
    assert ours.read_text() == "keep"
    assert not (directory / "config.json").is_symlink()


def test_curves_are_not_written_behind_a_link(directory: Path) -> None:
    (directory / "tensorboard").symlink_to(directory.parent, target_is_directory=True)
    assert "tensorboard is a symbolic link" in refused(directory)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            Case(CASE.strategy, model=lambda: nn.Linear(64, 11, dtype=torch.float64)),
            "'weight' is float64 of shape [10, 64], here it is float64 of shape [11, 64]",
        ),
        (
            Case(CASE.strategy, model=lambda: nn.Linear(64, 10)),
            "'weight' is float64 of shape [10, 64], here it is float32 of shape [10, 64]",
        ),
        (Case(CASE.strategy, model=dropout), "the checkpoint is of another model: its '0.weight' is missing"),
        (Case(CASE.strategy, optimizer=sgd(0.2)), "the run was begun with optimizer: lr = 0.1, not 0.2"),
        (
            Case(CASE.strategy, optimizer=lambda p: torch.optim.Adam(p, lr=0.1)),
            "the run was begun with optimizer = 'SGD', not 'Adam'",
        ),
        (
            Case(CASE.strategy, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 3)),
            "the run was begun with scheduler = None, not 'StepLR'",
        ),
        (Case(pl.Synchronous()), "the run was begun with strategy = Grouped("),
        (Case(CASE.strategy, sampling=pl.Resampled()), "the run was begun with sampling = Shuffled(), not Resampled()"),
    ],
    ids=range(8),
)
def test_another_run_is_refused_with_what_differs(directory: Path, case: Case, said: str) -> None:
    assert said in refused(directory, case)


def test_another_seed_is_refused(directory: Path) -> None:
    with pytest.raises(pl.ConfigError, match="the run was begun with seed = 3, not 4"):
        CASE.run(directory, MORE, resume=True, seed=4)


def test_an_end_that_has_passed_is_refused(directory: Path) -> None:
    with pytest.raises(pl.ConfigError, match=r"the run is at 6 updates and .* already, past"):
        CASE.run(directory, pl.Stop(updates=5), resume=True)


@pytest.mark.parametrize("file", ["trace.jsonl", "metrics.jsonl"])
def test_a_record_that_is_shorter_than_the_checkpoint_says_is_refused(directory: Path, file: str) -> None:
    data = (directory / file).read_bytes()
    (directory / file).write_bytes(data[:100] if file == "metrics.jsonl" else data[:200])
    assert f"{file} has" in refused(directory)


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines.insert(9, lines[8]),
        lambda lines: lines.insert(9, b"garbage\n"),
        lambda lines: lines.pop(2),
        lambda lines: lines.append(b'["halt"'),
    ],
)
def test_a_run_whose_trace_is_damaged_is_not_gone_on_with(
    directory: Path, change: Callable[[list[bytes]], object]
) -> None:
    lines = (directory / "trace.jsonl").read_bytes().splitlines(keepends=True)
    change(lines)
    (directory / "trace.jsonl").write_bytes(b"".join(lines))
    forge(directory, at("trace", "bytes", value=len(b"".join(lines))))
    assert re.search(r"line \d+ of .*trace.jsonl (cannot be understood|is broken)", refused(directory))


def test_the_trace_of_another_fleet_is_refused(directory: Path) -> None:
    data = (directory / "trace.jsonl").read_bytes()
    (directory / "trace.jsonl").write_bytes(data.replace(b'"workers": 5', b'"workers": 6', 1))
    assert "trace.jsonl: it begins with" in refused(directory)


def test_a_directory_that_holds_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    assert "it is not the directory of a run" in refused(tmp_path)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", "\x00"])
def test_a_broken_config_is_refused(directory: Path, text: str) -> None:
    (directory / "config.json").write_text(text)
    assert "config.json" in refused(directory)


# Forged on purpose: the checksum is right, the content is not.


def forge(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    state = read_checkpoint(directory / "checkpoint.safetensors")
    change(state)
    write_checkpoint(directory / "checkpoint.safetensors", state)


def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(state: Any) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        at("server", value=None),
        at("loop", value=[1, 2, 3]),
        at("server", "counts", value=["many"] * 4),
        at("server", "model", "weight", value=torch.zeros(1, dtype=torch.float64)),
        at("server", "model", "../../weight", value=torch.zeros(1)),
        at("server", "optimizer", "param_groups", value=[]),
        at("contributions", "samples", "indices", value=np.full(3, 10**9)),
        at("contributions", "samples", "counts", value=[10**9]),
        at("contributions", "snapshots", value=[]),
        at("contributions", "bundles", value=[[[], [torch.zeros(2)]]]),
        at("loop", "coordinator", "ledger", "_current", value=[["a", "b", "c", "d", "e"]]),
        at("loop", "coordinator", "ledger", "numbers", value=[0, float("nan"), 0.0]),
        at("loop", "pending", "facts", value=[["eval", "__import__('os').mkdir('unpickled')"]]),
        at("crew", "drawn", value=[10**18] * 5),
        at("crew", "running", value=[[[0, 0, 0, "gradient", 1], -1, 0, 0, 0, 0]]),
        at("sampling", "sequences", value=[]),
        at("random", "cpu", value=torch.zeros(3)),
        at("trace", "bytes", value=-1),
        at("metrics", "bytes", value="all"),
        lambda state: state.pop("judge"),
    ],
)
def test_a_forged_checkpoint_is_refused(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    forge(directory, change)
    assert "cannot resume from" in refused(directory)


@pytest.mark.parametrize(
    ("key", "value"), [("version", 5), ("users", {6: 1}), ("users", {5: 2}), ("users", {}), ("earlier", {})]
)
def test_an_average_that_does_not_fit_the_work_that_began_with_it_is_refused(
    key: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = MODELS["averages in groups"]
    case.run(tmp_path / "run", pl.Stop(updates=6))
    forge(tmp_path / "run", at("server", "aggregation", key, value=value))
    assert "cannot resume from" in refused(tmp_path / "run", case)


@pytest.mark.parametrize("text", ["[" * 100_000, "1", '{"$": "call", "of": "os.system"}', '{"$": "tensor", "of": "x"}'])
def test_a_forged_header_is_refused(directory: Path, text: str) -> None:
    save_file({}, directory / "checkpoint.safetensors", {KEY: f"1 {zlib.crc32(text.encode()):08x} {text}"})
    assert "cannot be understood" in refused(directory)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(value=plain)
def test_what_is_written_is_read(value: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "values.safetensors"
    write_checkpoint(path, {"value": value})
    assert read_checkpoint(path) == {"value": value}
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()[KEY].split(" ", 2)[2]).keys() == {"value"}


def test_what_is_no_plain_value_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(pl.ConfigError, match="cannot be kept in a checkpoint: a/0 is a Boom"):
        write_checkpoint(tmp_path / "x", {"a": [Boom()]})
    assert list(tmp_path.iterdir()) == []


def test_the_weights_of_a_run_can_be_read_by_anybody(directory: Path) -> None:
    assert load_file(directory / "model.safetensors").keys() == linear().state_dict().keys()


# Damaged and forged at random: a short run of what tests/support/fuzz_files.py does for hours.


@pytest.mark.parametrize(
    ("kind", "cases"), [("trace", 25), ("checkpoint", 30), ("toml", 25), ("pruning", 20), ("directory", 20)]
)
def test_whatever_is_damaged_is_taken_or_refused_in_one_line(kind: str, cases: int, tmp_path: Path) -> None:
    found = fuzz(tmp_path, (kind,), 7, cases, {name: CASES[name] for name in ("grouped compensation", "busy server")})
    assert found[kind].faults == []
    assert found[kind].counts["refused"] > cases / 4
    assert found[kind].counts.total() == cases


def _another_worker(ledger: dict[str, Any]) -> None:
    for each in (ledger, ledger["parts"][-1]):
        each["_workers"].append(77)
        each["_idle"].append(77)


@pytest.mark.parametrize(
    "change",
    [
        at("crew", "now", value=0),
        at("crew", "running", value=[]),
        at("crew", "changes", value=[99]),
        at("sampling", "returned", value={"9": [1]}),
        at("sampling", "returned", value={"0": [10**6]}),
        lambda state: _another_worker(state["loop"]["coordinator"]["ledger"]),
        at("contributions", "version", value=5),
        at("loop", "version", value=7),
        at("loop", "coordinator", "issued", value=1),
        at("loop", "coordinator", "ledger", "_idle", value=[0, 1, 2, 3, 4]),
        at("loop", "coordinator", "ledger", "_alarms", value=[0.0]),
        at("loop", "coordinator", "ledger", "numbers", value=[6, 0.0, 1.0]),
        at("loop", "coordinator", "ledger", "_groups", value=[[0, 1], [2, 3], [4]]),
        at("loop", "coordinator", "ledger", "parts", 0, "_workers", value=[0]),
        at("loop", "coordinator", "ledger", "parts", 1, "_recalled", value=[]),
        at("loop", "coordinator", "ledger", "parts", 1, "_kept", value=[]),
        at("server", "optimizer", "param_groups", 0, "lr", value="much"),
        at("server", "optimizer", "param_groups", 0, "lr", value=float("nan")),
        at("server", "optimizer", "state", value={0: {"momentum_buffer": torch.zeros(3, dtype=torch.int64)}}),
        lambda state: state["contributions"]["samples"]["tickets"][0].reverse(),
    ],
)
def test_parts_of_a_checkpoint_that_contradict_each_other_are_refused(
    directory: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    """Each would have ended the run in its middle, after its files were cut."""
    forge(directory, change)
    assert "cannot resume from" in refused(directory)
