"""Runs that pruned show what they pruned; other runs do not mention it."""

import re
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import paceline as pl
from paceline.cli.main import main
from paceline.pruning.record import PruningRecord, Trends
from paceline.reports import pruning
from paceline.reports.page import describe, page
from paceline.reports.pruning import as_pictures, telling_trends
from paceline.storage.reading import read_run
from support.pruning_files import pruning_arrays, write_arrays

Array = NDArray[Any]
TRENDS = ("trend_samples", "trend_epochs", "trend_losses")


def trained(directory: Path, sampling: pl.FinePruning | pl.Shuffled, shape: tuple[int, ...]) -> Path:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(96, *shape, generator=generator), torch.arange(96) % 3
    pl.train(
        pl.Task(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), nn.functional.cross_entropy, (inputs, targets)),
        strategy=pl.Synchronous(),
        fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=8,
        sampling=sampling,
        stop=pl.Stop(epochs=5),
        directory=directory,
        progress=False,
    )
    return directory


def fine() -> pl.FinePruning:
    return pl.FinePruning(samples=96, window=6, start=2, block=1, count=1, fraction=0.3)


@pytest.mark.parametrize(("shape", "images"), [((3, 4, 4), 2), ((48,), 1)])
def test_the_page_shows_what_was_pruned(tmp_path: Path, shape: tuple[int, ...], images: int) -> None:
    run = trained(tmp_path / "pruned <run>", fine(), shape)
    text = page([describe(run.name, read_run(run))])
    section = text[text.index("<section id=pruning>") : text.index('<section id="stragglers">')]
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', section)
    assert len(found) == images
    assert all(b64decode(each).startswith(b"\x89PNG") for each in found)
    assert "23.3% of the samples were left out" in section  # 4 of 5 epochs leave out 14 of 48
    assert "pruned &lt;run&gt;" in section
    assert "<run>" not in section


