"""What the figures of the papers have in common."""

import io
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from paceline.files import write_atomically


def blank(width: float, height: float) -> Figure:
    """A figure of so many inches, of 100 pixels each."""
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG, whole or not at all."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": "Paceline"})
    write_atomically(path, buffer.getvalue())


def tidy(axis: Any, title: str, across: str, up: str, *, size: int = 11) -> None:
    axis.set_title(title, fontsize=size)
    axis.set_xlabel(across)
    axis.set_ylabel(up)
    axis.grid(True, color="0.9", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
