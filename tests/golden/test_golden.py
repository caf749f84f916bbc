"""Runs on record give the same bits, and run directories written long ago are still read."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from support import golden

PLACE = Path(__file__).parent
RECORD: dict[str, dict[str, Any]] = json.loads((PLACE / "exact.json").read_text())


def test_every_run_is_on_record() -> None:
    assert RECORD.keys() == golden.EXACT.keys()


@pytest.mark.parametrize("name", golden.EXACT)
def test_a_run_on_record_gives_the_same_weights_and_the_same_trace(name: str) -> None:
    assert golden.recorded(golden.EXACT[name]) == RECORD[name]


@pytest.mark.parametrize("name", golden.EXACT)
def test_no_sum_of_these_runs_rounds(name: str) -> None:
    """With three bits to spare no order of adding, and no processor, can make a difference."""
    run = golden.EXACT[name]()
    for values in run.model.state_dict().values():
        for value in values.flatten().tolist():
            assert math.frexp(value)[0] * 2**50 % 1 == 0


def test_an_interrupted_run_of_an_older_version_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    shutil.copytree(PLACE / "older" / "interrupted", tmp_path / "run")
    run = golden.EXACT["live compensation"](directory=tmp_path / "run", resume=True)
    straight = golden.EXACT["live compensation"]()
    assert all(torch.equal(value, straight.model.state_dict()[name]) for name, value in run.model.state_dict().items())
    assert run.history[-1] == straight.history[-1]


def test_the_trace_of_an_older_version_is_read() -> None:
    trace = paceline.read_trace(PLACE / "older" / "averaged" / "trace.jsonl")
    assert trace.about["workers"] == 4
    assert sum(type(fact).__name__ == "Step" for fact in trace) == 6
