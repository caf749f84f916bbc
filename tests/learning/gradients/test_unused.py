"""A parameter without a gradient is left alone, as torch leaves it: by decay, by momentum, and by averages."""

import copy
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, Optimizer

import paceline as pl
from paceline.core.messages import Ticket
from paceline.data.partition import Indices
from paceline.fleets.base import Fleet
from paceline.learning.gradients.shared import SharedGradients
from paceline.learning.optimizers import plain_rate, plain_sgd
from paceline.learning.workload import workload_of
from support.noted import Noted, steps_of

Make = Callable[[Iterable[nn.Parameter]], Optimizer]
GENERATOR = torch.Generator().manual_seed(4)
X = torch.randn(96, 6, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(2, (96,), generator=GENERATOR)
GATE = 1.3  # one sample in ten opens the rare branch
UPDATES = 10
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: SGD(p, lr=0.1),
    "decay": lambda p: SGD(p, lr=0.1, weight_decay=0.5),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "foreach": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "Adam": lambda p: Adam(p, lr=0.05, weight_decay=0.1),
    "AdamW": lambda p: AdamW(p, lr=0.05, weight_decay=0.5),
}


class Headed(nn.Module):
    """A head that is never used, and a branch that only some samples open."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.trunk = nn.Linear(6, 2).double()
            self.unused = nn.Linear(6, 3).double()
            self.rare = nn.Linear(6, 2, bias=False).double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.trunk(inputs)
        opens = inputs[:, 0] > GATE
        if not opens.any():
            return outputs
        return outputs + torch.zeros_like(outputs).index_put((opens.nonzero()[:, 0],), self.rare(inputs[opens]))


def task() -> pl.Task:
    return pl.Task(Headed(), cross_entropy, train=(X, Y))


def train(
    strategy: pl.strategy.Strategy, fleet: Fleet, make: Make, noted: Noted | None = None, *, updates: int = UPDATES,
    directory: Path | None = None, resume: bool = False,
) -> pl.Run:  # fmt: skip
    return pl.train(
        task(), strategy=strategy, fleet=fleet, optimizer=make, batch_size=4, stop=pl.Stop(updates=updates),
        every=pl.Every(updates=100), sampling=noted or pl.Shuffled(), progress=False, directory=directory,
        resume=resume,
    )  # fmt: skip


def backward(model: nn.Module, batch: Indices, weight: float = 1.0) -> None:
    torch.autograd.backward(weight * cross_entropy(model(X[batch]), Y[batch]))


def by_gradients(run: pl.Run, drawn: Sequence[Indices], make: Make) -> nn.Module:
    """Torch's own accumulation of the contributions of each update, and torch's own step."""
    model = Headed()
    optimizer, versions = make(list(model.parameters())), [copy.deepcopy(model)]
    for step in steps_of(run, drawn):
        optimizer.zero_grad()
        for weight, batches, version in step:
            own = copy.deepcopy(versions[version])
            backward(own, batches[0], float(weight))
            for parameter, mine in zip(model.parameters(), own.parameters(), strict=True):
                if mine.grad is not None:
                    parameter.grad = mine.grad if parameter.grad is None else parameter.grad + mine.grad
        optimizer.step()
        versions.append(copy.deepcopy(model))
    return model


def assert_same(run: pl.Run, expected: nn.Module) -> None:
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected.state_dict()), rtol=0, atol=1e-12)
    for name, value in Headed().unused.state_dict().items():
        assert torch.equal(run.model.get_parameter(f"unused.{name}"), value)


RULES = [
    pl.Synchronous(),
    pl.Asynchronous(),
    pl.Grouped([[0, 1], [2]]),
    pl.LiveCompensation(2, blocks=1, recall=False),
]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("evaluation", ["fused", "exact"])
@pytest.mark.parametrize("strategy", RULES, ids=repr)
def test_in_the_simulator(strategy: pl.strategy.Strategy, evaluation: str, name: str) -> None:
    noted = Noted()
    fleet = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=3, evaluation=evaluation)  # type: ignore[arg-type]
    run = train(strategy, fleet, OPTIMIZERS[name], noted)
    assert_same(run, by_gradients(run, noted.drawn, OPTIMIZERS[name]))


@pytest.mark.parametrize(("strategy", "name"), [(RULES[0], "momentum"), (RULES[3], "AdamW")])
def test_on_processes_and_in_their_replay(strategy: pl.strategy.Strategy, name: str, tmp_path: Path) -> None:
    noted, fleet, make = Noted(), pl.ProcessFleet(3), OPTIMIZERS[name]
    run = train(strategy, fleet, make, noted, directory=tmp_path)
    assert_same(run, by_gradients(run, noted.drawn, make))
    again = pl.replay(
        tmp_path, task(), strategy=strategy, fleet=fleet, optimizer=make, batch_size=4, sampling=Noted()
    )  # fmt: skip
    assert (again.departure, again.differences) == (None, {})


@pytest.mark.parametrize("strategy", [RULES[0], RULES[3]], ids=repr)
def test_what_is_unused_is_told_of_in_checkpoints(strategy: pl.strategy.Strategy, tmp_path: Path) -> None:
    fleet = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=3)
    whole = train(strategy, fleet, OPTIMIZERS["momentum"])
    train(strategy, fleet, OPTIMIZERS["momentum"], directory=tmp_path, updates=5)
    resumed = train(strategy, fleet, OPTIMIZERS["momentum"], directory=tmp_path, resume=True)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


def test_a_checkpoint_has_which_parameters_a_gradient_lacks() -> None:
    closed = np.flatnonzero(X[:, 0].numpy() <= GATE)[:4]
    ticket, made = Ticket(0, 0, 0), []
    for _ in range(2):
        workload = workload_of(task(), [np.arange(96)], 4)
        made.append((workload, *pl.ProcessFleet(1).inline(workload, seed=0)))
    (_, worker, gradients), (_, _, restored) = made
    assert isinstance(gradients, SharedGradients)
    assert isinstance(restored, SharedGradients)
    gradients.promise(ticket, (closed,), 0)
    worker.hand_in(ticket, 1)
    restored.restore(gradients.state())
    names = [name for name, _ in Headed().named_parameters()]
    for contributions in (gradients, restored):
        unused = contributions.evaluate({ticket: Fraction(1)}, ()).unused
        assert [names[number] for number in unused] == ["unused.weight", "unused.bias", "rare.weight"]


def by_local_steps(batches: Sequence[Indices], make: Make) -> nn.Module:
    model = Headed()
    optimizer = make(list(model.parameters()))
    for batch in batches:
        optimizer.zero_grad()
        backward(model, batch)
        optimizer.step()
    return model


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_local_steps_are_torch_s(name: str) -> None:
    """One worker alone, whose averages are its own models."""
    noted = Noted()
    run = train(
        pl.ModelAveraging(4), pl.SimulatedFleet(pl.delays.Constant(1.0), workers=1), OPTIMIZERS[name], noted, updates=4
    )
    assert_same(run, by_local_steps(noted.drawn[:16], OPTIMIZERS[name]))


@pytest.mark.parametrize(
    "strategy",
    [
        pl.ModelAveraging(2, momentum="averaged"),
        pl.ModelAveraging(2, waits=pl.Asynchronous()),
        pl.EnsembleCompression(every=4, steps=8, same_start=True),
        pl.FinalEnsemble(steps=4, same_start=True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["momentum", "AdamW"])
def test_rules_by_models_leave_the_unused_head_alone(strategy: pl.strategy.Strategy, name: str) -> None:
    run = train(strategy, pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3), OPTIMIZERS[name], updates=4)
    heads = [value for name, value in run.model.state_dict().items() if "unused.weight" in name]
    trunks = [value for name, value in run.model.state_dict().items() if "trunk.weight" in name]
    assert heads
    assert all(torch.equal(head, Headed().unused.weight) for head in heads)
    assert not any(torch.equal(trunk, Headed().trunk.weight) for trunk in trunks)


def test_averaged_momenta_are_those_of_the_workers_that_have_any() -> None:
    run = train(
        pl.ModelAveraging(1, momentum="averaged"), pl.SimulatedFleet(pl.delays.Constant(1.0), workers=3),
        OPTIMIZERS["momentum"], updates=6,
    )  # fmt: skip
    assert run.problem is None
    assert all(value.isfinite().all() for value in run.model.state_dict().values())


def test_the_quicker_step_of_sgd_leaves_out_what_torch_leaves_out() -> None:
    models = Headed(), Headed()
    for model, quick in zip(models, (True, False), strict=True):
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        step = plain_sgd(optimizer) if quick else optimizer.step
        assert step is not None
        for begin in range(0, 96, 4):
            optimizer.zero_grad()
            backward(model, range(begin, begin + 4))  # type: ignore[arg-type]
            step()
    assert all(torch.equal(*pair) for pair in zip(*(model.parameters() for model in models), strict=True))


def test_a_rate_is_told_of_nothing_but_steps_of_w_minus_rate_times_gradient() -> None:
    layers = [nn.Linear(3, 2), nn.Linear(2, 1)]
    parameters = [each for layer in layers for each in layer.parameters()]
    groups = [{"params": list(layer.parameters())} for layer in layers]
    for optimizer, rate in (
        (SGD(parameters, lr=0.3), 0.3),
        (SGD(groups, lr=0.3), None),
        (SGD(parameters[:2], lr=0.3), None),
        (SGD(parameters, lr=0.3, momentum=0.9), None),
        (SGD(parameters, lr=0.3, weight_decay=0.1), None),
        (SGD(parameters, lr=0.3, maximize=True), None),
        (Adam(parameters, lr=0.3), None),
    ):
        told = plain_rate(optimizer, parameters)
        assert (None if told is None else told()) == rate
