"""A comparison as curves, and as a page."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.comparison.results import Comparison, Entry
from paceline.comparison.tables import comparison_rows, non_finite_line
from paceline.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(comparison: Comparison, path: Path | None) -> "Figure":
    """The learning curves of each strategy with its best learning rate."""
    from paceline.reports.figures import Curve, draw_curves

    plan = comparison.plan
    curves = [
        Curve(_name(comparison, entry), plan.rules[entry.strategy], [each.history for each in entry.outcomes])
        for entry in comparison.entries
    ]
    return draw_curves(curves, path, metrics=_drawn(comparison), target=plan.target, title=plan.title)


def _drawn(comparison: Comparison) -> list[str]:
    """The metrics to draw: the loss, the accuracy if it is known, and that of the target."""
    target, entries = comparison.plan.target, comparison.entries
    wanted = ["loss", "accuracy", *([target.metric] if target is not None else comparison.metrics[:1])]
    known = [name for name in dict.fromkeys(wanted) if any(math.isfinite(each.final(name)) for each in entries)]
    return known or ["loss"]


def _name(comparison: Comparison, entry: Entry) -> str:
    rate = "" if entry.lr is None else f" (learning rate {entry.lr:g})"
    return comparison.plan.words[entry.strategy] + rate


def write_report(comparison: Comparison, path: Path) -> None:
    """A page: the verdict and the table on top, below it the run of the first seed of each strategy."""
    from paceline.reports.page import describe, page
    from paceline.reports.sections import Overview

    plan = comparison.plan
    columns, rows = comparison_rows(comparison)
    shown = [place for place in range(len(columns)) if any(str(row[place]) not in ("", "-") for row in rows)]
    notes = [
        *(non_finite_line(each.label, each.non_finite) for each in comparison.entries if each.non_finite),
        *(f"{each.label}, seed {o.job.seed}: {o.problem}" for each in comparison.entries for o in each.diverged),
    ]
    rates = f" Learning rates: {', '.join(f'{lr:g}' for lr in plan.rates)}." if plan.rates else ""
    below = f"The rest of the page shows the runs with seed {plan.seeds[0]}." if len(plan.seeds) > 1 else ""
    overview = Overview(
        title=plan.title,
        sentences=comparison.verdict.splitlines(),
        headings=[" ".join(columns[place].heading.split()) for place in shown],
        rows=[[str(row[place]) for place in shown] for row in rows],
        notes=[*notes, f"{comparison.rule}{rates} {below}".strip()],
    )
    runs = []
    for entry in comparison.entries:
        first = next((each for each in entry.outcomes if each.record is not None), None)
        if first is not None:
            name = _name(comparison, entry)
            runs.append(describe(name, first.saved(name, plan.target), rule=plan.rules[entry.strategy]))
    write_atomically(path, page(runs, overview))
