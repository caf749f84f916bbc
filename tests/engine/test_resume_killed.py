"""Runs that are killed with SIGKILL, wherever they are, and then resumed."""

import re
import subprocess
import sys
from pathlib import Path

from support.processes import PATIENCE

TESTS = Path(__file__).parents[1]
# Those at random again and again until they get through between two kills; in the last two workers hand in models.
KILLED = {
    "before-any-write": ["grouped compensation"],
    "at-random": [
        "compensation", "batch norm", "every delay, asynchronous", "leaving and joining, in groups", "watchful",
        "busy server", "averages in groups", "ensembles of the fastest",
    ],
}  # fmt: skip


def test_runs_that_were_killed_come_to_the_same_bytes(tmp_path: Path) -> None:
    """Before any of their writes, and at random moments."""
    cases = [f"{how}={case}" for how, named in KILLED.items() for case in named]
    command = [sys.executable, "-W", "error", "-m", "support.killed", str(tmp_path), *cases]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.sub(r"\d+", "N", done.stdout) == "".join(f"{how}: N kills\n" for how in KILLED)
    before_writes, at_random = map(int, re.findall(r"\d+", done.stdout))
    assert before_writes > 30
    assert at_random > 7
