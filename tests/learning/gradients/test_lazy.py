"""Gradients of simulated workers: each is what its worker would compute alone, and sums lose no digits."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.strategy import Decision, Ledger, Step
from support.digits import weights
from support.noted import Noted, steps_of

LIMIT = 2e-3  # of a gradient on its way back: nearly all of a worker's own are longer, of one times an eighth few


class Clamps(torch.autograd.Function):
    """Passes its input on, and clamps the gradient."""

    @staticmethod
    def forward(ctx: object, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient.clamp(-LIMIT, LIMIT)


def by_a_hook(hidden: Tensor) -> Tensor:
    """As recurrent networks are clipped, time step by time step."""
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient.clamp(-LIMIT, LIMIT))  # type: ignore[no-untyped-call]
    return hidden


def by_a_function(hidden: Tensor) -> Tensor:
    return Clamps.apply(hidden)  # type: ignore[no-any-return,no-untyped-call]


class Net(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.first, self.last = nn.Linear(6, 12).double(), nn.Linear(12, 2).double()
        self._between = between

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self._between(torch.tanh(self.first(inputs))))
        return outputs


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(2, (64,), generator=generator)


class Half(pl.Asynchronous):
    """Steps on one gradient at a time, with a weight of a half."""

    def decide(self, ledger: Ledger) -> Sequence[Decision]:
        decisions = super().decide(ledger)
        return [Step({t: w / 2 for t, w in d.weights.items()}) if isinstance(d, Step) else d for d in decisions]


def by_hand(run: pl.Run, noted: Noted, between: Callable[[Tensor], Tensor]) -> Tensor:
    """The weighted sum of the gradients that workers compute alone."""
    model, (x, y) = Net(between), data()
    for used in steps_of(run, noted.drawn):
        sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for weight, (batch,), _ in used:
            gradients = torch.autograd.grad(cross_entropy(model(x[batch]), y[batch]), list(model.parameters()))
            for total, gradient in zip(sums, gradients, strict=True):
                total.add_(gradient, alpha=float(weight))
        with torch.no_grad():
            for parameter, total in zip(model.parameters(), sums, strict=True):
                parameter.sub_(total, alpha=0.5)
    return weights(model)


@pytest.mark.parametrize("between", [by_a_hook, by_a_function])
@pytest.mark.parametrize("evaluation", ["exact", "fused"])
@pytest.mark.parametrize(("strategy", "workers"), [(pl.Synchronous(), 8), (Half(), 1)])
def test_a_gradient_that_is_clamped_on_its_way_is_that_of_the_worker_alone(
    strategy: pl.strategy.Strategy, workers: int, evaluation: str, between: Callable[[Tensor], Tensor]
) -> None:
    """A backward pass that began with a contribution's weight would clamp something else."""
    noted = Noted()
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, evaluation=evaluation)  # type: ignore[arg-type]
    run = pl.train(
        pl.Task(Net(between), cross_entropy, data(), evaluate=lambda model: {"loss": 0.0}), strategy=strategy,
        fleet=fleet, optimizer=lambda p: torch.optim.SGD(p, lr=0.5), stop=pl.Stop(updates=6), batch_size=4,
        sampling=noted, progress=False,
    )  # fmt: skip
    torch.testing.assert_close(weights(run.model), by_hand(run, noted, between), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("evaluation", ["exact", "fused"])
def test_a_sum_of_many_gradients_of_half_precision_loses_none(evaluation: str) -> None:
    """A sum of ones that is rounded to bfloat16 each time stays at 256."""
    workers = 600
    x, y = torch.ones(workers, 1, dtype=torch.bfloat16), torch.zeros(workers)
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.constant_(model.weight, 0.0)
    fleet = pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, evaluation=evaluation)  # type: ignore[arg-type]
    run = pl.train(
        pl.Task(model, lambda outputs, targets: outputs.float().squeeze(1), (x, y)), strategy=pl.Synchronous(),
        fleet=fleet, optimizer=lambda p: torch.optim.SGD(p, lr=1.0), stop=pl.Stop(updates=1), batch_size=1,
        progress=False,
    )  # fmt: skip
    assert float(weights(run.model)) == -1.0
    assert run.evaluation is not None
    assert "half precision" in run.evaluation or evaluation == "exact"
