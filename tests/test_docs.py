"""What the pages name exists: files, modules, tests, commands and options. And they use the words of the glossary."""

import importlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import paceline
from paceline.cli.commands import app
from reproductions.cli import app as reproductions
from support.site import GENERATED, maker, written_pages

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written_pages()]
FOLDERS = ("src", "tests", "docs", "benchmarks", "examples", "reproductions", "tools")
FILES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
EXAMPLES = {"src/paceline/strategies/my_rule.py", "experiment.toml"}  # files of a reader's own
FENCED = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
COMMANDS: dict[str, Any] = {
    "paceline": typer.main.get_command(app),
    "python -m reproductions": typer.main.get_command(reproductions),
}
# Words that the project has another word for: see the glossary of docs/design.md.
AVOIDED = re.compile(
    r"\b(crews?|rosters?|hir(?:es?|ed|ing)|nurser(?:y|ies)|parcels?|mailbox(?:es)?|understud(?:y|ies)|judg\w*|spoiled|bench|"
    r"put aside|take up|(?:go|goes|going|gone|went) on|come to grief|came to grief|"
    r"critical steps?|stable steps?|largest steps?|paper's steps?)\b",
    flags=re.IGNORECASE,
)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def spans(page: Path) -> list[str]:
    """The texts in backticks, without blocks of code."""
    return SPAN.findall(FENCED.sub("", page.read_text(encoding="utf-8")))


def commands(page: Path) -> Iterator[tuple[Any, list[str]]]:
    """The command lines of a page, each as its command and the words after it."""
    text = page.read_text(encoding="utf-8")
    for line in [*SPAN.findall(FENCED.sub("", text)), *text.splitlines()]:
        for name, group in COMMANDS.items():
            match = re.match(rf"\s*(?:\w+\$ +|\.venv/bin/)?{name} +(.*)", line)
            words = shlex.split(match[1], comments=True) if match else []
            if words and re.fullmatch("[a-z][a-z-]*", words[0]):
                assert words[0] in {name for name, command in group.commands.items() if not command.hidden}, line
                yield group.commands[words[0]], words[1:]


@each_page
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"(?<![\w/.])(?:[\w.*-]+/)*[\w*-]+\.(?:py|toml)\b", "\n".join(spans(page)))
    under = re.findall(rf"(?<![\w/.])(?:{'|'.join(FOLDERS)})/[\w./-]*\w", "\n".join(spans(page)))
    missing = [
        name
        for name in {*named, *under} - EXAMPLES
        if not (ROOT / name).exists()
        and not (ROOT / "src" / name).exists()
        and not (ROOT / "src/paceline" / name).exists()
        and ("/" in name or name not in FILES)
    ]
    assert sorted(missing) == []


@each_page
def test_every_dotted_name_on_a_page_resolves(page: Path) -> None:
    for name in re.findall(
        r"(?<![\w./])(?!paceline\.toml)(?:paceline|reproductions)(?:\.[A-Za-z_]\w*)+", "\n".join(spans(page))
    ):
        parts = name.split(".")
        found: object = importlib.import_module(parts[0])
        for index, part in enumerate(parts[1:], start=2):
            if not hasattr(found, part):
                importlib.import_module(".".join(parts[:index]))
            found = getattr(found, part)


@each_page
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = {name for span in spans(page) for name in re.findall(r"(?<![\w.])test_\w+_\w+\b(?!\.py)", span)}
    assert sorted(name for name in named if f"def {name}(" not in TESTS) == []


@each_page
def test_every_command_on_a_page_has_these_options(page: Path) -> None:
    for command, words in commands(page):
        known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        assert {word.split("=")[0] for word in words if re.match("--?[a-z]", word)} <= known, (command.name, words)


def test_commands_are_found() -> None:
    found = [command.name for page in PAGES for command, _ in commands(page)]
    assert {"train", "compare", "predict", "profile", "replay", "report", "lgc", "group-sgd", "fetch"} <= {*found}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_glossary(page: Path) -> None:
    prose = SPAN.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))
    assert [match[0] for match in AVOIDED.finditer(prose)] == []


def anchors(page: Path) -> set[str]:
    text = GENERATED[page]() if page in GENERATED else page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text(encoding="utf-8"))):
        if not link.startswith("http"):
            name, _, anchor = link.partition("#")
            target = Path(os.path.normpath(page.parent / name)) if name else page
            assert target.exists() or target in GENERATED, link
            assert not anchor or anchor in anchors(target), link


def test_the_api_pages_have_every_public_name_once() -> None:
    modules = (paceline.callbacks, paceline.delays, paceline.strategy, paceline.testing, paceline.theory)
    listed = [name for _, _, names in maker().API.values() for name in names.split()]
    assert sorted(name for name in listed if "." not in name and name not in paceline.callbacks.__all__) == sorted(
        {*paceline.__all__} - {*paceline.callbacks.__all__}
    )
    assert {module.__name__ for module in modules} < {*listed}


def test_a_docstring_becomes_markdown() -> None:
    docstring = "Do ``it``.\n\nname   what it is,\n       on two lines\nother  ``x``\n\nThe end: $a$."
    expected = "Do `it`.\n\n\n- `name`: what it is,\n    on two lines\n- `other`: `x`\n\nThe end: $a$."
    assert maker().markdown(docstring) == expected


def test_a_signature_is_as_it_is_called() -> None:
    assert (
        maker().signature(paceline.Every, "Every") == "Every(updates: int | None = None, seconds: float | None = None)"
    )
    page = GENERATED[ROOT / "docs/reference/api/train.md"]()
    assert "    train: tuple[Tensor | ndarray, Tensor | ndarray] | MapDataset = None,\n" in page
    assert "- `every`: when the model is evaluated" in page


def test_the_command_page_has_every_option() -> None:
    page = GENERATED[ROOT / "docs/reference/commands.md"]()
    for name, command in COMMANDS["paceline"].commands.items():
        assert command.hidden or f"## paceline {name}\n" in page
        options = [
            each.opts[-1] for each in command.params if not command.hidden and not getattr(each, "hidden", False)
        ]
        for option in (each for each in options if each.startswith("-")):
            assert option in page
