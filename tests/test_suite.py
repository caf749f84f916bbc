"""The tests themselves: a crash costs one test, Ctrl-C works wherever they run, and no process stays unseen."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from support.processes import PATIENCE

TESTS = """
import os, signal, subprocess, sys

ENDLESS = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]

def test_passes(): pass
def test_crashes(): os._exit(1)
def test_interrupts():
    process = subprocess.Popen(ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT
def test_leaves_a_process():
    subprocess.Popen(ENDLESS, stdout=subprocess.DEVNULL)
def test_crashes_last(): os._exit(1)
"""


def test_a_crash_costs_one_test_ctrl_c_arrives_and_what_is_left_is_told(tmp_path: Path) -> None:
    """In a shell that ignores Ctrl-C."""
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(TESTS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider"], cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if "TEST" not in name} | {"PACELINE_TEST_PATIENCE": "0"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    left = re.search(r"left behind by the tests:\n  (\d+) .*time.sleep", result.stdout)
    assert left, result.stdout
    os.kill(int(left[1]), signal.SIGKILL)
    assert "2 failed, 3 passed" in result.stdout, result.stdout
    assert result.returncode == 1
