"""Following one thing through the code does not take more files than it did."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.hops import FLOWS


@pytest.mark.parametrize("flow", ["simulated", "processes", "compare", "pruning"])
def test_a_flow_passes_through_few_files(flow: str) -> None:
    """In a process of its own, where nothing was imported or warmed up by other tests."""
    command = [sys.executable, "-m", "support.hops", flow]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    about, _, limit = FLOWS[flow]
    line = result.stdout.splitlines()[0].removeprefix(f"{about}: ")
    assert 0 < int(line.split()[0]) <= limit
