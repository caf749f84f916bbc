"""Parameter groups that are chosen by name: on all kinds of workers, and in runs that are resumed."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.core.errors import ConfigError
from support.stepping import UPDATES, WORKERS, Case, by_hand, close, compiled, simulated, trained

PROCESSES = pl.ProcessFleet(workers=WORKERS)
FLEETS = [pytest.param(simulated(), id="simulated"), pytest.param(PROCESSES, id="processes")]


def grouped(named_parameters: Any, lr: float = 0.2) -> torch.optim.Optimizer:
    """No weight decay for biases."""
    named = [*named_parameters]
    groups = [
        {"params": [p for name, p in named if not name.endswith("bias")], "weight_decay": 0.3},
        {"params": [p for name, p in named if name.endswith("bias")], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=lr, momentum=0.5)


def pairs(named_parameters: Any) -> torch.optim.Optimizer:
    """Torch's own optimizers take the pairs as they are."""
    return torch.optim.AdamW(named_parameters, lr=0.01)


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize(
    "make", [grouped, pairs, functools.partial(grouped, lr=0.1)], ids=["groups", "pairs", "partial"]
)
def test_groups_by_name_train_as_in_a_plain_loop(make: Any, fleet: Any) -> None:
    found = trained(Case(), fleet, optimizer=make)
    expected = by_hand(Case(), found.drawn.draws, lambda model: make(model.named_parameters()))
    close(found.run.model, expected, 1e-6)
    other = by_hand(Case(), found.drawn.draws)
    assert not torch.allclose(other.state_dict()["0.weight"], expected.state_dict()["0.weight"])


@pytest.mark.parametrize("fleet", [simulated(workers=1), pl.ProcessFleet(workers=1)])
def test_groups_by_name_of_workers_that_train_models(fleet: Any) -> None:
    """One worker: its steps are those of the loop."""
    found = trained(Case(), fleet, optimizer=grouped, strategy=pl.ModelAveraging(every=2), stop=pl.Stop(updates=2))
    model = Case().made()
    optimizer = grouped(model.named_parameters())
    for batch in found.drawn.draws[0][:UPDATES]:
        optimizer.zero_grad()
        Case().step(model, Case().batch(batch)).mean().backward()
        optimizer.step()
    close(found.run.model, model, 1e-6)


@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(every=2)], ids=["gradients", "models"])
@pytest.mark.parametrize("fleet", FLEETS)
def test_groups_by_name_are_resumed_to_the_bit(fleet: Any, strategy: Any, tmp_path: Path) -> None:
    def run(updates: int, place: str, make: Any = grouped) -> pl.Run:
        return trained(
            Case(), fleet, optimizer=make, strategy=strategy, stop=pl.Stop(updates=updates),
            directory=tmp_path / place, resume=True, every=pl.Every(updates=2), sampling=pl.Shuffled(),
        ).run  # fmt: skip

    run(2, "twice")
    with pytest.raises(ConfigError, match="the run was begun with optimizer"):
        run(4, "twice", pairs)
    for one, two in zip(run(4, "twice").model.parameters(), run(4, "once").model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_names_are_those_of_the_user_s_model() -> None:
    """Without the prefix of a compiled one; a loss with parameters has one of its own."""
    seen: list[str] = []

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs: Any, targets: Any) -> Any:
            return nn.functional.cross_entropy(self.scale * outputs, targets, reduction="none")

    def make(named_parameters: Any) -> torch.optim.Optimizer:
        seen[:] = [name for name, _ in named_parameters]
        return torch.optim.SGD([p for _, p in named_parameters], lr=0.1)

    layers = ["0.weight", "0.bias", "2.weight", "2.bias"]
    trained(Case(compiled), simulated(), optimizer=make)
    assert seen == layers
    trained(Case(), simulated(), optimizer=make, task=pl.Task(Case().made(), Scaled(), train=Case().data))
    assert seen == [*layers, "loss.scale"]


def test_a_comparison_takes_groups_by_name() -> None:
    asked: dict[str, Any] = {"strategies": ["ssgd"], "fleet": simulated(), "seeds": [0], "batch_size": 6, "jobs": 1}
    for rates in (None, [0.1]):
        found = pl.compare(
            Case().task(), optimizer=grouped, learning_rates=rates, stop=pl.Stop(updates=2), **asked
        )  # fmt: skip
        assert "ssgd" in found.table
