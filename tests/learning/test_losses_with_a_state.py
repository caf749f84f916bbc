"""Losses that draw random numbers, or keep something: as in a plain loop, on all fleets, in replays and after a resume.

A loss is called once for each batch of training. Whatever else has to be known of it is tried without a trace.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.data.samples import TensorSamples
from paceline.fleets.base import Fleet
from paceline.learning.loss import Loss, LossOfAll, SampleLoss
from support.noted import Noted, steps_of

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(64, 6, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(3, (64,), generator=GENERATOR)


def linear() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Linear(6, 3).double()


def each_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none") * torch.rand(len(targets), dtype=outputs.dtype)


def vector(outputs: Tensor, targets: Tensor) -> Tensor:
    return each_of(outputs, targets) * np.random.rand()


def number(outputs: Tensor, targets: Tensor) -> Tensor:
    return each_of(outputs, targets).mean() * random.random()


def own_reduction(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    each = each_of(outputs, targets) * np.random.rand() * random.random()
    return each if reduction == "none" else each.mean()


class Centred(nn.Module):
    """Learns a scale, follows the mean of the outputs, and counts."""

    def __init__(self, reduction: str | None = None) -> None:
        super().__init__()
        if reduction is not None:
            self.reduction = reduction
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.register_buffer("centre", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.get_buffer("centre").lerp_(outputs.detach().mean(0), 0.5)
        self.get_buffer("batches").add_(1)
        each = cross_entropy(outputs * self.scale, targets, reduction="none")
        each = each + (outputs - self.get_buffer("centre")).square().sum(1)
        return each.mean() if getattr(self, "reduction", "none") == "mean" else each


LOSSES: dict[str, Callable[[], Loss]] = {
    "vector": lambda: vector,
    "number": lambda: number,
    "own reduction": lambda: own_reduction,
    "buffers": Centred,
    "buffers and reduction": lambda: Centred("mean"),
}
RULES: dict[str, Callable[[], pl.strategy.Strategy]] = {
    "gradients": pl.Synchronous, "models": lambda: pl.ModelAveraging(2),
}  # fmt: skip


def exact(workers: int = 2) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, evaluation="exact")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def train(loss: Loss, fleet: Fleet, rule: str = "gradients", updates: int = 4, **more: Any) -> pl.Run:
    return pl.train(
        pl.Task(linear(), loss, train=(X, Y), evaluate=lambda model: {"loss": 0.0}), strategy=RULES[rule](),
        fleet=fleet, optimizer=sgd, stop=pl.Stop(updates=updates), every=pl.Every(updates=100), batch_size=8,
        progress=False, **more,
    )  # fmt: skip


def values(run: pl.Run) -> Tensor:
    modules = [run.model, *([] if run.loss is None else [run.loss])]
    return torch.cat([each.detach().double().flatten() for m in modules for each in m.state_dict().values()])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", LOSSES)
def test_processes_their_replay_and_the_simulator_agree(name: str, rule: str, tmp_path: Path) -> None:
    loss = LOSSES[name]()
    simulated = values(train(loss, exact(), rule))
    run = train(loss, pl.ProcessFleet(2), rule, directory=tmp_path)
    torch.testing.assert_close(values(run), simulated, rtol=0, atol=1e-12)
    again = pl.replay(
        tmp_path, pl.Task(linear(), loss, train=(X, Y), evaluate=lambda model: {"loss": 0.0}),
        strategy=RULES[rule](), fleet=pl.ProcessFleet(2), optimizer=sgd, batch_size=8,
    )  # fmt: skip
    assert again.same


@pytest.mark.parametrize("name", LOSSES)
def test_a_run_of_processes_is_resumed_to_the_bit(name: str, tmp_path: Path) -> None:
    whole = train(LOSSES[name](), pl.ProcessFleet(2), updates=6)
    train(LOSSES[name](), pl.ProcessFleet(2), updates=3, directory=tmp_path)
    resumed = train(LOSSES[name](), pl.ProcessFleet(2), updates=6, directory=tmp_path, resume=True)
    assert torch.equal(values(resumed), values(whole))


@pytest.mark.parametrize("rule", ["gradients", "models"])
@pytest.mark.parametrize("reduction", [None, "mean"])
def test_buffers_of_a_loss_with_parameters_are_those_of_a_plain_loop(reduction: str | None, rule: str) -> None:
    own, noted = Centred(reduction), Noted()
    run = train(own, exact(1), rule, sampling=noted)
    model, loss = linear(), Centred(reduction)
    optimizer = sgd([*model.parameters(), *loss.parameters()])
    for (used,) in steps_of(run, noted.drawn):
        for batch in used.batches:
            optimizer.zero_grad()
            torch.autograd.backward(loss(model(X[batch]), Y[batch]).mean())
            optimizer.step()
    assert run.loss is not None
    assert int(loss.get_buffer("batches")) >= 4
    torch.testing.assert_close(dict(run.loss.state_dict()), dict(loss.state_dict()), rtol=0, atol=1e-12)
    torch.testing.assert_close(dict(run.model.state_dict()), dict(model.state_dict()), rtol=0, atol=1e-12)
    assert all(torch.equal(value, Centred().state_dict()[name]) for name, value in own.state_dict().items())


class Counting:
    """Not a module: counts its calls, and has a reduction of its own or none."""

    def __init__(self) -> None:
        self.calls = 0

    def plain(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return cross_entropy(outputs, targets, reduction="none")

    def reduced(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        self.calls += 1
        return cross_entropy(outputs, targets, reduction=reduction)


@pytest.mark.parametrize("kind", ["plain", "reduced"])
def test_a_loss_is_called_once_a_batch(kind: str) -> None:
    own, outputs = Counting(), linear()(X)
    loss = SampleLoss(getattr(own, kind), TensorSamples(X, Y))
    for _ in range(3):
        assert loss.of(outputs, Y, 64).each is not None
    assert own.calls == 3


@pytest.mark.parametrize("loss", [vector, own_reduction])
def test_an_evaluation_draws_once_a_batch(loss: Loss) -> None:
    outputs = linear()(X).detach()
    found = []
    for known in (False, True):
        sample_loss = SampleLoss(loss, TensorSamples(X, Y))
        if known:
            sample_loss.of(outputs, Y, 64)
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        of_all = LossOfAll(sample_loss)
        of_all.add(outputs, Y, 64)
        found.append((of_all.value(), torch.rand(()).item(), np.random.rand(), random.random()))
    assert found[0] == found[1]
