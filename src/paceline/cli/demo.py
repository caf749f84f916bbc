"""What the demo says besides its results: what is about to happen, what follows from it, and how to go on."""

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING

from paceline.strategies.names import StrategyChoice

if TYPE_CHECKING:
    from paceline.comparison.results import Comparison
    from paceline.config.file import Config

OPENING = """One slow worker makes everybody wait. Choose who waits, and see what it costs.

{workers} simulated workers train one model to read handwritten digits. Four take about 1 second for a mini-batch, \
four about 2, six about 3, and the last two stall now and then. Each has the images of two digits only, so that a rule \
that leaves workers out hardly sees their digits. These rules are tried, each with several learning rates:
"""
NEXT = "Next, with your own model: paceline init, then paceline compare paceline.toml"


def open_demo(config: "Config") -> None:
    """Print who the workers are, and what each rule does about the late ones."""
    from paceline.callbacks.terminal import Column, console, print_table

    if not _has_data():
        return  # the run will say so, in one line
    terminal = console()
    terminal.print(OPENING.format(workers=config.fleet.workers), markup=False)
    columns = [Column("rule", left=True), Column("what it does", left=True, least=30)]
    print_table(terminal, columns, [(choice.short, choice.named.rule) for choice in config.strategies])
    terminal.print()


def _has_data() -> bool:
    try:
        return find_spec("sklearn") is not None
    except ValueError:  # hidden
        return False


def advice(comparison: "Comparison") -> str:
    """One sentence: what to do on this fleet."""
    best = comparison.entries[0]
    rule = comparison.plan.rules[best.strategy]
    if not math.isfinite(best.time) or not isinstance(rule, StrategyChoice):
        return ""
    rate = "" if best.lr is None else f" with the learning rate {best.lr:g}"
    return f"So, on this fleet, use {rule.short}{rate}: {rule.named.rule}."
