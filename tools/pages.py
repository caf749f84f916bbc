"""The pages of the site that are made of something else: API, commands, gallery, changelog.

    python tools/pages.py [DOCS]        writes them into DOCS, by default docs/; git ignores them

The API comes from docstrings, the commands from ``--help``, the gallery from ``examples/gallery``, the changelog from
CHANGELOG.md. ``make docs`` runs this before it builds the site.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main

import paceline
from paceline.cli.commands import app
from paceline.strategies.catalogue import STRATEGIES

ROOT = Path(__file__).parent.parent
_RULES = sorted({named.kind.__name__ for named in STRATEGIES})
# Title, what the page is about, and names of paceline, or modules whose every public name is on the page.
API: Mapping[str, tuple[str, str, str]] = {
    "train": (
        "Train",
        "A task, a run and what comes of it.",
        "train Task Stop Every Run load_run load simulate replay read_trace curvature Equal Dirichlet Pathological "
        "ReassignShards Shuffled Resampled PacelineError ConfigError CannotWrite",
    ),
    "strategies": (
        "Strategies",
        "Every rule. [Strategies](../../strategies.md) orders them by what they do about late workers.",
        " ".join([*_RULES, "OuterSGD groups_by_speed groups_by_label sizes_by_speed"]),
    ),
    "fleets": (
        "Fleets and delays",
        "Where workers run, and how long they take.",
        "ProcessFleet SilenceTimeout RayFleet SimulatedFleet Network Machines Availability Joined Leaving Left "
        "paceline.delays",
    ),
    "decide": (
        "Record, predict, advise, compare",
        "What to ask before a long run, and colours and names for figures of your own.",
        "record profile predict Descent advise Advice compare Comparison paceline.look",
    ),
    "pruning": (
        "Data fine-pruning",
        "Samplers that skip a planned fraction of the samples.",
        "FinePruning SoftPruning RandomPruning WithIndices",
    ),
    "callbacks": (
        "Callbacks and integrations",
        "What is told of a run while it trains.",
        "paceline.callbacks paceline.integrations.huggingface paceline.integrations.lightning",
    ),
    "rules": (
        "Rules of your own",
        "What a strategy reads and decides, and the tests that it has to pass.",
        "paceline.strategy paceline.testing",
    ),
    "theory": ("Theory", "Stable learning rates, speed and error with delayed gradients.", "paceline.theory"),
}


def makers() -> dict[str, Callable[[], str]]:
    """Paths below docs/, and what makes the text of each."""
    return {
        **{f"reference/api/{name}.md": partial(api_page, name) for name in API},
        "reference/commands.md": commands_page,
        "reference/glossary.md": glossary_page,
        "reference/changelog.md": changelog_page,
        "howto/gallery.md": gallery_page,
    }


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _link(found: re.Match[str]) -> str:
    """A link of a file in the root of the repository, as it is from docs/reference; words alone to what is no page."""
    page = found[2].removeprefix("docs/")
    return f"[{found[1]}](../{page})" if found[2] != page and page.split("#")[0].endswith(".md") else found[1]


def api_page(name: str) -> str:
    title, about, names = API[name]
    parts = [f"# {title}\n\n{about}\n"]
    for each in names.split():
        if each.startswith("paceline."):
            module = __import__(each, fromlist=["__all__"])
            parts.append(f"## {each}\n\n{markdown(inspect.getdoc(module) or '')}\n")
            parts += [part for public in module.__all__ for part in entry(getattr(module, public), public, "###")]
        else:
            parts += entry(getattr(paceline, each), each, "##")
    return "\n".join(parts)


def entry(value: Any, name: str, heading: str) -> Iterator[str]:
    """The heading, signature and docstring of a name, and of the methods of a class."""
    yield f"{heading} {name}\n"
    if isinstance(value, ModuleType) or not callable(value) or not hasattr(value, "__module__"):
        yield f"`{value!r}`\n"
        return
    yield f"```text\n{signature(value, name)}\n```\n"
    yield markdown(inspect.getdoc(value) or "") + "\n"
    if inspect.isclass(value):
        for attribute, member in vars(value).items():
            documented = member.fget if isinstance(member, property) else member
            documented = getattr(documented, "__func__", documented)
            if attribute.startswith("_") or not inspect.isfunction(documented) or not documented.__doc__:
                continue
            shown = attribute if isinstance(member, property) else signature(documented, attribute)
            yield f"**`{name}.{' '.join(shown.split())}`**\n\n{markdown(inspect.getdoc(documented) or '')}\n"


def signature(value: Any, name: str) -> str:
    """As it is called, with one parameter a line if it is long. Modules of types are left out."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [each for each in found.parameters.values() if each.name != "self"]
    text = [re.sub(r"<(?:factory|class).*?>", "...", short(str(each))) for each in parameters]
    for number, each in enumerate(parameters):
        if each.kind is each.KEYWORD_ONLY:
            text.insert(number, "*")
            break
    returned = "" if found.return_annotation in (found.empty, None) else f" -> {short(str(found.return_annotation))}"
    line = f"{name}({', '.join(text)}){returned}"
    return line if len(line) < 100 else f"{name}(\n" + "".join(f"    {each},\n" for each in text) + f"){returned}"


