"""A sum of the code that a module's results may depend on: its own, and that of all of Paceline that it imports."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import paceline

ROOT = Path(paceline.__file__).parent


@cache
def fingerprint(module: str) -> str:
    """The SHA-256 of the code behind a module. What it does not import may change: other results cannot come of it."""
    total = hashlib.sha256()
    for file in sorted(_reached(Path(sys.modules[module].__file__ or ""))):
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def _reached(file: Path) -> set[Path]:
    todo, seen = [file], {file}
    while todo:
        found = {path for name in _imported(todo.pop()) for path in _files(name)} - seen
        seen |= found
        todo += found
    return seen


def _imported(file: Path) -> Iterator[str]:
    """The names that a file imports, late imports included."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(name: str) -> list[Path]:
    """Where a name of Paceline is from; all there is for names of the package itself, which are found in use."""
    parts = name.split(".")
    if parts[0] != "paceline" or name == "paceline.__version__":
        return []
    places = [ROOT.joinpath(*parts[1:end]) for end in range(2, len(parts) + 1)]
    tried = [path for place in places for path in (place.with_suffix(".py"), place / "__init__.py")]
    found = [path for path in tried if path.is_file()]
    return found or list(ROOT.rglob("*.py"))
