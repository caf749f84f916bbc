"""Runs that pruned show what they pruned; other runs do not mention it."""

import re
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.pruning.record import PruningRecord, Trends
from paceline.reports.page import describe, page
from paceline.reports.pruning import as_pictures, telling_trends
from paceline.storage.reading import read_run


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
