"""Another work under the same rule: who waits for whom does not depend on what is handed in."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Step, Ticket, Within, Work
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.grouped import Grouped
from paceline.strategies.regrouped import Regrouped
from paceline.strategies.traits import said

Weights = dict[Ticket, Fraction]
MILLION = 10**6  # weights that are no fractions are rounded to a millionth, and so are the same on every machine


def handing_in(
    work: Callable[[Ledger, int], Work], ledger: Ledger, decisions: Sequence[Decision],
    weigh: Callable[[Ledger, Step, int], Weights] | None = None,
) -> list[Decision]:  # fmt: skip
    """The decisions of a rule with other work than it assigns, and maybe other weights than it gives.

    ``work(part, worker)`` is asked about the ledger of the part that a decision is within, ``weigh(ledger, step,
    ahead)`` about the whole; so many other steps are ``ahead`` of the one, which the ledger does not count yet.
    """
    changed: list[Decision] = []
    ahead = 0
    for decision in decisions:
        part, inner, path = ledger, decision, []
        while isinstance(inner, Within):
            path.append(inner.part)
            part, inner = part.parts()[inner.part], inner.decision
        if isinstance(inner, Assign):
            inner = replace(inner, work=work(part, inner.worker))
        elif isinstance(inner, Step):
            inner = inner if weigh is None else Step(weigh(ledger, inner, ahead), inner.keep)
            ahead += 1
        for number in reversed(path):
            inner = Within(number, inner)
        changed.append(inner)
    return changed


def check_rule(rule: Strategy, named: str, *, needs_rounds: str = "") -> None:
    """Raise ``ConfigError`` for a rule under which handing in models makes no sense.

    ``needs_rounds`` says why all models of an update have to be of one round, if so.
    """
    inner = innermost(rule)
    if why := said(inner, "gradients_only"):
        raise ConfigError(f"{named} cannot wait by {type(inner).__name__}: {why}; choose Synchronous or FastestK")
    if hasattr(inner, "waits"):
        raise ConfigError(
            f"{named} cannot wait by {type(inner).__name__}, which itself says what is handed in; choose Synchronous "
            "or FastestK"
        )
    own_rounds = isinstance(rule, Grouped | Regrouped | Asynchronous) or said(inner, "rounds_of_its_own")
    if needs_rounds and own_rounds:
        raise ConfigError(
            f"{named} cannot wait by {type(rule).__name__}, which has no common rounds: {needs_rounds}; choose "
            "Synchronous or FastestK"
        )


def innermost(rule: Strategy) -> Strategy:
    """The rule inside groups."""
    while isinstance(rule, Grouped | Regrouped):
        rule = rule.inside
    return rule


def check_steps(named: str, every: int, steps: int | None) -> None:
    if every < 1:
        raise ConfigError(f"{named} cannot communicate every {every} steps: at least 1")
    if steps is not None and steps < 1:
        raise ConfigError(f"{named} cannot make {steps} steps: at least 1")