def short(annotation: str) -> str:
    bare = re.sub(r"<class '([\w.]+)'>", r"\1", annotation).replace("'", "").replace("typing.", "")
    bare = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z]\w*)", "", bare)
    return re.sub(r"numpy\.ndarray\[tuple\[Any, \.\.\.\], (?:numpy\.)?dtype\[\w+\]\]", "ndarray", bare)


def markdown(docstring: str) -> str:
    """A docstring as Markdown: aligned names become a list, indented lines code, double backticks single ones."""
    lines: list[str] = []
    listed = False
    for line in docstring.replace("``", "`").splitlines():
        named = re.match(r"(\w+(?:, \w+)*) {2,}(\S.*)", line)
        if named:
            lines += [] if listed else [""]
            lines.append(f"- `{named[1]}`: {named[2]}")
        elif listed and line.startswith("  "):
            lines.append(f"    {line.strip()}")
        else:
            lines += [""] if listed and line else []
            lines.append(line)
        listed = bool(named) or (listed and line.startswith("  "))
    return "\n".join(lines)


def commands_page() -> str:
    group: Any = typer.main.get_command(app)
    parts = ["# Commands\n\nWhat `--help` prints, made of the commands themselves.\n"]
    with typer.Context(group, info_name="paceline", max_content_width=100, terminal_width=100) as context:
        parts.append(f"```text\n{group.get_help(context)}\n```\n")
        for name, command in group.commands.items():
            if not command.hidden:
                inner = typer.Context(command, info_name=name, parent=context, terminal_width=100)
                parts.append(f"## paceline {name}\n\n```text\n{command.get_help(inner)}\n```\n")
    return "\n".join(parts)


def glossary_page() -> str:
    """The section of docs/design.md: there is one glossary."""
    _, found, rest = read("docs/design.md").partition("## Glossary\n")
    assert found, "docs/design.md has no section Glossary"
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return f"# Glossary\n{section.replace('](#', '](../design.md#')}"


def changelog_page() -> str:
    return re.sub(r"\[([^]]*)\]\((?!http|#)([^)]+)\)", _link, read("CHANGELOG.md"))


def gallery_page() -> str:
    """A picture, the text and the code of each file of examples/gallery, which begins with its docstring."""
    intro = (
        "Ten small cases, each a file of `examples/gallery` that runs in seconds and draws its picture. "
        "What several of them use is in `examples/gallery/shared.py`, at the end of this page."
    )
    parts = [f"# Gallery\n\n{intro}\n"]
    for file in sorted((ROOT / "examples/gallery").glob("[0-9]*.py")):
        _, docstring, code = file.read_text(encoding="utf-8").split('"""', 2)
        title, _, text = docstring.strip().partition("\n")
        picture, _, text = text.strip().partition("\n\n")
        name = f"examples/gallery/{file.name}"
        parts.append(f"## {title.rstrip('.')}\n\n![{' '.join(picture.split())}](../images/gallery/{file.stem}.png)\n")
        parts.append(f"{text.strip().replace('``', '`')}\n\n{_folded(f'python {name}', code)}")
    shared = read("examples/gallery/shared.py")
    parts.append(f"## What they share\n\n{_folded('examples/gallery/shared.py', shared)}")
    return "\n".join(parts)


def _folded(title: str, code: str) -> str:
    """Code that is shown on a click."""
    lines = "\n".join(f"    {line}".rstrip() for line in code.strip().splitlines())
    return f'??? example "`{title}`"\n\n    ```python\n{lines}\n    ```\n'


def main() -> None:
    docs = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs"
    for name, make in makers().items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
