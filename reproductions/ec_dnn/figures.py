"""The figures of the reproduction of EC-DNN, drawn from the runs of its card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from paceline.files import write_atomically
from paceline.reports.figures import COLOURS, DASHES
from reproductions.ec_dnn.tables import NAMES, tables
from reproductions.pipeline.card import Card
from reproductions.pipeline.figures import blank, save, tidy

Row = Mapping[str, Any]
LOOKS = {method: {"color": COLOURS[n], "linestyle": DASHES[n]} for n, method in enumerate(NAMES)}
WORSE, BETTER = COLOURS[1], COLOURS[0]
CASES = {"local": "1: without local training", "diversity": "2: without diversity", None: "3: whole"}


def draw(card: Card, directory: Path) -> list[Path]:
    """Draw all that the card has the runs for, and write the tables."""
    runs = [row for row in card.runs if row["workers"] > 1]
    lenet = [row for row in runs if row["model"] == "lenet"]
    taus = card.settings["taus"]
    drawn = {
        "ec-dnn-gain.png": _gains(runs),
        "ec-dnn-curves.png": _curves(lenet, taus),
        "ec-dnn-tau-ablation.png": _tau_and_ablation(lenet, taus),
    }
    paths = []
    for name, figure in drawn.items():
        if figure is not None:
            paths.append(directory / name)
            save(figure, paths[-1])
    paths.append(directory / "ec-dnn-tables.md")
    write_atomically(paths[-1], tables(card))
    return paths


def _gains(rows: Sequence[Row]) -> Figure:
    """How much better the global model is than the local ones, at all communications (Figs. 1 and 2)."""
    figure = blank(10, 3.8)
    panels = figure.subplots(1, 2, sharex=True)
    titles = ("averages of parameters (MA-DNN)", "simple ensembles (E-DNN, EC-DNN)")
    found = [
        [
            100 * (fmean(point["errors"]) - point["error" if averaged else "simple_error"])
            for row in rows
            if (row["method"] == "ma") == averaged
            for point in row["curve"]
        ]
        for averaged in (True, False)
    ]
    lowest, highest = (edge(map(edge, found)) for edge in (min, max))
    edges = np.arange(np.floor(lowest), np.ceil(highest) + 1, 1.0)
    for axis, title, gains in zip(panels, titles, found, strict=True):
        counts, _ = np.histogram(gains, edges)
        colours = [WORSE if left < 0 else BETTER for left in edges[:-1]]
        axis.bar(edges[:-1], 100 * counts / len(gains), width=0.92, align="edge", color=colours)
        negative = 100 * fmean(gain < 0 for gain in gains)
        tidy(axis, f"{title}\n{len(gains)} communications, {negative:.0f} % below 0", "Diff_LG, points", "%")
    return figure


def _curves(rows: Sequence[Row], taus: Mapping[str, int]) -> Figure:
    """Test error of the global model against virtual time (Fig. 3): thin lines are seeds, thick ones their means."""
    workers = sorted({row["workers"] for row in rows})
    figure = blank(1 + 4.7 * len(workers), 4.2)
    panels = figure.subplots(1, len(workers), squeeze=False, sharey=True)[0]
    for axis, each in zip(panels, workers, strict=True):
        for method, name in NAMES.items():
            tau = {"ma": taus["averaging"], "e": None}.get(method, taus["compressing"])
            _lines(axis, _those(rows, method, each, tau), name, LOOKS[method])
        tidy(axis, f"LeNet, {each} workers", "virtual seconds", "" if axis is not panels[0] else "test error, %")
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def _those(rows: Sequence[Row], method: str, workers: int, tau: int | None, without: str | None = None) -> list[Row]:
    wanted = (method, workers, tau, without)
    return [row for row in rows if (row["method"], row["workers"], row["tau"], row["without"]) == wanted]


def _lines(axis: Any, rows: Sequence[Row], label: str, look: Mapping[str, Any]) -> None:
    if not rows:
        return
    errors = np.array([[100 * point["error"] for point in row["curve"]] for row in rows])
    seconds = np.array([[point["seconds"] for point in row["curve"]] for row in rows])
    for at, error in zip(seconds, errors, strict=True):
        axis.plot(at, error, linewidth=0.7, alpha=0.35, **look)
    axis.plot(seconds.mean(axis=0), errors.mean(axis=0), linewidth=1.8, marker=".", label=label, **look)


def _tau_and_ablation(rows: Sequence[Row], taus: Mapping[str, int]) -> Figure | None:
    """EC-DNN-S with 4 workers: other tau, of one seed (Fig. 5), and parts left out (Fig. 6)."""
    mine = [row for row in rows if row["method"] == "ec_s" and row["workers"] == min(r["workers"] for r in rows)]
    if not any(row["without"] for row in mine):
        return None
    figure = blank(10.4, 4.2)
    left, right = figure.subplots(1, 2, sharey=True)
    first = [row for row in rows if row["seed"] == 0 and row["workers"] == mine[0]["workers"]]
    for number, tau in enumerate(sorted({row["tau"] for row in mine})):
        look = {"color": COLOURS[number], "linestyle": DASHES[number]}
        _lines(left, _those(first, "ec_s", mine[0]["workers"], tau), f"τ = {tau}", look)
    _lines(left, _those(first, "e", mine[0]["workers"], None), "E-DNN", {"color": "0.4", "linestyle": "--"})
    tidy(left, "EC-DNN-S, 4 workers, seed 0", "virtual seconds", "test error, %")
    left.legend(frameon=False, fontsize=9)
    for number, (without, name) in enumerate(CASES.items()):
        look = {"color": COLOURS[number], "linestyle": DASHES[number]}
        _lines(right, _those(mine, "ec_s", mine[0]["workers"], taus["compressing"], without), name, look)
    tidy(right, f"EC-DNN-S, 4 workers, τ = {taus['compressing']}", "virtual seconds", "")
    right.legend(frameon=False, fontsize=9)
    return figure
