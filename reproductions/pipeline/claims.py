"""What a paper claims beside what was found, and the words that notes on claims share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reproductions.pipeline.verdicts import Difference

Value = float | str | None
OPEN = "cannot be told"
WAITING = "not run yet"
NOTHING = "-"  # to compare with


@dataclass(frozen=True)
class Claim:
    """One thing that a paper says, what we found, how far apart they may be, and whether it holds.

    Numbers or words: "gsgd lowest" is a claim too. ``holds`` is None where the paper gives nothing to compare with,
    or where too little was run to tell. ``test`` says by which test that was found, with its interval; ``missing``
    names a run that the claim rests on and that was not made yet.
    """

    name: str
    paper: Value
    ours: Value
    tolerance: Value
    holds: bool | None
    note: str = ""
    test: str = ""
    missing: str = ""

    @property
    def verdict(self) -> str:
        """In words; what the paper does not say, in its words or as a control in brackets, has none."""
        if self.holds is not None:
            return "yes" if self.holds else "no"
        if self.paper is None or self.tolerance is None:
            return NOTHING
        return WAITING if self.missing else OPEN

    def table(self) -> dict[str, Any]:
        """Plain values for JSON."""
        fields = {name: getattr(self, name) for name in ("name", "paper", "ours", "tolerance", "holds", "verdict")}
        return {**fields, **{name: value for name in ("test", "note", "missing") if (value := getattr(self, name))}}


def by_test(  # noqa: PLR0917 - in the order of Claim's fields
    name: str, paper: Value, found: "Difference", tolerance: Value, holds: bool | None, note: str = ""
) -> Claim:
    """A claim about a difference, with the test that decides it."""
    return Claim(name, paper, found.mean, tolerance, holds, note, found.words)


class NotRun(Exception):
    """A run that a claim rests on is still missing; its name."""


def made(name: str, paper: Value, tolerance: Value, make: Callable[[str], Claim]) -> Claim:
    """What ``make(name)`` returns, or a claim without a verdict if a run is missing."""
    try:
        return make(name)
    except NotRun as missing:
        return waiting(name, paper, tolerance, str(missing))


def waiting(name: str, paper: Value, tolerance: Value, missing: str) -> Claim:
    """A claim that waits for a run."""
    return Claim(name, paper, None, tolerance, None, f"{WAITING}: {missing}", missing=missing)


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
