"""The figures of the reproduction of fine-pruning, drawn from the runs of its card."""

import io
from base64 import b64decode
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from paceline.look import SERIES, series, tidy
from paceline.reports.pruning import contact_sheet, trends
from reproductions.fine_pruning.long import LONG
from reproductions.fine_pruning.pictures import COLUMNS, NAMES
from reproductions.fine_pruning.plan import ARMS
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import seeds_in_words
from reproductions.pipeline.figures import Drawing, blank

Row = Mapping[str, Any]
MODELS = {"lenet": "LeNet", "vgg": "VGG-11, 1/8 width"}


def draw(card: Card) -> dict[str, Drawing]:
    """Accuracy of the five ways, the search, and who was pruned; at length accuracy alone."""
    if card.settings["plan"] == LONG.name:
        return {"fine-pruning-full.png": _accuracy([{**row, "model": "lenet"} for row in card.runs])}
    of_kind: dict[str, list[Row]] = {}
    for row in card.runs:
        of_kind.setdefault(row["kind"], []).append(row)
    pictures = of_kind["pictures"][0]
    return {
        "fine-pruning-accuracy.png": _accuracy(of_kind["training"]),
        "fine-pruning-search.png": _search(of_kind["search"]),
        "fine-pruning-samples.png": _samples(pictures),
        "fine-pruning-most-pruned.png": _most_pruned(pictures),
    }


def _accuracy(rows: Sequence[Row]) -> Figure | None:
    """The curves of LeNet, means over the seeds, and how each seed ended; of other schedules the ends only."""
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    if not arms:
        return None
    figure = blank(11, 4.4)
    curves, points = figure.subplots(1, 2)
    plain = list(dict.fromkeys(arm.partition(".")[0] for arm in arms))  # "pruned.late" has the colour of "pruned"
    counts = set()
    for arm in plain:
        mine = [row for row in rows if row["model"] == "lenet" and row["arm"] == arm]
        counts.add(len(mine))
        found = np.array([row["curve"] for row in mine])
        seen, accuracies, style = found[:, :, 0].mean(axis=0), 100 * found[:, :, 2], series(ARMS.index(arm))
        curves.plot(seen, accuracies.mean(axis=0), label=arm, marker=".", **style)
        low, high = accuracies.min(axis=0), accuracies.max(axis=0)
        curves.fill_between(seen, low, high, color=style["color"], alpha=0.12, linewidth=0)
    curves.legend(fontsize=8, frameon=False)
    told = f"LeNet: means and ranges of {seeds_in_words(max(counts))}" if max(counts) > 1 else "LeNet, one seed"
    tidy(curves, told, "samples seen / size of the data set", "test accuracy, %")
    models = list(dict.fromkeys(row["model"] for row in rows))
    for place, model in enumerate(models):
        for number, arm in enumerate(arms):
            values = [100 * row["accuracy"] for row in rows if row["model"] == model and row["arm"] == arm]
            at = number + place * (len(arms) + 1)
            colour = SERIES[ARMS.index(arm.partition(".")[0])]
            points.plot([at] * len(values), values, "o", color=colour, markersize=5)
            points.plot([at - 0.3, at + 0.3], [fmean(values)] * 2, color=colour, linewidth=2)
    places = [number + place * (len(arms) + 1) for place in range(len(models)) for number in range(len(arms))]
    points.set_xticks(places, arms * len(models), rotation=45, ha="right", fontsize=8)
    title = "Best three epochs of each seed: " + ", then ".join(MODELS[model] for model in models)
    tidy(points, title, "", "test accuracy, %")
    return figure


def _search(rows: Sequence[Row]) -> Figure:
    names = sorted({row["variant"] for row in rows}, key=lambda name: fmean(_values(rows, name)))
    figure = blank(8, 4)
    axis = figure.subplots()
    for place, name in enumerate(names):
        values = _values(rows, name)
        axis.plot(values, [place] * len(values), "o", color=SERIES[0], markersize=5)
        axis.plot([fmean(values)], [place], "|", color=SERIES[1], markersize=16, markeredgewidth=2)
    axis.set_yticks(range(len(names)), names)
    tidy(axis, "The search: validation accuracy of each seed, and their mean", "accuracy, %", "")
    return figure


def _values(rows: Sequence[Row], name: str) -> list[float]:
    return [100 * row["accuracy"] for row in rows if row["variant"] == name]


def _samples(row: Row) -> Figure:
    figure = blank(11, 7)
    often, classes, first, second = figure.subplots(2, 2).flatten()
    often.bar(range(len(row["samples_by_times"])), row["samples_by_times"], color=SERIES[0])
    tidy(often, f"Samples by times left out, of {row['possible']} possible", "times, all seeds together", "samples")
    classes.bar(range(len(NAMES)), row["times_by_class"], color=SERIES[1])
    classes.set_xticks(range(len(NAMES)), NAMES, rotation=45, ha="right")
    tidy(classes, "Times left out, by class", "", "mean times")
    for run, axis in enumerate((first, second)):
        losses = {
            f"sample {each['sample']}": _known(each["losses"][min(run, len(each["losses"]) - 1)])
            for each in row["trends"]
        }
        trends(axis, losses, f"Losses of the same samples in run {run + 1}; gaps where left out")
    return figure


def _known(losses: Sequence[float | None]) -> tuple[list[float], list[float]]:
    return [float(epoch) for epoch in range(1, len(losses) + 1)], [
        float("nan") if loss is None else loss for loss in losses
    ]


def _most_pruned(row: Row) -> Figure:
    from PIL import Image

    mosaic = np.asarray(Image.open(io.BytesIO(b64decode(row["mosaic"]))))
    side = mosaic.shape[1] // COLUMNS
    tiles = mosaic.reshape(-1, side, COLUMNS, side, 3).transpose(0, 2, 1, 3, 4).reshape(-1, side, side, 3)
    captions = [f"{each['label']}, {each['times']}×" for each in row["most_pruned"]]
    return contact_sheet(tiles, captions, "The samples that were left out most often, with their labels")
