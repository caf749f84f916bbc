"""Every Python block of the README and of the documentation runs; a text block right after it is what it prints.

A block after the line ``<!-- fragment -->`` is a piece of something larger, and is only compiled. Every TOML block is a
valid configuration.
"""

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from paceline.config.file import parse_config
from support.site import written_pages

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"^(?P<fragment><!-- fragment -->\n+)?```python\n(?P<code>.*?)^```$(?:\n+```text\n(?P<printed>.*?)^```$)?",
    flags=re.MULTILINE | re.DOTALL,
)
TOML = re.compile(r"^```toml\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    place: str
    line: int
    code: str
    printed: str | None
    fragment: bool


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            place=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, match.start("code")),
            code=match["code"],
            printed=match["printed"],
            fragment=match["fragment"] is not None,
        )
        for match in BLOCK.finditer(text)
    ]


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written_pages()]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def test_the_readme_has_a_block_that_runs() -> None:
    assert any(block.place == "README.md" and not block.fragment for block in BLOCKS)


def test_no_python_block_escapes_the_search() -> None:
    assert len(BLOCKS) == sum(page.read_text(encoding="utf-8").count("```py") for page in PAGES)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.place}:{block.line}")
def test_the_block_runs_and_prints_what_the_page_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = compile("\n" * block.line + block.code, block.place, "exec")
    if block.fragment:
        return
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    if block.printed is not None:
        assert printed.getvalue() == block.printed


def test_configurations_in_the_documentation_are_valid() -> None:
    texts = [text for page in PAGES for text in TOML.findall(page.read_text(encoding="utf-8"))]
    assert [len(parse_config(text).strategies) for text in texts] == [2, 2]


def test_every_row_on_models_names_a_test_that_exists() -> None:
    """A row of a table of docs/models.md, and nothing but its header, without a test would be a promise only."""
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    named = {row: re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row) for row in rows if "| shown by |" not in row}
    assert len(named) > 30
    missing = [row for row, tests in named.items() if not tests] + [
        f"{file}::{name}"
        for tests in named.values()
        for file, name in tests
        if not (ROOT / file).is_file() or f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert not missing


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 120
    assert [line for line in lines if len(line) > 120] == []
