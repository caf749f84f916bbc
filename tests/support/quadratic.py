"""Worker i has F_i(x) = a_i (x - b_i)^2 / 2: everything about the path of x can be told with pen and paper."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.data.partition import Indices, Labelled


class Scalar(nn.Module):
    """One number x, whatever the inputs."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs))


@dataclass(frozen=True)
class Consecutive:
    """Worker i has the i-th of equally many consecutive samples."""

    def shards(self, samples: Labelled, workers: int, generator: np.random.Generator) -> Sequence[Indices]:
        return list(np.arange(len(samples), dtype=np.int64).reshape(workers, -1))


def half_square(x: Tensor, targets: Tensor) -> Tensor:
    """A loss for each sample, whose target is the pair (a, b)."""
    return targets[:, 0] * (x - targets[:, 1]).square() / 2


def quadratic(b: Sequence[float], a: Sequence[float] | None = None, *, samples: int = 1, start: float = 0.0) -> pl.Task:
    """The task where worker i has ``samples`` copies of one sample (a_i, b_i); judging it tells x as the loss."""
    pairs = torch.tensor([[1.0] * len(b) if a is None else a, b], dtype=torch.float64).T
    targets = pairs.repeat_interleave(samples, dim=0)
    return pl.Task(
        model=Scalar(start),
        loss=half_square,
        train=(torch.zeros(len(targets)), targets),
        evaluate=lambda model: {"loss": float(model.get_parameter("x"))},
    )


def path(
    task: pl.Task,
    strategy: pl.strategy.Strategy,
    fleet: pl.SimulatedFleet,
    updates: int,
    *,
    lr: float = 0.1,
    seed: int = 0,
) -> list[float]:
    """X before the first update and after each."""
    samples = len(task.train) if not isinstance(task.train, tuple) else len(task.train[0])
    run = pl.train(
        task,
        strategy=strategy,
        fleet=fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        stop=pl.Stop(updates=updates),
        batch_size=samples // fleet.workers,
        partition=Consecutive(),
        every=pl.Every(updates=1),
        seed=seed,
    )
    assert [row.updates for row in run.history] == list(range(updates + 1))
    return [row.loss for row in run.history]


def rounds_of(fastest: Sequence[str], workers: int) -> list[pl.delays.Empirical]:
    """Delays with which exactly the named workers are the fastest of each round, in increasing order."""
    return [
        pl.delays.Empirical([1.0 + i / 100 if str(i) in names else 2.0 + i / 100 for names in fastest], in_order=True)
        for i in range(workers)
    ]
