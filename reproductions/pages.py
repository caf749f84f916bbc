"""Writes what the runs of the campaigns came to into docs: cards, figures, the tables of pages and that of all papers.

``python -m reproductions pages`` reads the results that there are, and trains nothing. Sentences are written by people;
what it replaces lies between two marks, or in cells of numbers.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.core.errors import ConfigError
from paceline.files import write_atomically
from reproductions.cli import PAPERS, paper_of
from reproductions.pipeline.card import Card, markdown, score
from reproductions.pipeline.claims import OPEN, WAITING
from reproductions.pipeline.figures import Drawing, write_drawings
from reproductions.pipeline.plan import Options

BEGIN, END = "<!-- campaign: written by python -m reproductions pages -->", "<!-- end of campaign -->"
COUNTED = ("yes", "no", OPEN)
WHOLE = "sdde"  # its usual card has the runs of its campaign
Claims = Sequence[Mapping[str, Any]]


def write_pages(docs: Path, results: Path | None = None) -> list[Path]:
    """Rewrite all of them in a folder such as ``docs``; the files that were written."""
    told, written = dict[str, str](), list[Path]()
    for name in PAPERS:
        if name == WHOLE:
            continue
        paper = paper_of(name)
        card = paper.reproduce(Options(full=True, runs=0, results=results))
        told[name] = str(card.settings["runs"])
        target, page = docs / "results" / f"{name}-full.json", docs / "results" / f"{name}.md"
        card.write(target)
        drawings = paper.drawings(card)
        pictures = {file: each for file, each in drawings.items() if not isinstance(each, str)}
        written += [target, page, *write_drawings(pictures, docs / "results")]
        write_atomically(page, with_campaign(page.read_text(encoding="utf-8"), card, drawings))
    table = docs / "evidence.md"
    write_atomically(table, with_counts(table.read_text(encoding="utf-8"), docs / "results", told))
    return [*written, table]


def with_campaign(text: str, card: Card, drawings: Mapping[str, Drawing] = MappingProxyType({})) -> str:
    """A page with figures, tables, and the claims that the campaign has settled or not; the others are only counted.

    A figure that the page shows elsewhere is not shown again.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"the page of {card.paper} has no place for its campaign: put {BEGIN} and {END} into it")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    made = [claim for claim in card.claims if not claim.missing]
    lines = [f"{score(card)}; {card.settings['runs']}."]
    for name, drawing in drawings.items():
        if drawing is not None and f"]({name})" not in before + after:
            lines += ["", drawing.rstrip("\n") if isinstance(drawing, str) else f"![At full length]({name})"]
    if made:
        lines += ["", markdown(made).rstrip("\n")]
    return f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}"


def settled(usual: Claims, full: Claims) -> tuple[Counter[str], int]:
    """How many claims have which verdict, those of a campaign in the place of shorter runs; and how many wait."""
    verdicts = {claim["name"]: claim["verdict"] for claim in usual}
    verdicts |= {claim["name"]: claim["verdict"] for claim in full if claim["verdict"] in COUNTED}
    return Counter(verdicts.values()), sum(claim["verdict"] == WAITING for claim in full)


def with_counts(text: str, results: Path, told: Mapping[str, str]) -> str:
    """The page of all papers with the counts of the committed cards, and how far each campaign is."""

    def row(match: re.Match[str]) -> str:
        cells = match[0].split("|")
        count, waiting = settled(_claims(results / f"{match[1]}.json"), _claims(results / f"{match[1]}-full.json"))
        numbers = [sum(count[verdict] for verdict in COUNTED), *(count[verdict] for verdict in COUNTED), waiting]
        return "|".join([*cells[:3], *(f" {number} " for number in numbers), *cells[8:]])

    def campaign(match: re.Match[str]) -> str:
        cells = match[0].split("|")
        done = told.get(match[1], "all runs made")
        return "|".join([*cells[:4], f" {done} ", *cells[5:]])

    text = re.sub(r"^\| \[[^]]+\]\(results/([a-z-]+)\.md\) \|.*$", row, text, flags=re.MULTILINE)
    return re.sub(r"^\| `python -m reproductions ([a-z-]+) --full .*$", campaign, text, flags=re.MULTILINE)


def _claims(path: Path) -> Claims:
    if not path.exists():
        return []
    claims: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["claims"]
    return claims
