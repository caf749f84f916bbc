"""A sum of the code that a module's results may depend on: its own, and all it imports of Paceline and of this package.

What a module does not import may change, and its kept results stay good.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import paceline
import reproductions

ROOTS = {package.__name__: Path(str(package.__file__)).parent for package in (paceline, reproductions)}


@cache
def fingerprint(module: str) -> str:
    """The SHA-256 of the code behind a module that was imported."""
    total = hashlib.sha256()
    for file in sorted(files_behind(module)):
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def files_behind(module: str) -> set[Path]:
    """The files that importing a module executes, of Paceline and of this package; late imports count too."""
    file = Path(sys.modules[module].__file__ or "")
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
    """Where a name of the two packages is from. All of its package if that is unknown, as for ``import paceline``."""
    package, *parts = name.split(".")
    if package not in ROOTS or name == "paceline.__version__":
        return []
    root = ROOTS[package]
    places = [root.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    tried = [path for place in places for path in (place.with_suffix(".py"), place / "__init__.py")]
    if found := [path for path in tried if path.is_file()]:
        return found
    home = getattr(getattr(import_module(package), parts[0], None), "__module__", None) if len(parts) == 1 else None
    return _files(home) if home is not None and home.startswith(f"{package}.") else list(root.rglob("*.py"))
