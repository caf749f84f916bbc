"""What the layout promises beyond the contracts of import-linter (``pyproject.toml``): see docs/design.md."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent
HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "ray")
NOT_OURS = {"_asdict", "_fields", "_replace", "_version"}  # of every NamedTuple, and of torch's tensors
MODULES = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(ROOT.rglob("*.py"))}


def test_few_modules_are_at_the_root() -> None:
    beside = sorted(file.stem for file in ROOT.glob("*.py") if file.name != "__init__.py")
    assert beside == ["delays", "files", "look", "randomness", "strategy"]


def test_no_package_has_the_name_of_a_public_function() -> None:
    packages = {path.parent.name for path in ROOT.rglob("__init__.py")} - {"paceline"}
    assert packages & {*paceline.__all__} == set()


def test_imports_are_written_with_the_whole_name() -> None:
    relative = [
        f"{place(file)}, line {node.lineno}"
        for file, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_nobody_uses_a_private_name_of_another_module() -> None:
    private_somewhere = {name for tree in MODULES.values() for name in private_names(tree)}
    used = [
        f"{place(file)}, line {line}: {name}"
        for file, tree in MODULES.items()
        for line, name in private_uses(tree, private_somewhere - {*private_names(tree)})
    ]
    assert used == []


def private_names(tree: ast.AST) -> Iterator[str]:
    """The private names that a module defines: functions, classes, variables, fields and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.id if isinstance(node, ast.Name) else node.attr]
        else:
            continue
        yield from (name for name in names if is_private(name))


def private_uses(tree: ast.AST, of_others: set[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("paceline"):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and node.attr in of_others - NOT_OURS and not is_own(node):
            yield node.lineno, ast.unparse(node)


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def place(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_a_private_use_is_found() -> None:
    code = "from paceline.a import _one\nself._two\nb._two\nb._three\nc._asdict()"
    assert [*private_uses(ast.parse(code), {"_one", "_two"})] == [(1, "_one"), (3, "b._two")]
    assert {*private_names(ast.parse("def _f(): _x = 1\nself._y: int = 2\n_, __z = 1, 2"))} == {"_f", "_x", "_y"}


def test_the_theory_imports_no_torch() -> None:
    """A simulated fleet that launches workers for a model would, later: theory never does."""
    modules = [file.relative_to(ROOT).with_suffix("") for file in sorted((ROOT / "theory").rglob("*.py"))]
    names = ", ".join("paceline." + ".".join(path.parts).removesuffix(".__init__") for path in modules)
    assert "torch" not in modules_after(f"import {names}")


def test_describing_a_fleet_needs_no_ray() -> None:
    assert "ray" not in modules_after("import paceline; paceline.RayFleet(8, address='auto').medians")


@pytest.mark.parametrize(
    "module",
    [
        "paceline",
        "paceline.cli.main",
        "paceline.strategy",
        "paceline.core.coordinator",
        "paceline.strategies.grouped",
        "paceline.testing",
    ],
)
def test_importing_is_light(module: str) -> None:
    heavy = modules_after(f"import {module}") & {*HEAVY}
    # Hypothesis may look at numpy by itself; the others may not
    assert heavy - ({"numpy"} if module == "paceline.testing" else set()) == set()


def test_names_are_loaded_when_they_are_first_used() -> None:
    loaded = modules_after("import paceline; paceline.Grouped([[0]]), paceline.FastestK(3), paceline.Joined(0.0, 1)")
    assert not loaded & {*HEAVY}
    assert "torch" in modules_after("import paceline; paceline.Task")


def test_testing_says_what_it_needs() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; import paceline.testing"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs hypothesis" in result.stderr


def modules_after(code: str) -> set[str]:
    """The top-level packages that are loaded after running some code in a fresh interpreter."""
    script = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.split())
