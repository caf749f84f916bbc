"""What the figures of all papers share: their size, and how they are written. Their look is that of paceline.look."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from paceline.files import write_atomically
from paceline.look import png

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
            write_atomically(written[-1], drawing if isinstance(drawing, str) else png(drawing))
    return written
