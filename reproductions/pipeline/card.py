"""What is asked of a reproduction, and what it answers: a card that sets a paper's claims beside what was found."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from paceline.files import write_atomically

Value = float | str | None


@dataclass(frozen=True)
class Options:
    """How to reproduce: with the data sets in ``data``, ``quick`` or in full, over so many ``processes`` (a core each).

    What each run came to is kept in ``work``, so that an interrupted reproduction goes on where it was; None keeps
    nothing.
    """

    data: Path | None = None
    quick: bool = False
    work: Path | None = None
    processes: int | None = None


@dataclass(frozen=True)
class Claim:
    """One thing that a paper says, what we found, how far apart they may be, and whether it holds.

    Numbers or words: "gsgd lowest" is a claim too. ``holds`` is None where the paper gives nothing to compare with,
    or where too little was run to tell.
    """

    name: str
    paper: Value
    ours: Value
    tolerance: Value
    holds: bool | None
    note: str = ""

    def table(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("name", "paper", "ours", "tolerance", "holds")}
        return {**told, "note": self.note} if self.note else told


@dataclass(frozen=True)
class Card:
    """A paper's claims beside ours, the settings they were found with, and the runs they were found in."""

    paper: str
    settings: Mapping[str, Any]
    claims: Sequence[Claim]
    runs: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        names = [claim.name for claim in self.claims]
        if len(set(names)) < len(names):
            raise ValueError(f"two claims of {self.paper} have one name: {names}")

    def claim(self, name: str) -> Claim:
        return next(claim for claim in self.claims if claim.name == name)

    def table(self) -> dict[str, Any]:
        """Everything, in plain values for JSON."""
        claims = [claim.table() for claim in self.claims]
        card = {"paper": self.paper, "settings": self.settings, "claims": claims, "runs": list(self.runs)}
        plain: dict[str, Any] = plain_values(card)
        return plain

    def write(self, path: Path) -> None:
        """Write the card as JSON, whole or not at all: a claim and a run each on a line of its own."""
        table = self.table()
        heads = [f'"paper": {_json(table["paper"])}', f'"settings": {_json(table["settings"])}']
        lists = [f'"{name}": [\n' + ",\n".join(map(_json, table[name])) + "\n]" for name in ("claims", "runs")]
        write_atomically(path, "{" + ",\n".join([*heads, *lists]) + "}\n")


def within(name: str, paper: float, ours: float, tolerance: float, note: str = "") -> Claim:
    """A claim about a number, which holds if ours is at most ``tolerance`` away from it."""
    return Claim(name, paper, ours, tolerance, abs(ours - paper) <= tolerance, note)


def card_table(card: Card) -> Table:
    """The card as people read it; what does not hold stands out."""
    title = f"{card.paper}: {score(card)}"
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold"
    )
    for heading in ("claim", "paper", "ours", "tolerance", "holds?"):
        table.add_column(heading, overflow="fold")
    for claim in card.claims:
        name = escape(claim.name) + (f"\n[dim]{escape(claim.note)}[/]" if claim.note else "")
        values = (escape(shown(value)) for value in (claim.paper, claim.ours, claim.tolerance))
        table.add_row(name, *values, {True: "yes", False: "[bold red]NO[/]", None: "-"}[claim.holds])
    return table


def score(card: Card) -> str:
    """How many of the claims that can be judged hold."""
    judged = [claim.holds for claim in card.claims if claim.holds is not None]
    return f"{sum(judged)} of {len(judged)} claims hold"


def shown(value: Value) -> str:
    """A value in a table: numbers with six digits."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.6g}"


def plain_values(value: Any) -> Any:
    """Lists and dictionaries of plain values, as JSON has them; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
