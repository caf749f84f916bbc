"""Another work under the same rule: who waits for whom does not depend on what is handed in."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.ledger import Ledger
from paceline.core.messages import Assign, Decision, Within, Work
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.grouped import Grouped
from paceline.strategies.regrouped import Regrouped
from paceline.strategies.traits import said


def handing_in(work: Callable[[int], Work], ledger: Ledger, decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions of a rule, with the work of a ledger's round in place of what the rule assigns."""
    return [_with_work(work, ledger, decision) for decision in decisions]


def _with_work(work: Callable[[int], Work], ledger: Ledger, decision: Decision) -> Decision:
    if isinstance(decision, Within):
        part = ledger.parts()[decision.part]
        return Within(decision.part, _with_work(work, part, decision.decision))
    return replace(decision, work=work(ledger.round)) if isinstance(decision, Assign) else decision


def check_rule(rule: Strategy, named: str, *, needs_rounds: str = "") -> None:
    """Raise ``ConfigError`` for a rule under which handing in models makes no sense.

    ``needs_rounds`` says why all models of an update have to be of one round, if so.
    """
    inner = rule
    while isinstance(inner, Grouped | Regrouped):
        inner = inner.inside
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


def check_steps(named: str, every: int, steps: int | None) -> None:
    if every < 1:
        raise ConfigError(f"{named} cannot communicate every {every} steps: at least 1")
    if steps is not None and steps < 1:
        raise ConfigError(f"{named} cannot make {steps} steps: at least 1")
