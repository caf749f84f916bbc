"""EC-DNN and MA-DNN against plain torch loops that are written down from the paper, step by step."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

import paceline as pl
from paceline.data.partition import Indices
from support.digits import Noted, digits, digits_task, weights
from support.local_models import fleet, members, mlp

WORKERS, STEPS = 3, 15
SHARDS = [np.arange(worker, 240, WORKERS) for worker in range(WORKERS)]


@dataclass(frozen=True)
class Dealt:
    """A partition that is known beforehand."""

    def shards(self, samples: object, workers: int, generator: np.random.Generator) -> Sequence[Indices]:
        return SHARDS[:workers]


def optimizer(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.5)  # type: ignore[arg-type]


def scheduler(of: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(of, gamma=0.8)


def train(
    strategy: pl.strategy.Strategy, record: Noted, *, updates: int | None = None, clip_norm: float | None = None
) -> pl.Run:
    return pl.train(
        digits_task(mlp()),
        strategy=strategy,
        fleet=fleet(WORKERS),
        optimizer=optimizer,
        scheduler=scheduler,
        clip_norm=clip_norm,
        stop=None if updates is None else pl.Stop(updates=updates),
        batch_size=8,
        partition=Dealt(),
        sampling=record,
        progress=False,
    )


class Addition(Protocol):
    """What is added to the loss of a mini-batch."""

    def __call__(self, logits: Tensor, batch: list[int]) -> Tensor: ...


class Worker:
    """A model of its own, with the optimizer and the scheduler that go with it."""

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        self.model = mlp()
        self.optimizer = optimizer(self.model.parameters())
        self.scheduler = scheduler(self.optimizer)
        self.batches = iter(batches)
        self.clipped = 0

    def step(self, addition: Addition | None = None, clip_norm: float | None = None) -> None:
        (x, y), _ = digits()
        batch = list(next(self.batches))
        self.optimizer.zero_grad()
        outputs = self.model(x[batch])
        loss = cross_entropy(outputs, y[batch])
        if addition is not None:
            loss = loss + addition(outputs, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if clip_norm is not None:
            norm = torch.sqrt(
                sum((p.grad.square().sum() for p in self.model.parameters() if p.grad is not None), torch.zeros(()))
            )
            if norm > clip_norm:
                self.clipped += 1
                for parameter in self.model.parameters():
                    assert parameter.grad is not None
                    parameter.grad.mul_(clip_norm / (norm + 1e-6))  # torch's way
        self.optimizer.step()
        self.scheduler.step()


def outputs_of(workers: Sequence[Worker]) -> Tensor:
    """Softmax outputs of every model for every sample."""
    (x, _), _ = digits()
    with torch.no_grad():
        return torch.stack([torch.softmax(worker.model(x[:240]), dim=1) for worker in workers])


def least_squares(outputs: Tensor, samples: Indices) -> Tensor:
    """Eq. (7), by the pseudo-inverse of the outputs themselves."""
    (_, y), _ = digits()
    columns = outputs[:, samples].reshape(len(outputs), -1).T
    solution: Tensor = torch.linalg.pinv(columns) @ one_hot(y[samples], 10).double().flatten()
    return solution


def pseudo_labels(rule: str, outputs: Tensor, shard: Indices) -> Tensor:
    """The ensemble's outputs for all samples, as the worker with this shard finds them."""
    (_, y), _ = digits()
    if rule == "regression":
        sums = torch.einsum("k,knc->nc", least_squares(outputs, shard), outputs).clamp_min(0)
        return sums / sums.sum(dim=1, keepdim=True)
    if rule == "margin":
        right = one_hot(y[:240], 10).bool()
        margins = outputs[:, right] - outputs.masked_fill(right, -1).amax(dim=2)
        positive = margins.clamp_min(0)
        each = torch.where(positive.sum(dim=0) > 0, positive / positive.sum(dim=0).clamp_min(1e-300), 1 / len(outputs))
        return torch.einsum("kn,knc->nc", each, outputs)
    return outputs.mean(dim=0)


class Towards(NamedTuple):
    """The second term of Eq. (10)."""

    beta: float
    ybar: Tensor

    def __call__(self, logits: Tensor, batch: list[int]) -> Tensor:
        return -self.beta * (self.ybar[batch] * logits.log_softmax(dim=1)).sum(dim=1).mean()


