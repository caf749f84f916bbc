"""A small run that uses everything random, and can be made in a process of its own: python -m support.repeatable."""

import sys
from pathlib import Path

import torch
from torch import nn

import paceline as pl
from support.digits import digits

FILES = ("checkpoint.safetensors", "config.json", "metrics.jsonl", "model.safetensors", "summary.json", "trace.jsonl")


def run(directory: Path, seed: int) -> pl.Run:
    """Dropout, momentum, non-IID data, random delays, partial gradients, groups, and a worker that leaves."""
    (x, y), (x_test, y_test) = digits()
    with torch.random.fork_rng():
        torch.manual_seed(99)
        model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))
    return pl.train(
        pl.Task(model, nn.functional.cross_entropy, train=(x.float(), y), test=(x_test.float(), y_test)),
        strategy=pl.Grouped([[0, 1, 2], [3, 4, 5, 6]], inside=pl.LiveCompensation(2, blocks=4)),
        fleet=pl.SimulatedFleet(pl.delays.ShiftedExponential(0.05, 0.02, h=2), workers=7, changes=[pl.Left(0.5, 1)]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        stop=pl.Stop(updates=30),
        batch_size=16,
        partition=pl.Dirichlet(2.0),
        seed=seed,
        directory=directory,
    )


if __name__ == "__main__":
    run(Path(sys.argv[1]), seed=int(sys.argv[2]))
