"""Predictions as a table for people: each number above where it comes from."""

import math
from collections.abc import Mapping

from rich.text import Text

from paceline.callbacks.terminal import Cell, Column
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


def prediction_rows(
    predictions: Mapping[str, Prediction], descent: Descent, goal: Goal
) -> tuple[list[Column], list[list[Cell]]]:
    """One row a strategy."""
    momentum = f"with {'Nesterov ' if descent.nesterov else ''}momentum {descent.momentum:g}"
    known = any(each.largest_learning_rate is not None for each in predictions.values())
    columns = [
        Column("strategy", least=30, left=True),
        Column("updates\na second"),
        Column(f"staleness\nmean / {TAIL:.0%}"),
        Column("wasted\nwork", rank=2 if known else 1),
        Column("limit of rate x\ncurvature", rank=4),
        Column(f"limit {momentum.replace(' momentum', chr(10) + 'momentum')}", rank=3 if known else 0),
        Column("largest\nrate", rank=1),
        Column(f"recommended\n({goal.margin:.0%} of it)"),
        Column(f"time to\n{goal.epsilon:g}", rank=2),
    ]
    return columns, [[label, *_cells(prediction)] for label, prediction in predictions.items()]


def _cells(prediction: Prediction) -> list[Cell]:
    found = prediction.runtime
    staleness = f"{found.mean_staleness.value:.2f} / {found.staleness.quantile(TAIL)}"
    sources = dict.fromkeys((found.mean_staleness.source, found.staleness.source))
    return [
        _cell(found.updates_per_second),
        _above(staleness, " /\n".join(sources)),
        _above(f"{found.wasted_share.value:.0%}", found.wasted_share.source),
        _cell(prediction.limit),
        _cell(prediction.limit_as_optimized),
        _cell(prediction.largest_learning_rate),
        _cell(prediction.recommended_learning_rate),
        _cell(prediction.seconds_to_epsilon, unit=" s"),
    ]


def _cell(estimate: Estimate | None, unit: str = "") -> Cell:
    if estimate is None or not math.isfinite(estimate.value):
        return "-"
    value = estimate.value
    return _above((f"{value:,.0f}" if value >= 1000 else f"{value:.3g}") + unit, estimate.source)


def _above(value: str, source: str) -> Text:
    return Text.assemble(f"{value}\n", (source, "dim"))


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
