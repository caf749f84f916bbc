"""Small classifiers for runs in which every worker trains a model of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.data.partition import Indices
from paceline.learning.models.training import LocalTrainer
from paceline.learning.optimizers import MakeOptimizer, Recipe
from paceline.learning.workload import Workload, workload_of
from support.digits import Noted, digits, digits_task, weights


def mlp(*, dropout: float = 0.0, norm: bool = False, seed: int = 0) -> nn.Sequential:
    """One hidden layer, in doubles."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Linear(64, 12), nn.BatchNorm1d(12)] if norm else [nn.Linear(64, 12)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Dropout(dropout), nn.Linear(12, 10)).double()


def sgd(lr: float = 0.1, momentum: float = 0.0, weight_decay: float = 0.0) -> MakeOptimizer:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


def fleet(workers: int = 4) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers)


def run(
    strategy: pl.strategy.Strategy,
    *,
    model: nn.Module | None = None,
    on: pl.SimulatedFleet | None = None,
    optimizer: MakeOptimizer | None = None,
    updates: int | None = None,
    sampling: Noted | None = None,
    seed: int = 0,
) -> pl.Run:
    """On digits, with mini-batches of 16, judged after every update."""
    return pl.train(
        digits_task(mlp() if model is None else model),
        strategy=strategy,
        fleet=fleet() if on is None else on,
        optimizer=optimizer or sgd(),
        stop=None if updates is None else pl.Stop(updates=updates),
        batch_size=16,
        sampling=pl.Shuffled() if sampling is None else sampling,
        every=pl.Every(updates=1),
        seed=seed,
        progress=False,
    )


def trained_by_hand(
    model: nn.Module, batches: Iterable[Sequence[int]], optimizer: torch.optim.Optimizer | None = None, lr: float = 0.1
) -> nn.Module:
    """Plain steps of cross entropy on digits, one for each mini-batch."""
    (x, y), _ = digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr) if optimizer is None else optimizer
    model.train()
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(model(x[list(batch)]), y[list(batch)]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def members(run: pl.Run) -> list[Tensor]:
    """The parameters of each model of a final ensemble."""
    return [weights(member) for member in run.model.get_submodule("members").children()]


def trainers(task: pl.Task, shards: Sequence[Indices], optimizer: MakeOptimizer) -> tuple[Workload, list[LocalTrainer]]:
    """The workers of a run that is carried out by hand."""
    workload = replace(workload_of(task, shards, batch_size=4), recipe=Recipe(optimizer))
    made = [LocalTrainer(workload, worker, seed=0) for worker in range(len(shards))]
    return replace(workload, trainers=made), made
