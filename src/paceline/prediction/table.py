"""Predictions as a table for people: each number above where it comes from."""

import math
from collections.abc import Mapping

from rich.table import Table

from paceline.prediction.predict import TAIL, Descent, Goal, Prediction
from paceline.prediction.sources import Predictions
from paceline.theory.estimate import Estimate

SOURCES = (
    "exact: a closed form or a finite sum. quadrature: an integral. simulation: drawn, without a model. "
    "measured: read off the trace."
)
STABLE = (
    "Limits: stable in mean square, near an optimum, for ages drawn independently. The curvature is that of the "
    "initial weights; it changes on the way. Rates are learning rates."
)


def prediction_table(predictions: Mapping[str, Prediction], descent: Descent, goal: Goal) -> Table:
    """One row a strategy."""
    table = Table(pad_edge=False, box=None, header_style="bold", padding=(0, 2, 1, 0))
    table.add_column("strategy", overflow="fold", max_width=30)
    momentum = f"with {'Nesterov ' if descent.nesterov else ''}momentum {descent.momentum:g}"
    for heading in (
        "updates\na second",
        f"staleness\nmean / {TAIL:.0%}",
        "wasted\nwork",
        "limit of rate x\ncurvature",
        f"limit {momentum.replace(' momentum', chr(10) + 'momentum')}",
        "largest\nrate",
        f"recommended\n({goal.margin:.0%} of it)",
        f"time to\n{goal.epsilon:g}",
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
        _cell(prediction.largest_learning_rate),
        _cell(prediction.recommended_learning_rate),
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


def title(found: Predictions) -> str:
    """What the numbers are about."""
    about = f"{found.source.name}: {found.source.fleet.workers} workers"
    if found.model is not None and found.curvature == found.model.curvature.value:
        curvature = found.model.curvature
        return (
            f"{about}; largest curvature of the model's loss {curvature.value:.4g} (+- {curvature.error:.1g}), from "
            f"{curvature.products} products on {curvature.samples:,} samples"
        )
    if found.curvature is not None:
        return f"{about}; largest curvature {found.curvature:.4g}, as given"
    return f"{about}; no curvature is known, so learning rates are given times curvature only"
