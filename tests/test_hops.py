"""Following one thing through the code does not take more files than it did."""

import re
import subprocess
import sys
from pathlib import Path

from support.hops import FLOWS


def test_a_flow_passes_through_few_files() -> None:
    """In a process of its own, where nothing was warmed up by other tests: comparing comes first."""
    flows = ["compare", "compare-alone", "simulated", "processes", "pruning"]
    command = [sys.executable, "-m", "support.hops", *flows]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    found = dict(re.findall(r"^(.*): (\d+) files,", result.stdout, re.M))
    assert [*found] == [FLOWS[flow].about for flow in flows]
    for each in (FLOWS[flow] for flow in flows):
        assert 0 < int(found[each.about]) <= each.most, each.about
