"""What runs pruned of their data: pictures, and the part of a report page that has them inside the file."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from paceline import look
from paceline.pruning.record import FOLLOWED, PruningRecord, SavedPruning

COLUMNS = 10  # of a contact sheet
MOST_BARS = 100  # in one picture; of more values, several are one bar


def pruning_section(runs: Mapping[int, tuple[str, SavedPruning]]) -> str:
    """A section with what each run pruned: its number on the page, its name, and what it left behind."""
    parts = [
        f'<details open data-run="{number}"><summary><span class="swatch run{number}"></span>'
        f"{escape(name)}</summary>{_pictures(name, saved)}</details>"
        for number, (name, saved) in runs.items()
        if saved.record.passes
    ]
    note = (
        "<p class=note>Left out counts the epochs of its worker that a sample was not trained on. Samples that are "
        "left out most often are worth a look: mislabelled, odd, or of a class that is hard. Losses are those of the "
        f"training pass, for {FOLLOWED} samples chosen beforehand.</p>"
    )
    return f"<section id=pruning><h2>Pruned samples</h2>{''.join(parts)}{note}</section>"


def _pictures(name: str, saved: SavedPruning) -> str:
    record = saved.record
    figure = new_figure(10, 6)
    axes = figure.subplots(2, 2).flatten()
    pass_sizes(axes[0], record)
    how_often(axes[1], record.times_pruned, 1)
    if saved.targets is not None and saved.targets.size:
        by_class(axes[2], record.times_pruned[: len(saved.targets)], saved.targets[: len(record.times_pruned)])
    else:
        axes[2].axis("off")
    trends(axes[3], telling_trends(record), "Losses of single samples")
    drawn = [(look.png(figure), f"{record.pruned_share:.1%} of the samples were left out")]
    pictures = as_pictures(saved.inputs)
    if pictures is not None:
        captions = [_caption(saved, int(sample)) for sample in saved.shown]
        sheet = contact_sheet(pictures, captions, "The samples that were left out most often")
        drawn.append((look.png(sheet), "The samples that were left out most often: number, class, times"))
    return "".join(
        f'<figure><img alt="{escape(name)}: {escape(text)}" style="width:100%;background:#fff" '
        f'src="data:image/png;base64,{b64encode(image).decode()}"><figcaption>{escape(text)}</figcaption></figure>'
        for image, text in drawn
    )


def _caption(saved: SavedPruning, sample: int) -> str:
    known = saved.targets is not None and sample < len(saved.targets)
    label = f" ({saved.targets[sample]})" if known and saved.targets is not None else ""
    return f"{sample}{label} {int(saved.record.times_pruned[sample])}×"


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def how_often(axis: Any, times_pruned: NDArray[Any], most: int) -> None:
    """How many samples were left out how often."""
    counts = np.bincount(times_pruned, minlength=most + 1)
    width = _values_a_bar(len(counts))
    _bars(axis, np.arange(len(counts)), _summed(counts, width), width, look.SERIES[0])
    look.tidy(axis, "Samples by the number of times they were left out", "times left out", "samples")


def by_class(axis: Any, times_pruned: NDArray[Any], targets: NDArray[Any], names: Sequence[str] | None = None) -> None:
    """The mean number of times that a sample of each class was left out."""
    classes, place = np.unique(targets, return_inverse=True)
    width = _values_a_bar(len(classes))
    times, samples = (_summed(np.bincount(place, each), width) for each in (times_pruned, np.ones(len(place))))
    _bars(axis, np.arange(len(classes)), times / samples, width, look.SERIES[1])
    axis.axhline(float(times_pruned.mean()), color="0.4", linewidth=1, linestyle="--")
    if width == 1:
        turned = 45 if names is not None else 0
        labels = [str(each) for each in classes] if names is None else list(names)
        axis.set_xticks(range(len(classes)), labels, rotation=turned, ha="right" if turned else "center")
    look.tidy(axis, "Times left out, by class (dashed: all)", "class", "mean times left out")


def pass_sizes(axis: Any, record: PruningRecord) -> None:
    """The share of the samples that each epoch kept."""
    rows = np.array(record.passes, dtype=np.float64).reshape(-1, 4)
    epochs, place = np.unique(rows[:, 1], return_inverse=True)
    width = _values_a_bar(len(epochs))
    held, kept = (_summed(np.bincount(place, rows[:, column]), width) for column in (2, 3))
    _bars(axis, epochs, kept / np.maximum(held, 1), width, look.SERIES[0])
    axis.set_ylim(0, 1.05)
    look.tidy(axis, "Share of the samples that is kept", "epoch of a worker", "share")


def _values_a_bar(values: int) -> int:
    return max(1, -(-values // MOST_BARS))


def _summed(values: NDArray[Any], width: int) -> NDArray[Any]:
    """The sums of so many values each that follow each other."""
    return np.add.reduceat(values, np.arange(0, len(values), width)) if len(values) else values


def _bars(axis: Any, places: NDArray[Any], heights: NDArray[Any], width: int, colour: str) -> None:
    """A bar in the middle of each ``width`` places."""
    begins = places[::width]
    axis.bar(begins + (width - 1) / 2, heights, color=colour, width=0.8 * width)


def trends(axis: Any, losses: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str) -> None:
    """Losses of single samples against epochs, by their names."""
    for number, (name, (epochs, values)) in enumerate(losses.items()):
        axis.plot(epochs, values, label=name, marker=".", markersize=4, linewidth=1.2, **look.series(number))
    if losses:
        axis.legend(fontsize=8, frameon=False)
    look.tidy(axis, title, "epoch", "loss")


def contact_sheet(pictures: NDArray[Any], captions: Sequence[str], title: str) -> Figure:
    """Small pictures in rows, each with a caption."""
    rows = -(-len(pictures) // COLUMNS)
    figure = new_figure(10, 1.25 * rows + 0.5)
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axis in grid:
        axis.axis("off")
    for axis, picture, caption in zip(grid, pictures, captions, strict=False):
        axis.imshow(picture, cmap="gray" if picture.ndim == 2 else None, interpolation="nearest")
        axis.set_title(caption, fontsize=7, pad=2)
    return figure


def as_pictures(inputs: NDArray[Any]) -> NDArray[Any] | None:
    """Inputs as pictures with values from 0 to 1, if they have the shape of pictures."""
    if inputs.ndim == 4 and inputs.shape[1] in (1, 3):
        inputs = inputs[:, 0] if inputs.shape[1] == 1 else inputs.transpose(0, 2, 3, 1)
    if inputs.ndim < 3 or not inputs.size or (inputs.ndim == 4 and inputs.shape[3] != 3) or inputs.ndim > 4:
        return None
    low, high = float(inputs.min()), float(inputs.max())
    if not high - low > 0:
        return np.zeros_like(inputs)
    with np.errstate(invalid="ignore", over="ignore"):  # of what is not finite
        return np.nan_to_num((inputs - low) / (high - low), posinf=1.0, neginf=0.0)


def telling_trends(record: PruningRecord, most: int = 4) -> dict[str, tuple[list[float], list[float]]]:
    """Losses of followed samples that differ most: the one that rose most, fell most, and was left out most often."""
    by_sample: dict[int, list[tuple[int, float]]] = {}
    for sample, epoch, loss in record.trends:
        by_sample.setdefault(sample, []).append((epoch, loss))
    followed = [sample for sample, rows in by_sample.items() if len(rows) > 1]
    if not followed:
        return {}

    def change(sample: int) -> float:
        return by_sample[sample][-1][1] - by_sample[sample][0][1]

    times = {sample: int(record.times_pruned[sample]) for sample in followed}
    wanted = [max(followed, key=change), min(followed, key=change), max(followed, key=lambda each: times[each])]
    wanted += sorted(followed, key=lambda each: abs(change(each)))
    chosen = list(dict.fromkeys(wanted))[:most]
    return {
        f"sample {each}, left out {times[each]} times": (
            [float(epoch) for epoch, _ in by_sample[each]],
            [loss for _, loss in by_sample[each]],
        )
        for each in chosen
    }
