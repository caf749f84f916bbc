"""Scikit-learn's digits, a linear model of them, and mini-batches that are written down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isnan

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.data.batches import Batches, Losses, OfUnequalSizes, Resizable
from paceline.data.partition import Indices
from paceline.learning.loss import Loss

Pair = tuple[Tensor, Tensor]
TRAINING_SAMPLES = 1500


@cache
def digits() -> tuple[Pair, Pair]:
    """Inputs in 0..1 as doubles, and labels: for training, and for testing."""
    from sklearn.datasets import load_digits  # worker processes that import this module need not load it

    bunch = load_digits()
    x, y = torch.tensor(bunch.data, dtype=torch.float64) / 16, torch.tensor(bunch.target)
    return (x[:TRAINING_SAMPLES], y[:TRAINING_SAMPLES]), (x[TRAINING_SAMPLES:], y[TRAINING_SAMPLES:])


def linear(seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(64, 10, dtype=torch.float64)


def digits_task(model: nn.Module | None = None, loss: Loss = cross_entropy) -> pl.Task:
    train, test = digits()
    return pl.Task(model=linear() if model is None else model, loss=loss, train=train, test=test)


def train(
    task: pl.Task,
    strategy: pl.strategy.Strategy | str,
    fleet: pl.SimulatedFleet,
    *,
    updates: int,
    sampling: "Noted | None" = None,
    lr: float = 0.1,
    batch_size: int | list[int] = 32,
    seed: int = 0,
) -> pl.Run:
    """With plain SGD, for so many updates."""
    return pl.train(
        task,
        strategy=strategy,
        fleet=fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        stop=pl.Stop(updates=updates),
        batch_size=batch_size,
        sampling=pl.Shuffled() if sampling is None else sampling,
        seed=seed,
    )


def weights(model: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def rows(run: pl.Run) -> list[tuple[float | None, ...]]:
    """The history as something that equals itself: a value that cannot be told is None, not NaN."""
    return [tuple(None if isnan(value) else value for value in row.numbers().values()) for row in run.history]


@dataclass(frozen=True)
class Noted:
    """``Shuffled``, or another sampling, that writes down what every worker draws, puts back, and observes."""

    sampling: pl.Shuffled | pl.Resampled = field(default_factory=pl.Shuffled)
    draws: dict[int, list[list[int]]] = field(default_factory=dict, repr=False)
    returns: dict[int, list[list[int]]] = field(default_factory=dict, repr=False)
    losses: dict[int, list[tuple[list[int], list[float]]]] = field(default_factory=dict, repr=False)

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return _Recording(self, self.sampling.open(shards, batch_size, seed))

    def batch(self, worker: int, number: int) -> Tensor:
        return torch.tensor(self.draws[worker][number])


class _Recording:
    def __init__(self, record: Noted, batches: Batches) -> None:
        self._record = record
        self._batches = batches

    def draw(self, worker: int) -> Indices:
        indices = self._batches.draw(worker)
        self._record.draws.setdefault(worker, []).append(indices.tolist())
        return indices

    def begin_with(self, sizes: Sequence[int]) -> None:
        assert isinstance(self._batches, OfUnequalSizes)
        self._batches.begin_with(sizes)

    def resize(self, sizes: Mapping[int, int]) -> None:
        assert isinstance(self._batches, Resizable)
        self._batches.resize(sizes)

    def put_back(self, worker: int, indices: Indices) -> None:
        self._record.returns.setdefault(worker, []).append(indices.tolist())
        self._batches.put_back(worker, indices)

    def observe(self, worker: int, indices: Indices, losses: Losses) -> None:
        self._record.losses.setdefault(worker, []).append((indices.tolist(), losses.tolist()))
