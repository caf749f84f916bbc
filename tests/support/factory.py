"""An experiment whose task a function makes, in a module beside the TOML file."""

from pathlib import Path

EXPERIMENT = """
batch_size = 8
strategy = "ssgd"
[task]
factory = "own_task:make"
[task.arguments]
hidden = 6
[[fleet.workers]]
count = 2
delay = "constant"
value = 0.01
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 6
"""
TASK = '''
import sys

import torch
from torch import nn

import paceline

WIDTH = 4


class Net(nn.Sequential):
    """A class of the module's own: workers have to know it."""


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def make(hidden=6, seed=None):
    model = Net(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    model.seed = seed
    random = torch.Generator().manual_seed(0)
    data = torch.randn(64, WIDTH, generator=random), torch.randint(0, 3, (64,), generator=random)
    return paceline.Task(model=model, loss=loss, train=data)


def needs(size):
    return make(size)


def wrong(hidden):
    return nn.Linear(2, 2)


def nothing(hidden):
    make()


def fails(hidden):
    open("data.pt")


def leaves(hidden):
    sys.exit(3)
'''


def write_experiment(folder: Path) -> Path:
    """Write the TOML file and its module into a folder."""
    (folder / "own_task.py").write_text(TASK)
    file = folder / "experiment.toml"
    file.write_text(EXPERIMENT)
    return file