def test_the_page_of_other_runs_has_no_such_section(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", pl.Shuffled(), (48,))
    text = page([describe("run", read_run(run))])
    assert "id=pruning" not in text
    assert "@@" not in text


def test_pictures_are_told_by_their_shape() -> None:
    grey, colour = np.arange(64.0).reshape(4, 1, 4, 4), np.zeros((2, 3, 5, 5))
    scaled = as_pictures(grey)
    assert scaled is not None
    assert (scaled.shape, scaled.min(), scaled.max()) == ((4, 4, 4), 0, 1)
    shown = as_pictures(colour)
    assert shown is not None
    assert shown.shape == (2, 5, 5, 3)
    assert as_pictures(np.zeros((3, 7))) is None
    assert as_pictures(np.zeros((3, 2, 5, 5))) is None
    assert as_pictures(np.zeros((0, 5, 5))) is None


def test_the_trends_that_are_shown_differ() -> None:
    counts = np.array([0, 0, 5, 0], dtype=np.uint16)
    losses = {0: (1.0, 3.0), 1: (2.0, 0.1), 2: (1.0, 1.1), 3: (1.0, 1.05)}
    rows = [(sample, epoch + 1, loss) for sample, each in losses.items() for epoch, loss in enumerate(each)]
    record = PruningRecord(counts, counts, np.arange(4), [], Trends(rows))
    assert list(telling_trends(record, most=3)) == [
        "sample 0, left out 0 times", "sample 1, left out 0 times", "sample 2, left out 5 times",
    ]  # fmt: skip
    assert telling_trends(PruningRecord(counts, counts, np.arange(4))) == {}


# Records that somebody else made


def reported(directory: Path, capsys: pytest.CaptureFixture[str], **changed: Array) -> str:
    """The error of ``report`` on a run with a forged record; empty if there is none."""
    if not directory.exists():
        trained(directory, pl.Shuffled(), (48,))
    write_arrays(directory, pruning_arrays(changed.pop("times_stood_out", np.zeros(3)).size, **changed))
    code = main(["report", str(directory), "--out", str(directory.parent / "page.html")])
    said = capsys.readouterr().err
    assert code == (2 if said else 0)
    return said


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"targets": np.zeros((3, 2), np.int64)}, "targets and trend_losses are not a number for each"),
        ({"targets": np.zeros(3)}, "targets and trend_losses are not a number for each"),
        ({"shown": np.array([2, 3])}, "shown has numbers that are not from 0 to 2"),
        ({"shown": np.array([-1, 0])}, "shown has numbers that are not from 0 to 2"),
        ({"shown": np.zeros(41, np.int64), "inputs": np.zeros((41, 4, 4))}, "41 shown"),
        ({"inputs": np.zeros((3, 4, 4))}, "inputs of float64 and shape (3, 4, 4) for 2 samples"),
        ({"inputs": np.zeros((2, 4), bool)[0, 0]}, "cannot read"),
        ({"trend_samples": np.array([77, 77])}, "trend_samples has numbers that are not from 0 to 2"),
        ({"trend_epochs": np.array([1])}, "cannot read"),
        ({"trend_epochs": np.array([1, 2**40])}, "trend_epochs has numbers that are not from 0 to 2147483647"),
        ({"trend_losses": np.zeros((2, 2))}, "targets and trend_losses are not a number for each"),
        ({"times_pruned": np.array([[1, 2, 0]])}, "times_pruned is of int64 and shape (1, 3)"),
        ({"times_pruned": np.array([1.0, 2.0, 0.0])}, "times_pruned is of float64 and shape (3,)"),
        ({"times_pruned": np.array([65_536, 2, 0])}, "times_pruned has numbers that are not from 0 to 65535"),
        ({"times_pruned": np.array([1, 2])}, "2 samples, 3 that stood out, 2 shown"),
        ({"passes": np.array([0, 1, 3, 2])}, "passes is of int64 and shape (4,)"),
        ({"passes": np.array([[0, 1, 3, 4]])}, "passes do not keep some of the samples"),
        ({"passes": np.array([[0, 1, 3]])}, "passes do not keep some of the samples"),
    ],
    ids=range(18),
)
def test_a_record_that_no_run_wrote_is_refused(
    changed: dict[str, Array], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = reported(tmp_path / "run", capsys, **changed)
    assert why in said
    assert said.count("\n") == 1
    assert "pruning.safetensors" in said


MANY = 60_000


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "changed",
    [
        {"times_pruned": np.array([65_535, 2, 0])},
        {"times_stood_out": np.zeros(MANY), "targets": np.arange(MANY)},
        {"passes": np.stack([np.arange(MANY), np.arange(MANY), np.full(MANY, 3), np.full(MANY, 2)], axis=1)},
        {"passes": np.array([[0, 1, 0, 0]])},
        {"targets": np.array([-1, 5])},
        {"targets": np.zeros(0, np.int64)},
        {"inputs": np.full((2, 4, 4), np.inf)},
        {"inputs": np.array([[[np.nan, np.inf], [-np.inf, 1e38]], [[0, -1e308], [1e308, 0]]])},
        {"inputs": np.zeros((2, 0, 4))},
        {"trend_losses": np.array([np.inf, np.nan], np.float32)},
        {each: np.zeros(0, np.float32 if each == "trend_losses" else np.int64) for each in TRENDS},
    ],
    ids=range(11),
)
def test_any_other_record_is_shown_in_little_time(
    changed: dict[str, Array], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.process_time()
    assert reported(tmp_path / "run", capsys, **changed) == ""
    assert time.process_time() - began < 20


def test_several_values_are_one_bar_where_there_are_many() -> None:
    times = (np.arange(1000) % 250).astype(np.uint16)
    axis: Any = pruning.new_figure(4, 4).subplots()
    pruning.how_often(axis, times, 1)
    bars = axis.patches
    assert (len(bars), sum(bar.get_height() for bar in bars)) == (84, 1000)  # three numbers of times each, but the last
    assert (bars[0].get_height(), bars[0].get_center()[0]) == (12, 1)
    axis = pruning.new_figure(4, 4).subplots()
    pruning.by_class(axis, times, np.arange(1000) // 2)
    assert len(axis.patches) == 100
    assert axis.patches[0].get_height() == pytest.approx(times[:10].mean())
    axis = pruning.new_figure(4, 4).subplots()
    pruning.by_class(axis, times, np.arange(1000) % 3)
    assert [bar.get_height() for bar in axis.patches] == pytest.approx([times[n::3].mean() for n in range(3)])
    axis = pruning.new_figure(4, 4).subplots()
    record = PruningRecord(times, times, np.arange(0), passes=[(0, 2, 4, 1), (1, 2, 4, 3), (0, 5, 8, 8), (0, 1, 1, 0)])
    pruning.pass_sizes(axis, record)
    assert [(bar.get_center()[0], bar.get_height()) for bar in axis.patches] == [(1, 0), (2, 0.5), (5, 1)]
