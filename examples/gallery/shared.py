"""What several cases use: handwritten digits with a small network, a quadratic, and the picture."""

import sys
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import paceline
from paceline import look


def digits() -> paceline.Task:
    """Scikit-learn's handwritten digits, and a network of 32 hidden units with the same first weights each time."""
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    train, test = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])
    return paceline.Task(model, torch.nn.functional.cross_entropy, train=train, test=test)


class Point(torch.nn.Module):
    """One parameter, which is also what the model returns for every sample."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(start))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.x.expand(len(inputs))


def panels(rows: int = 1, columns: int = 1, *, height: float = 3.2, **shared: Any) -> tuple[Figure, Any]:
    """A figure, and its axes."""
    figure = Figure(figsize=(7, height), dpi=90, layout="constrained")
    return figure, figure.subplots(rows, columns, **shared)


def save(figure: Figure) -> None:
    """Write the picture to the path that the script was given, or beside you under the script's name."""
    look.write(figure, Path(sys.argv[1]) if sys.argv[1:] else Path(f"{Path(sys.argv[0]).stem}.png"))
