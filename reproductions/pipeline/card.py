"""The card of a reproduction: a paper's claims beside what was found, as a table and as JSON."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from paceline.files import write_atomically
from reproductions.pipeline.claims import NOTHING, OPEN, WAITING, Claim, Value
from reproductions.pipeline.values import plain_values


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


def card_table(card: Card) -> Table:
    """The card as people read it; what does not hold stands out."""
    title = f"{card.paper}: {score(card)}"
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold"
    )
    for heading in ("claim", "paper", "ours", "tolerance", "holds?"):
        table.add_column(heading, overflow="fold")
    for claim in card.claims:
        below = "".join(f"\n[dim]{escape(text)}[/]" for text in (claim.test, claim.note) if text)
        values = (escape(shown(value)) for value in (claim.paper, claim.ours, claim.tolerance))
        table.add_row(
            escape(claim.name) + below, *values, "[bold red]NO[/]" if claim.verdict == "no" else claim.verdict
        )
    return table


def markdown(claims: Sequence[Claim]) -> str:
    """The claims as a table for a page: what decides each is below its name."""
    lines = ["| claim | paper | ours | tolerance | holds? |", "|---|---|---|---|---|"]
    for claim in claims:
        below = "; ".join(text for text in (claim.test, claim.note) if text)
        values = (_cell(value) for value in (claim.paper, claim.ours, claim.tolerance))
        verdict = {"no": "**no**", NOTHING: "–"}.get(claim.verdict, claim.verdict)
        lines.append(f"| `{claim.name}`{'<br>' * bool(below)}{_cell(below)} | {' | '.join(values)} | {verdict} |")
    return "\n".join(lines) + "\n"


def _cell(value: Value) -> str:
    if value is None:
        return "–"
    return value.replace("|", "\\|") if isinstance(value, str) else f"{value:.4g}"


def score(card: Card) -> str:
    """How many of the claims hold; those that wait for runs are not counted among them."""
    count = Counter(claim.verdict for claim in card.claims)
    compared = sum(count[verdict] for verdict in ("yes", "no", OPEN))
    unknown = f", {count[OPEN]} cannot be told" if count[OPEN] else ""
    later = f"; {count[WAITING]} not run yet" if count[WAITING] else ""
    return f"{count['yes']} of {compared} claims hold, {count['no']} do not{unknown}{later}"


def shown(value: Value) -> str:
    """A value in a table: numbers with six digits."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.6g}"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
