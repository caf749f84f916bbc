"""Curves as a PNG: loss and accuracy, against time and against updates."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, PercentFormatter
from numpy.typing import NDArray

from paceline.files import write_atomically
from paceline.storage.metrics import Row

# Okabe and Ito's colours, which people with any colour vision can tell apart; the dashes repeat the distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
POINTS = 300


@dataclass(frozen=True)
class Curve:
    """The histories of one strategy, one for each seed."""

    label: str
    histories: Sequence[Sequence[Row]]


def draw_curves(curves: Sequence[Curve], path: Path, *, target: float | None = None, title: str = "") -> None:
    """Write the figure, whole or not at all. Lines are medians over the seeds, bands the lowest to the highest."""
    figure = Figure(figsize=(12, 8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    panels: Sequence[tuple[int, int, Callable[[Row], float], Callable[[Row], float]]] = (
        (0, 0, lambda row: row.seconds, lambda row: row.loss),
        (0, 1, lambda row: row.updates, lambda row: row.loss),
        (1, 0, lambda row: row.seconds, lambda row: row.accuracy),
        (1, 1, lambda row: row.updates, lambda row: row.accuracy),
    )
    for down, across, abscissa, ordinate in panels:
        _draw(axes[down][across], curves, abscissa, ordinate, logarithmic=bool(across))
    _label(axes, target)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(curves)), frameon=False, fontsize=10)
    if title:
        figure.suptitle(title, fontsize=13)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "Paceline"})
    write_atomically(path, buffer.getvalue())


def _draw(
    axis: Any,
    curves: Sequence[Curve],
    abscissa: Callable[[Row], float],
    ordinate: Callable[[Row], float],
    *,
    logarithmic: bool,
) -> None:
    for number, curve in enumerate(curves):
        grid, values = _on_a_grid(curve.histories, abscissa, ordinate, logarithmic)
        if not len(grid):
            continue
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        axis.plot(grid, np.median(values, axis=0), color=colour, linestyle=dashes, linewidth=1.9, label=curve.label)
        if len(values) > 1:
            axis.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.08, linewidth=0)
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


def _label(axes: Any, target: float | None) -> None:
    for across, name in ((0, "virtual seconds"), (1, "updates (logarithmic)")):
        axes[0][across].set_title(f"against {'time' if across == 0 else 'updates'}", fontsize=11)
        axes[1][across].set_xlabel(name)
    for row, name in ((0, "test loss (logarithmic)"), (1, "test accuracy")):
        axes[row][0].set_ylabel(name)
    for axis in axes.flat:
        axis.grid(True, color="0.9", linewidth=0.7)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
    for axis in axes[0]:
        axis.set_yscale("log", subs=(2, 3, 5))
        axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axis.yaxis.set_minor_formatter(FormatStrFormatter("%g"))
    for axis in axes[1]:
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_ylim(0 if target is None else max(0.0, target - 0.5), 1)
        if target is not None:
            axis.axhline(target, color="0.35", linewidth=0.9, linestyle=(0, (2, 2)))
            axis.annotate(
                f"target {target:.1%}", (0.005, target), xycoords=("axes fraction", "data"), xytext=(2, 3),
                textcoords="offset points", fontsize=9, color="0.35",
            )  # fmt: skip
