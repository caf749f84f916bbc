"""The examples run as they are, and the rule that one of them adds keeps the contract."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


custom_strategy = load("custom_strategy")


class TestDeadline(custom_strategy.TestDeadline):  # type: ignore[name-defined, misc]
    """Alone."""


class TestDeadlineInGroups(custom_strategy.TestDeadlineInGroups):  # type: ignore[name-defined, misc]
    """Each group with a deadline of its own."""


def test_the_custom_strategy_makes_more_updates_than_waiting_for_everybody() -> None:
    script = EXAMPLES / "custom_strategy.py"
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    updates = {name: int(count) for name, count in re.findall(r"^(\w+)\(.*?\) +(\d+) updates", result.stdout, re.M)}
    assert updates["Deadline"] > updates["Synchronous"] > 0
    assert result.stdout.count("accuracy") == 2


def test_ensemble_compression_tells_errors_and_costs_and_loads_what_it_saved() -> None:
    script = EXAMPLES / "ensemble_compression.py"
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    rows = re.findall(r"^(\S+DNN\S*) +([\d.]+)% +([\d.]+)% +[\d.]+ +([\d.]+), ([\d.]+), ([\d.]+)$", result.stdout, re.M)
    errors = {name: float(error) for name, error, *_ in rows}
    assert list(errors) == ["MA-DNN", "E-DNN", "EC-DNN-S", "EC-DNN-M"]
    assert all(error < 20 for error in errors.values())
    relabelling = {name: float(seconds) for name, _, _, _, seconds, _ in rows}
    assert relabelling["MA-DNN"] == relabelling["E-DNN"] == 0 < relabelling["EC-DNN-S"]
    assert f"loaded from its directory: error {errors['EC-DNN-S']}%" in result.stdout
