"""What the figures of all papers share: their size, colours and axes, and how they are written."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from paceline.files import write_atomically
from paceline.reports.figures import COLOURS, DASHES

Drawing = Figure | str | None  # a picture, a text, or nothing where the card lacks the runs for it


def blank(width: float, height: float) -> Figure:
    """A figure of so many inches, of 100 pixels each."""
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_drawings(drawings: Mapping[str, Drawing], directory: Path) -> list[Path]:
    """Write drawings under their file names, each whole or not at all; the files that were written."""
    written = []
    for name, drawing in drawings.items():
        if drawing is not None:
            written.append(directory / name)
            write_atomically(written[-1], drawing if isinstance(drawing, str) else _png(drawing))
    return written


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "Paceline"})
    return buffer.getvalue()


def look(number: int) -> dict[str, Any]:
    """Colour and dashes of a line, by the place of what it shows."""
    return {"color": COLOURS[number], "linestyle": DASHES[number]}


def tidy(axis: Any, title: str, across: str, up: str, *, size: int = 11) -> None:
    """Title, labels and a light grid."""
    axis.set_title(title, fontsize=size)
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    light(axis)


def light(axis: Any) -> None:
    """A grid in the background, and no frame above and on the right."""
    axis.grid(True, color="0.9", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
