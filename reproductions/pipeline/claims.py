"""What a paper claims beside what was found, and the words that notes on claims share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Value = float | str | None


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
        """Plain values for JSON."""
        fields = {name: getattr(self, name) for name in ("name", "paper", "ours", "tolerance", "holds")}
        return {**fields, "note": self.note} if self.note else fields


def within(name: str, paper: float, ours: float, tolerance: float, note: str = "") -> Claim:
    """A claim about a number, which holds if ours is at most ``tolerance`` away from it."""
    return Claim(name, paper, ours, tolerance, abs(ours - paper) <= tolerance, note)


def of_plan(claims: Iterable[Claim], plan: str) -> list[Claim]:
    """The claims, each with the name of the plan that it rests on before its note."""
    return [replace(claim, note=f"{plan}; {claim.note}") for claim in claims]


def seeds_in_words(count: int) -> str:
    """How many seeds: "one seed", "3 seeds"."""
    return "one seed" if count == 1 else f"{count} seeds"


def listed(values: Sequence[float]) -> str:
    """Values seed by seed, with two decimals."""
    return ", ".join(f"{value:.2f}" for value in values)
