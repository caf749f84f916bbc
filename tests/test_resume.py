"""A run that ends somewhere and is resumed is, to the bit, the run that went on."""

from pathlib import Path

import pytest
import torch

import paceline as pl
from support.digits import rows, weights
from support.resumable import CASES

TESTS = Path(__file__).parent
FILES = (
    "checkpoint.safetensors",
    "config.json",
    "metrics.jsonl",
    "model.safetensors",
    "summary.json",
    "trace.jsonl",
)
UPDATES = 12


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", CASES)
def test_a_run_resumed_after_any_update_has_the_bytes_of_one_that_went_on(name: str, tmp_path: Path) -> None:
    """Weights, history, trace and metrics, after one break and after a break at every update."""
    case = CASES[name]
    straight = case.run(tmp_path / "straight", pl.Stop(updates=UPDATES))
    expected = files(tmp_path / "straight")
    assert sorted(expected) == sorted(FILES)
    for broken in ([5], range(1, UPDATES)):
        directory = tmp_path / f"broken{len(broken)}"
        for updates in broken:
            case.run(directory, pl.Stop(updates=updates), resume=True)
        resumed = case.run(directory, pl.Stop(updates=UPDATES), resume=True)
        assert rows(resumed) == rows(straight)
        assert torch.equal(weights(resumed.model), weights(straight.model))
        assert resumed.summary() == straight.summary()
        found = files(directory)
        for file in FILES:
            assert found[file] == expected[file], file


@pytest.mark.parametrize("name", ["compensation", "grouped compensation", "every delay", "batch norm"])
def test_a_run_resumed_after_any_time_has_the_bytes_of_one_that_went_on(name: str, tmp_path: Path) -> None:
    """The event that came too late for the first run is the first of the second."""
    case = CASES[name]
    case.run(tmp_path / "straight", pl.Stop(seconds=0.6))
    for seconds in (0.07, 0.2, 0.31, 0.6):
        case.run(tmp_path / "broken", pl.Stop(seconds=seconds), resume=True)
    assert files(tmp_path / "broken") == files(tmp_path / "straight")


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_on_the_way_changes_nothing(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.run(tmp_path / "without", pl.Stop(updates=7))
    case.run(tmp_path / "with", pl.Stop(updates=7), checkpoint=pl.Every(updates=1))
    assert files(tmp_path / "with") == files(tmp_path / "without")
