"""A comparison as a table, as curves, and as a page."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from paceline.callbacks.terminal import Cell, Column, console, print_table
from paceline.comparison.results import WORKER_SECONDS, Comparison, Entry
from paceline.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from paceline.theory.time_bound import TimeBound


def comparison_rows(comparison: Comparison) -> tuple[list[Column], list[list[Cell]]]:
    """One row per strategy, sorted by the time to the target: medians over the seeds (and ranges)."""
    target, others = comparison.plan.target, comparison.metrics
    reach = "time to target" if target is None else f"time to {target.short}"
    columns = [
        Column("strategy", least=34, left=True),
        Column("lr"),
        Column(reach),
        Column("speed-up", rank=1),
        Column("times the\nbound", rank=9),
        Column("updates", rank=5),
        Column("samples", rank=6),
        Column("staleness\nmean / max", rank=4),
        Column("wasted\nwork", rank=7),
        Column("final\nloss", rank=3 if target is not None else 0),
        Column("final\naccuracy", rank=2),
        *(Column(f"final\n{name}", rank=2) for name in others),
        Column("price", rank=2),
        Column("worker-seconds: training\n/ relabelling / messages", rank=8),
    ]
    apart = any(each.measures.hands_in_models for entry in comparison.entries for each in entry.outcomes)
    bound = comparison.bound
    rows = [
        [*_cells(entry, comparison.reference, others, bound), worker_seconds(entry) if apart else "-"]
        for entry in comparison.entries
    ]
    return columns, rows


def as_text(comparison: Comparison) -> str:
    """The table as wide as the terminal, and what its columns are about."""
    text = StringIO()
    terminal = Console(file=text, width=console().width, highlight=False)
    print_table(terminal, *comparison_rows(comparison), title=comparison.plan.title)
    return text.getvalue()


def as_html(comparison: Comparison) -> str:
    """The table and the verdict for a notebook."""
    columns, rows = comparison_rows(comparison)
    shown = [place for place in range(len(columns)) if any(str(row[place]) not in ("", "-") for row in rows)]
    heads = "".join(f"<th>{escape(columns[place].heading)}</th>" for place in shown)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(row[place]))}</td>' for place in shown)}</tr>" for row in rows)
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in comparison.verdict.splitlines())
    return f"<p>{escape(comparison.plan.title)}</p><table><tr>{heads}</tr>{body}</table>{said}"


def worker_seconds(entry: Entry) -> str:
    """The workers' time in seconds: training / relabelling / messages, without waiting."""
    seconds = [entry.middle(of) for of in WORKER_SECONDS.values()]
    return " / ".join(f"{each:,.0f}" for each in seconds)


def _cells(entry: Entry, synchronous: Entry | None, others: Sequence[str], bound: "TimeBound | None") -> list[Cell]:
    middle = entry.middle
    most = max(each.measures.max_staleness for each in entry.outcomes)
    accuracy = entry.accuracy
    end: Cell = f"{entry.loss:.3f}" if math.isfinite(entry.loss) else "-"
    if len(entry.diverged) == len(entry.outcomes):
        end = Text("diverged", "red")
    elif entry.diverged:
        end = Text.assemble(f"{entry.loss:.3f}\n", (f"{len(entry.diverged)} diverged", "red"))
    return [
        entry.label,
        "as set" if entry.lr is None else f"{entry.lr:g}",
        _reached(entry),
        speed_up(entry, synchronous),
        "-" if bound is None or not math.isfinite(entry.time) else f"{entry.time / bound.seconds:.1f}",
        f"{middle(lambda each: each.measures.updates):,.0f}",
        f"{middle(lambda each: each.history[-1].samples):,.0f}",
        f"{middle(lambda each: each.measures.mean_staleness):.1f} / {most}",
        f"{middle(lambda each: each.measures.wasted_share):.0%}",
        end,
        f"{accuracy:.1%}" if math.isfinite(accuracy) else "-",
        *(f"{value:.4g}" if math.isfinite(value := entry.final(name)) else "-" for name in others),
        price(entry),
    ]


def price(entry: Entry) -> str:
    """What the workers' time costs, the median over the seeds; "-" where no prices are given."""
    found = entry.price
    return "-" if found is None else f"{found:,.4g}"


def _reached(entry: Entry) -> str:
    if entry.target is None:
        return "-"
    reached = [time for time in entry.times if math.isfinite(time)]
    if not reached:
        return "not reached"
    missed = len(entry.times) - len(reached)
    middle = f"{entry.time:.1f}" if math.isfinite(entry.time) else "not reached"
    spread = f"{min(reached):.1f}-{max(reached):.1f}" if len(reached) > 1 else f"{reached[0]:.1f}"
    return f"{middle} ({spread}{f', {missed} missed' if missed else ''})" if len(entry.times) > 1 else middle


def speed_up(entry: Entry, reference: Entry | None) -> str:
    """How many times faster an entry reaches the target than the reference."""
    if reference is None or not math.isfinite(entry.time) or not math.isfinite(reference.time):
        return "-"
    return f"{reference.time / entry.time:.2f}x"


def non_finite_line(label: str, counts: Mapping[int, int]) -> str:
    """One line about contributions that were left out because they were not finite; ``counts``: how many per worker."""
    listed = ", ".join(f"worker {worker} ({count})" for worker, count in counts.items())
    return f"{label}: {sum(counts.values())} contributions were not finite and left out, from {listed}"


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
