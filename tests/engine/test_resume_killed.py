"""Runs that are killed with SIGKILL, wherever they are, and then resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(300)  # ten seconds of work; a busy machine may take its time


def killed(directory: Path, how: str, *cases: str) -> int:
    """How many kills there were; all files are as if there had been none."""
    command = [sys.executable, "-W", "error", "-m", "support.killed", str(directory), how, *cases]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1, done.stdout
    return int(done.stdout.split()[0])


def test_a_run_killed_before_any_of_its_writes_comes_to_the_same_bytes(tmp_path: Path) -> None:
    assert killed(tmp_path, "before-any-write", "grouped compensation") > 30


def test_runs_killed_at_random_moments_come_to_the_same_bytes(tmp_path: Path) -> None:
    """Each again and again until it gets through between two kills."""
    cases = (
        "compensation", "batch norm", "every delay, asynchronous", "leaving and joining, in groups", "watchful",
        "busy server",
    )  # fmt: skip
    assert killed(tmp_path, "at-random", *cases) > 5


def test_runs_in_which_workers_hand_in_models_come_to_the_same_bytes(tmp_path: Path) -> None:
    assert killed(tmp_path, "at-random", "averages in groups", "ensembles of the fastest") > 2