class AwayFrom(NamedTuple):
    """The second term of Eq. (9)."""

    alpha: float
    zbar: Tensor

    def __call__(self, logits: Tensor, batch: list[int]) -> Tensor:
        distances: Tensor = torch.linalg.vector_norm(logits.softmax(dim=1) - self.zbar[batch], dim=1)
        return -self.alpha * distances.mean()


def ec_dnn(strategy: pl.EnsembleCompression, record: Noted, p: int) -> list[Worker]:
    """Algorithms 1 and 2: compression first, then local training, of every ``every`` steps but the first."""
    workers = [Worker(record.draws[number]) for number in range(WORKERS)]
    for worker in workers:
        for _ in range(strategy.every):
            worker.step()
    for _ in range(STEPS // strategy.every - 1):
        outputs = outputs_of(workers)
        for worker, shard in zip(workers, SHARDS, strict=True):
            towards = Towards(strategy.distillation, pseudo_labels(strategy.weights, outputs, shard))
            for _ in range(p):
                worker.step(towards)
        away = AwayFrom(strategy.diversity, outputs_of(workers).mean(dim=0))
        for worker in workers:
            for _ in range(strategy.every - p):
                worker.step(away)
    return workers


def ensembles(**settings: object) -> pl.EnsembleCompression:
    return pl.EnsembleCompression(5, steps=STEPS, relabel=1.0, same_start=True, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "p"),
    [
        (ensembles(compression_steps=2), 2),
        (ensembles(compression_steps=2, weights="regression"), 2),
        (ensembles(compression_steps=2, weights="margin"), 2),
        (ensembles(compression_steps=3, distillation=1.7, diversity=0.0), 3),
        (ensembles(compression_steps=1, distillation=0.0, diversity=1.3), 1),
        (ensembles(compression_steps=0, diversity=1.3), 0),
        (ensembles(compression_steps=5, distillation=1.7), 5),
        (ensembles(), 1),  # a tenth of five steps, and at least one
    ],
    ids=str,
)
def test_ec_dnn_is_its_algorithm_step_by_step(strategy: pl.EnsembleCompression, p: int) -> None:
    record = Noted()
    run = train(strategy, record)
    workers = ec_dnn(strategy, record, p)
    for own, worker in zip(members(run), workers, strict=True):
        torch.testing.assert_close(own, weights(worker.model), rtol=0, atol=1e-10)
    outputs = outputs_of(workers)
    coefficients = torch.full((WORKERS,), 1 / WORKERS, dtype=torch.float64)
    if strategy.weights == "regression":
        coefficients = least_squares(outputs, np.arange(240))
    torch.testing.assert_close(run.model.get_buffer("weights").double(), coefficients, rtol=0, atol=1e-6)
    (x, _), _ = digits()
    sums = torch.einsum("k,knc->nc", coefficients, outputs).clamp_min(0)
    expected = (sums / sums.sum(dim=1, keepdim=True)).log()
    torch.testing.assert_close(run.model(x[:240]).detach(), expected, rtol=0, atol=1e-5)


def test_model_averaging_is_its_algorithm_with_scheduler_and_clipping() -> None:
    """Each worker clips, steps and lowers its learning rate by itself; only parameters are averaged."""
    every, rounds, clip_norm = 3, 3, 0.9
    record = Noted()
    run = train(pl.ModelAveraging(every), record, updates=rounds, clip_norm=clip_norm)
    workers = [Worker(record.draws[number]) for number in range(WORKERS)]
    for _ in range(rounds):
        for worker in workers:
            for _ in range(every):
                worker.step(clip_norm=clip_norm)
        averaged = copy.deepcopy(workers[0].model)
        with torch.no_grad():
            for parameter, *own in zip(averaged.parameters(), *(w.model.parameters() for w in workers), strict=True):
                parameter.copy_(torch.stack(own).mean(dim=0))
        for worker in workers:
            worker.model.load_state_dict(averaged.state_dict())
    torch.testing.assert_close(weights(run.model), weights(workers[0].model), rtol=0, atol=1e-10)
    assert 0 < sum(worker.clipped for worker in workers) < WORKERS * every * rounds  # some steps, and not all
