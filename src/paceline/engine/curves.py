"""A run in a notebook: a figure of its metrics, and a short page with a table."""

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from paceline import look
from paceline.core.errors import ConfigError
from paceline.core.fields import nearest
from paceline.storage.metrics import Row

USUAL = ("loss", "accuracy")


class Shown(Figure):
    """A figure that a notebook shows by itself, whether pyplot is set up or not."""

    def _repr_png_(self) -> bytes:
        return look.png(self, dpi=80)


def figure_of(
    history: Sequence[Row], metrics: Sequence[str] = (), strategy: Mapping[str, Any] | None = None, *,
    about: Mapping[str, Any],
) -> Figure:  # fmt: skip
    """One row of two panels for each metric: against time, and against updates.

    metrics   by default the loss and the accuracy, or, where an evaluation has neither, the first two that it has
    strategy  as data: its name is the title, and its colour that of the lines
    about     the first line of the trace: the clock, "virtual" or "real", and the number of workers
    """
    values = _series(history)
    for name in metrics:
        if name not in values:
            raise ConfigError(f"nothing to plot: no evaluation has a {name!r}: {nearest(name, [*values])}")
    chosen = [*metrics] or [name for name in USUAL if name in values] or [*values][:2]
    figure = Shown(figsize=(9, 0.6 + 2.4 * max(1, len(chosen))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(max(1, len(chosen)), 2, squeeze=False, sharey="row", sharex="col")
    for row, name in zip(axes, chosen, strict=False):
        for axis, abscissa in zip(row, ("seconds", "updates"), strict=True):
            _draw(axis, [(getattr(each, abscissa), value) for each, value in values[name]], look.colour(strategy or {}))
        row[0].set_ylabel(name)
        if name == "accuracy":
            row[0].yaxis.set_major_formatter(PercentFormatter(1.0))
    if not chosen:
        axes[0][0].text(0.5, 0.5, "no evaluation yet", ha="center", transform=axes[0][0].transAxes)
    if strategy:
        figure.suptitle(look.words(strategy, about.get("workers")), fontsize=11)
    axes[-1][0].set_xlabel("virtual seconds" if about.get("clock") == "virtual" else "seconds")
    axes[-1][1].set_xlabel("updates")
    axes[-1][1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def page_of(facts: Mapping[str, str], figure: Figure) -> str:
    """A table of names and values, and a picture, as HTML; nothing in it is loaded from elsewhere."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    picture = base64.b64encode(look.png(figure, dpi=80)).decode()
    image = f'<img alt="metrics of the run, against time and updates" src="data:image/png;base64,{picture}">'
    return f"<div><table>{rows}</table>{image}</div>"


def _series(history: Sequence[Row]) -> dict[str, list[tuple[Row, float]]]:
    """The finite values of each metric, and of what every run has, with the rows that have them."""
    evaluated = [(row, name, value) for row in history for name, value in row.metrics.items()]
    always = [(row, name, getattr(row, name)) for name in ("training_loss", "staleness") for row in history]
    found = dict[str, list[tuple[Row, float]]]()
    for row, name, value in (*evaluated, *(each for each in always if each[1] not in each[0].metrics)):
        if math.isfinite(value):
            found.setdefault(name, []).append((row, value))
    return found


def _draw(axis: Any, points: Sequence[tuple[float, float]], colour: str) -> None:
    axis.plot(*zip(*points, strict=True), color=colour, linewidth=1.6, marker="." if len(points) < 3 else None)
    look.tidy(axis)
