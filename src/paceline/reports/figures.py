"""Curves: loss, accuracy or any other metric, against time and against updates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from paceline import look
from paceline.engine.limits import Target, metric_of
from paceline.storage.metrics import Row

POINTS = 300
ABSCISSAS: Sequence[Callable[[Row], float]] = (lambda row: row.seconds, lambda row: row.updates)


@dataclass(frozen=True)
class Curve:
    """The histories of one strategy, one for each seed; ``rule`` decides on its colour."""

    label: str
    rule: look.Rule
    histories: Sequence[Sequence[Row]]


def draw_curves(
    curves: Sequence[Curve],
    path: Path | None = None,
    *,
    metrics: Sequence[str] = ("loss", "accuracy"),
    target: Target | None = None,
    title: str = "",
) -> Figure:
    """Draw metrics against time and against updates; with a ``path``, write them as a PNG, whole or not at all.

    Lines are medians over the seeds, bands the lowest to the highest.
    """
    figure = Figure(figsize=(12, 4 * len(metrics)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(metrics), 2, squeeze=False)
    for down, metric in enumerate(metrics):
        for across, abscissa in enumerate(ABSCISSAS):
            _draw(axes[down][across], curves, abscissa, partial(metric_of, name=metric), logarithmic=bool(across))
        _label(axes[down], metric, target if target is not None and target.metric == metric else None)
    for across, name in enumerate(("virtual seconds", "updates (logarithmic)")):
        axes[0][across].set_title(f"against {'time' if across == 0 else 'updates'}", fontsize=11)
        axes[-1][across].set_xlabel(name)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(curves)), frameon=False, fontsize=10)
    if title:
        figure.suptitle(title, fontsize=13)
    if path is not None:
        look.write(figure, path)
    return figure


def _draw(
    axis: Any,
    curves: Sequence[Curve],
    abscissa: Callable[[Row], float],
    ordinate: Callable[[Row], float],
    *,
    logarithmic: bool,
) -> None:
    for curve, style in zip(curves, look.lines([each.rule for each in curves]), strict=True):
        grid, values = _on_a_grid(curve.histories, abscissa, ordinate, logarithmic)
        if not len(grid):
            continue
        axis.plot(grid, np.median(values, axis=0), linewidth=1.9, label=curve.label, **style)
        if len(values) > 1:
            axis.fill_between(
                grid, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.08, linewidth=0
            )
    if logarithmic:
        axis.set_xscale("log")


def _on_a_grid(
    histories: Sequence[Sequence[Row]],
    abscissa: Callable[[Row], float],
    ordinate: Callable[[Row], float],
    logarithmic: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every seed's curve at the same places: what was last seen there."""
    least = 1.0 if logarithmic else 0.0
    ends = [abscissa(rows[-1]) for rows in histories]
    most = (min if logarithmic else max)(ends, default=0.0)  # time goes on for a run that is stuck; its updates do not
    if most <= least:
        return np.empty(0), np.empty((0, 0))
    grid = np.geomspace(least, most, POINTS) if logarithmic else np.linspace(least, most, POINTS)
    curves = []
    for rows in histories:
        places = np.array([abscissa(row) for row in rows])
        seen = np.clip(np.searchsorted(places, grid * (1 + 1e-12), side="right") - 1, 0, None)
        curves.append(np.array([ordinate(row) for row in rows])[seen])
    return grid, np.array(curves)


def _label(axes: Any, metric: str, target: Target | None) -> None:
    """Label the two panels of a metric."""
    axes[0].set_ylabel(f"test {metric}" + (" (logarithmic)" if metric == "loss" else ""))
    for axis in axes:
        axis.margins(x=0.01)
        if metric == "loss":
            axis.set_yscale("log")
        if metric == "accuracy":
            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axis.set_ylim(0 if target is None else max(0.0, target.value - 0.5), 1)
        if target is not None:
            axis.axhline(target.value, color=look.DIM, linewidth=0.9, linestyle=(0, (2, 2)))
            axis.annotate(
                f"target {target.short}", (0.005, target.value), xycoords=("axes fraction", "data"), xytext=(2, 3),
                textcoords="offset points", fontsize=9, color=look.DIM,
            )  # fmt: skip
        look.tidy(axis)
