"""The pages of the site: those that are written, and those that ``tools/pages.py`` makes of something else."""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


@cache
def maker() -> ModuleType:
    """``tools/pages.py``, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools/pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATED: dict[Path, Callable[[], str]] = {  # what makes the text of each
    ROOT / "docs" / name: cache(make) for name, make in maker().makers().items()
}


def written_pages() -> list[Path]:
    """The pages that are in the repository; those that ``make docs`` left in docs/ are not."""
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in GENERATED]
