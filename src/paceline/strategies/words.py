"""Strategies in words: "K-SGD, 8 of 16" for what the command line spells ``k-sgd:quorum=8``."""

from collections.abc import Callable, Mapping
from typing import Any

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.strategies.aggregation import OuterSGD
from paceline.strategies.catalogue import STRATEGIES
from paceline.strategies.names import LABELS, StrategyChoice, choice_of, parse_strategy

# What people call a rule, where the first of its acronyms is not it.
NAMES = {
    "synchronous": "synchronous SGD",
    "asynchronous": "asynchronous SGD",
    "grouped": "group SGD",
    "regrouped": "group SGD, measured",
    "unequal-batches": "unequal batches",
    "advised": "advised",
    "quorum-grace": "quorum and grace",
    "adaptive-quorum": "adaptive K-SGD",
    "newest-of-each": "newest of each",
    "model-averaging": "local SGD",
    "final-ensemble": "E-DNN",
}
IN_GROUPS = ("grouped", "regrouped")
OUTSIDE = {"ddp": "DDP", "fsdp": "FSDP", "torchft": "torchft", "hivemind": "hivemind", "ray": "Ray", "flower": "Flower"}
OPTIONS: Mapping[str, Callable[[Any], str]] = {
    "blocks": lambda value: "1 block" if value == 1 else f"{value} blocks",
    "size": lambda value: f"{value} at a time",
    "batch": lambda value: f"{value} gradients",
    "total": lambda value: f"{value:,} samples",
    "threshold": lambda value: f"younger than {value}",
    "every": lambda value: f"every {value:,}",
    "steps": lambda value: f"{value:,} steps",
    "grace": lambda value: f"{value:g} s of grace",
    "seconds": lambda value: f"rounds of {value:g} s",
    "outer_lr": lambda value: f"outer learning rate {value:g}",
    "waits": lambda value: f"waits by {value}",
    "inside": lambda value: f"inside {value}",
}


def in_words(strategy: Strategy | StrategyChoice | str | Mapping[str, Any], workers: int | None = None) -> str:
    """A strategy as legends and sentences call it.

    strategy  the object, or its text on the command line; any other text is a name already, and stays as it is
              (``ddp`` and others outside Paceline are spelled as their authors do). A mapping is a strategy as the
              directory of a run describes it
    workers   the size of the fleet: "K-SGD, 8 of 16"; without it, "K-SGD, first 8"

    An object that the command line has no name for is called by its class.
    """
    choice = choice_in(strategy)
    if choice is None:
        if isinstance(strategy, Mapping):
            return str(strategy.get("kind", "unknown strategy"))
        return OUTSIDE.get(strategy.lower(), strategy) if isinstance(strategy, str) else type(strategy).__name__
    name = NAMES.get(choice.name) or choice.named.acronyms.split(",")[0]
    of = (
        None if choice.name in IN_GROUPS and "inside" in choice.options else workers
    )  # a group is smaller than the fleet
    return ", ".join([name, *(_option(each, value, of) for each, value in choice.options.items())])


def choice_in(strategy: Strategy | StrategyChoice | str | Mapping[str, Any]) -> StrategyChoice | None:
    """The named strategy that is meant; None if it has no name."""
    if isinstance(strategy, StrategyChoice):
        return strategy
    if isinstance(strategy, Mapping):
        described = _described(strategy)
        return None if described is None else choice_of(described)
    if not isinstance(strategy, str):
        return choice_of(strategy)
    try:
        return parse_strategy(strategy)
    except ConfigError:
        return None


def _described(description: Mapping[str, Any]) -> Any:
    """What a run's directory describes, made again if it is a rule of Paceline's; None if it is not."""
    kinds = {each.kind.__name__: each.kind for each in STRATEGIES} | {OuterSGD.__name__: OuterSGD}
    make = kinds.get(str(description.get("kind")))
    try:
        fields = {
            name: _described(value) if isinstance(value, Mapping) else value
            for name, value in description.items()
            if name != "kind"
        }
        return None if make is None else make(**fields)
    except (ConfigError, TypeError, ValueError, RecursionError):
        return None


def _option(name: str, value: Any, workers: int | None) -> str:
    if name == "quorum":
        return f"first {value}" if workers is None else f"{value} of {workers}"
    if name == "groups":
        return "by label" if value == LABELS else f"{len(value)} groups"
    if isinstance(value, StrategyChoice):
        value = in_words(value, workers)
    if name in OPTIONS:
        return OPTIONS[name](value)
    spelt = name.replace("_", " ")
    if isinstance(value, bool):
        return spelt if value else f"no {spelt}"
    return f"{spelt} {value:g}" if isinstance(value, int | float) else f"{spelt} {value}"
