"""The part of a report page on runs that pruned their data: pictures, inside the file."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from paceline.pruning.record import FOLLOWED, SavedPruning, read_pruning

if TYPE_CHECKING:
    from paceline.reports.page import Described


def pruning_section(runs: Sequence["Described"]) -> str:
    """A section with what each run pruned; nothing if none did."""
    parts = []
    for number, run in enumerate(runs):
        saved = read_pruning(run.saved.path)
        if saved is not None and saved.record.passes:
            parts.append(
                f'<details open data-run="{number}"><summary><span class="swatch run{number % 7}"></span>'
                f"{escape(run.name)}</summary>{_pictures(run.name, saved)}</details>"
            )
    if not parts:
        return ""
    note = (
        "<p class=note>Left out counts the epochs of its worker that a sample was not trained on. Samples that are "
        "left out most often are worth a look: mislabelled, odd, or of a class that is hard. Losses are those of the "
        f"training pass, for {FOLLOWED} samples chosen beforehand.</p>"
    )
    return f"<section id=pruning><h2>Pruned samples</h2>{''.join(parts)}{note}</section>"


def _pictures(name: str, saved: SavedPruning) -> str:
    from paceline.reports.pruning_figures import (
        as_pictures,
        by_class,
        contact_sheet,
        how_often,
        new_figure,
        pass_sizes,
        png,
        telling_trends,
        trends,
    )

    record = saved.record
    figure = new_figure(10, 6)
    axes = figure.subplots(2, 2).flatten()
    pass_sizes(axes[0], record)
    how_often(axes[1], record.times_pruned, 1)
    if saved.targets is not None:
        by_class(axes[2], record.times_pruned[: len(saved.targets)], saved.targets[: len(record.times_pruned)])
    else:
        axes[2].axis("off")
    trends(axes[3], telling_trends(record), "Losses of single samples")
    drawn = [(png(figure), f"{record.pruned_share:.1%} of the samples were left out")]
    pictures = as_pictures(saved.inputs)
    if pictures is not None:
        captions = [_caption(saved, int(sample)) for sample in saved.shown]
        sheet = contact_sheet(pictures, captions, "The samples that were left out most often")
        drawn.append((png(sheet), "The samples that were left out most often: number, class, times"))
    return "".join(
        f'<figure><img alt="{escape(name)}: {escape(text)}" style="width:100%;background:#fff" '
        f'src="data:image/png;base64,{b64encode(image).decode()}"><figcaption>{escape(text)}</figcaption></figure>'
        for image, text in drawn
    )


def _caption(saved: SavedPruning, sample: int) -> str:
    label = "" if saved.targets is None else f" ({saved.targets[sample]})"
    return f"{sample}{label} {int(saved.record.times_pruned[sample])}×"
