"""Who may import whom, as docs/design.md says."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent
HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "ray")


def files(*names: str) -> list[Path]:
    """The source files of modules and packages (their names without ``paceline.``)."""
    found: list[Path] = []
    for name in names:
        path = ROOT / name.replace(".", "/")
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    return found


def module_name(file: Path) -> str:
    parts = ("paceline", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(file: Path) -> frozenset[str]:
    """All modules that a file imports, late imports included; what only type checkers import left out."""
    return frozenset(name for node in _running_code(ast.parse(file.read_text())) for name in _imported(node))


def _running_code(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for other in child.orelse:
                yield from (other, *_running_code(other))
        else:
            yield child
            yield from _running_code(child)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"relative import in line {node.lineno}: write the whole name"
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def reaches(file: Path) -> set[str]:
    """All modules that importing a file would import, through other modules of Paceline too."""
    by_name = {module_name(path): path for path in ROOT.rglob("*.py")}
    todo, seen = [file], set[str]()
    while todo:
        for name in imports(todo.pop()) - seen:
            seen.add(name)
            if name in by_name:
                todo.append(by_name[name])
    return seen


def belongs_to(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def is_standard_library(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in sys.stdlib_module_names


def ids(file: Path) -> str:
    return module_name(file)


@pytest.mark.parametrize("file", files("core"), ids=ids)
def test_the_core_imports_only_itself_and_the_standard_library(file: Path) -> None:
    assert {
        name for name in imports(file) if not (is_standard_library(name) or belongs_to(name, "paceline.core"))
    } == set()


RULES = [file for file in files("strategies") if file.name != "names.py"]


@pytest.mark.parametrize("file", RULES, ids=ids)
def test_strategies_import_only_the_core_and_the_standard_library(file: Path) -> None:
    allowed = ("paceline.core", "paceline.strategies")
    assert {name for name in imports(file) if not (is_standard_library(name) or belongs_to(name, *allowed))} == set()


@pytest.mark.parametrize("file", files("core", "strategies"), ids=ids)
def test_the_core_and_the_strategies_know_no_clock_and_no_chance(file: Path) -> None:
    assert {
        name for name in imports(file) if belongs_to(name, "time", "datetime", "random", "secrets", "logging", "os")
    } == set()


@pytest.mark.parametrize(
    "file", files("delays", "data.batches", "data.partition", "trace", "core", "strategies"), ids=ids
)
def test_delays_sampling_and_traces_need_no_torch(file: Path) -> None:
    assert {name for name in reaches(file) if belongs_to(name, "torch")} == set()


@pytest.mark.parametrize("file", files("theory"), ids=ids)
def test_the_theory_needs_numpy_and_scipy(file: Path) -> None:
    others = ("theory", "core", "delays", "trace", "engine.loop", "fleets", "randomness", "strategies")
    allowed = ("numpy", "scipy", *(f"paceline.{name}" for name in others))
    assert {name for name in imports(file) if not (is_standard_library(name) or belongs_to(name, *allowed))} == set()


def test_the_theory_imports_no_torch() -> None:
    """A simulated fleet that hires for a model would, later: theory never does."""
    modules = ", ".join(ids(file) for file in files("theory"))
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_rules_of_pruning_need_no_torch_and_its_plans_nothing_at_all() -> None:
    for file in files("pruning.rules", "pruning.memory", "pruning.shards", "pruning.record"):
        assert {name for name in reaches(file) if belongs_to(name, "torch")} == set(), ids(file)
    for file in files("pruning.schedule"):
        assert {name for name in reaches(file) if not (is_standard_library(name) or belongs_to(name, "paceline"))} == (
            set()
        ), ids(file)


@pytest.mark.parametrize("file", files("fleets"), ids=ids)
def test_fleets_know_no_strategy(file: Path) -> None:
    assert {name for name in imports(file) if belongs_to(name, "paceline.strategies", "paceline.engine")} == set()


def test_ray_is_imported_in_one_file() -> None:
    importing = [ids(file) for file in ROOT.rglob("*.py") if any(belongs_to(name, "ray") for name in imports(file))]
    assert importing == ["paceline.fleets.ray.connection"]


def test_describing_a_fleet_needs_no_ray() -> None:
    assert "ray" not in _modules_after("import paceline; paceline.RayFleet(8, address='auto').medians")


def test_only_tests_import_the_test_suites() -> None:
    outside = [file for file in ROOT.rglob("*.py") if not belongs_to(ids(file), "paceline.testing")]
    wanted = ("paceline.testing", "hypothesis", "pytest")
    assert [ids(file) for file in outside if any(belongs_to(name, *wanted) for name in imports(file))] == []


@pytest.mark.parametrize(
    "module",
    ["paceline", "paceline.cli.main", "paceline.core.coordinator", "paceline.strategies.grouped", "paceline.testing"],
)
def test_importing_is_light(module: str) -> None:
    heavy = _modules_after(f"import {module}") & {*HEAVY}
    # Hypothesis may look at numpy by itself; the others may not
    assert heavy - ({"numpy"} if module == "paceline.testing" else set()) == set()


def test_names_are_loaded_when_they_are_first_used() -> None:
    loaded = _modules_after("import paceline; paceline.Grouped([[0]]), paceline.FastestK(3), paceline.Joined(0.0, 1)")
    assert not loaded & {*HEAVY}
    assert "torch" in _modules_after("import paceline; paceline.Task")


def test_testing_says_what_it_needs() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import paceline.testing"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs hypothesis" in result.stderr


def _modules_after(code: str) -> set[str]:
    """The top-level packages that are loaded after running some code in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split())
