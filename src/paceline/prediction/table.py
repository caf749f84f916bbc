"""Predictions as a table for people: each number above where it comes from."""

import math
from collections.abc import Mapping

from rich.table import Table

from paceline.prediction.answer import TAIL, Prediction, Wishes
from paceline.prediction.answers import Answers
from paceline.prediction.descent import Descent
from paceline.theory.estimate import Estimate

SOURCES = (
    "exact: a closed form or a finite sum. quadrature: an integral. simulation: drawn, without a model. "
    "measured: read off the trace."
)
STABLE = (
    "Limits: stable in mean square, near an optimum, for ages drawn independently. The curvature is that of the "
    "initial weights; it changes on the way."
)


def prediction_table(predictions: Mapping[str, Prediction], descent: Descent, wishes: Wishes) -> Table:
    """One row a strategy."""
    table = Table(pad_edge=False, box=None, header_style="bold", padding=(0, 2, 1, 0))
    table.add_column("strategy", overflow="fold", max_width=30)
    momentum = f"with {'Nesterov ' if descent.nesterov else ''}momentum {descent.momentum:g}"
    for heading in (
        "updates\na second",
        f"staleness\nmean / {TAIL:.0%}",
        "wasted\nwork",
        "limit of step x\ncurvature",
        f"limit {momentum.replace(' momentum', chr(10) + 'momentum')}",
        "largest\nstep",
        f"recommended\n({wishes.margin:.0%} of it)",
        f"time to\n{wishes.epsilon:g}",
    ):
        table.add_column(heading, justify="right")
    for label, prediction in predictions.items():
        table.add_row(label, *_cells(prediction))
    return table


def _cells(prediction: Prediction) -> list[str]:
    found = prediction.runtime
    staleness = f"{found.mean_staleness.value:.2f} / {found.staleness.quantile(TAIL)}"
    waste = found.wasted_share
    return [
        _cell(found.updates_per_second),
        f"{staleness}\n{_under(f'{found.mean_staleness.source} / {found.staleness.source}')}",
        f"{waste.value:.0%}\n{_under(waste.source)}",
        _cell(prediction.limit),
        _cell(prediction.limit_as_optimized),
        _cell(prediction.largest_step),
        _cell(prediction.recommended),
        _cell(prediction.seconds_to_epsilon, unit=" s"),
    ]


def _cell(estimate: Estimate | None, unit: str = "") -> str:
    if estimate is None or not math.isfinite(estimate.value):
        return "-"
    value = estimate.value
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{text}{unit}\n{_under(estimate.source)}"


def _under(source: str) -> str:
    first, _, second = source.partition(" / ")
    return f"[dim]{first if first == second or not second else source}[/]"


def title(answers: Answers) -> str:
    """What the numbers are about."""
    inquiry, looked = answers.inquiry, answers.looked
    told = f"{inquiry.source}: {inquiry.fleet.workers} workers"
    if looked is not None and answers.curvature == looked.curvature.value:
        found = looked.curvature
        return (
            f"{told}; largest curvature of the model's loss {found.value:.4g} (+- {found.error:.1g}), from "
            f"{found.products} products on {found.samples:,} samples"
        )
    if answers.curvature is not None:
        return f"{told}; largest curvature {answers.curvature:.4g}, as given"
    return f"{told}; no curvature is known, so steps are told times curvature only"
