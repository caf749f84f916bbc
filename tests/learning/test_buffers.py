"""Buffers (running statistics, counters) move by what each worker changed since it downloaded them.

The second implementation takes each worker's mini-batch when a step uses it, and passes it through the weights that the
worker had downloaded and the buffers that the model has at hand.
"""

import copy
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.data.partition import Indices
from paceline.fleets.base import Fleet
from paceline.learning.model_state import BufferChange, ModelState
from support.noted import Noted, Used, steps_of

RATE = 0.05
GENERATOR = torch.Generator().manual_seed(0)
CENTRES = 1.2 * torch.randn(5, 10, generator=GENERATOR)
Y = torch.randint(5, (1600,), generator=GENERATOR)
X = 3 * (CENTRES[Y] + torch.randn(1600, 10, generator=GENERATOR)) + 2


class Normed(nn.Module):
    """Batch normalisation with and without a momentum, and a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.layers = nn.Sequential(
                nn.Linear(10, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.BatchNorm1d(12, momentum=None), nn.Linear(12, 5)
            )
        self.register_buffer("passes", torch.zeros((), dtype=torch.int32))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.get_buffer("passes").add_(1)
        return torch.as_tensor(self.layers(inputs))


def task(model: nn.Module) -> pl.Task:
    return pl.Task(model, cross_entropy, train=(X, Y))


def train(
    model: nn.Module, strategy: pl.strategy.Strategy, fleet: Fleet, updates: int, sampling: Noted | None = None
) -> pl.Run:
    return pl.train(
        task(model), strategy=strategy, fleet=fleet, optimizer=lambda p: torch.optim.SGD(p, lr=RATE), batch_size=16,
        stop=pl.Stop(updates=updates), every=pl.Every(updates=updates), sampling=sampling or pl.Shuffled(),
        progress=False,
    )  # fmt: skip


def plain(run: pl.Run, drawn: Sequence[Indices], model: nn.Module) -> nn.Module:
    """The same run from its trace, one worker after the other, without any of the library's learning."""
    model = copy.deepcopy(model)
    versions = [copy.deepcopy(model)]
    for step in steps_of(run, drawn):
        step_plainly(model, step, versions)
        versions.append(copy.deepcopy(model))
    return model


def step_plainly(model: nn.Module, step: Sequence[Used], versions: Sequence[nn.Module]) -> None:
    moves = [torch.zeros_like(each) for each in model.parameters()]
    buffers = [torch.zeros_like(each, dtype=torch.float64) for each in model.buffers()]
    for weight, batches, version in step:
        downloaded = versions[version]
        own = copy.deepcopy(downloaded)
        for buffer, at_hand in zip(own.buffers(), model.buffers(), strict=True):
            buffer.copy_(at_hand)
        for batch in batches:
            own.zero_grad()
            cross_entropy(own(X[batch]), Y[batch]).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for parameter in own.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(RATE * parameter.grad)
        for move, trained, began in zip(moves, own.parameters(), downloaded.parameters(), strict=True):
            move.add_((trained - began).detach(), alpha=float(weight))
        for total, after, at_hand in zip(buffers, own.buffers(), model.buffers(), strict=True):
            total.add_((after.double() - at_hand.double()).nan_to_num(), alpha=float(weight))
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.add_(move)
        for buffer, total in zip(model.buffers(), buffers, strict=True):
            buffer.add_(total.to(buffer) if buffer.is_floating_point() else total.round().to(buffer))


RULES = [
    pl.Synchronous(),
    pl.Asynchronous(),
    pl.Grouped([[0, 1], [2]]),
    pl.FastestK(2, stop_late=False),
    pl.LiveCompensation(2, blocks=1, recall=False),
    pl.ModelAveraging(3),
    pl.ModelAveraging(3, waits=pl.Asynchronous()),
    pl.ModelAveraging(2, waits=pl.Grouped([[0, 1], [2]])),
]


@pytest.mark.parametrize("strategy", RULES, ids=repr)
def test_the_simulator_moves_buffers_as_a_plain_loop_does(strategy: pl.strategy.Strategy) -> None:
    fleet = pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=3)
    noted = Noted()
    run = train(Normed(), strategy, fleet, 12, noted)
    expected = plain(run, noted.drawn, Normed()).state_dict()
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected), rtol=1e-4, atol=1e-5)


def test_processes_move_buffers_as_a_plain_loop_does() -> None:
    noted = Noted()
    run = train(Normed(), pl.Asynchronous(), pl.ProcessFleet(2), 8, noted)
    expected = plain(run, noted.drawn, Normed()).state_dict()
    torch.testing.assert_close(dict(run.model.state_dict()), dict(expected), rtol=1e-4, atol=1e-5)


def accuracy(model: nn.Module) -> float:
    return float((model.eval()(X).argmax(dim=1) == Y).float().mean())


def with_fresh_statistics(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
            module.momentum = None
    model.train()
    with torch.no_grad():
        model(X)
    return model


@pytest.mark.parametrize(
    ("strategy", "workers", "updates", "tracked"),
    [
        (pl.Asynchronous(), 16, 160, 160),
        (pl.Asynchronous(), 40, 160, 160),  # where statistics that forget those of the download grow without bound
        (pl.Grouped([range(k, k + 2) for k in range(0, 16, 2)]), 16, 100, 100),
        (pl.ModelAveraging(8, waits=pl.Asynchronous()), 4, 30, 8 * 30),
    ],
    ids=repr,
)
def test_every_mini_batch_is_tracked_and_the_statistics_are_those_of_the_model(
    strategy: pl.strategy.Strategy, workers: int, updates: int, tracked: int
) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    trained = train(model, strategy, pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers), updates).model
    assert trained.get_buffer("1.num_batches_tracked").item() == tracked
    assert accuracy(trained) > 0.8
    assert abs(accuracy(trained) - accuracy(with_fresh_statistics(trained))) < 0.02


PULLING = [
    (pl.FedAsync(1), 1),
    (pl.FedAsync(3, mixing=0.2), 3),
    (pl.FedAsync(2, waits=pl.FastestK(2, stop_late=False)), 2),
    (pl.EASGD(1), 1),
    (pl.EASGD(3, elasticity=0.1), 3),
    (pl.EASGD(2, waits=pl.Synchronous()), 2),
]


@pytest.mark.parametrize(("strategy", "steps"), PULLING, ids=repr)
def test_a_model_that_is_pulled_by_a_fraction_counts_whole_mini_batches(
    strategy: pl.strategy.Strategy, steps: int
) -> None:
    run = train(Normed(), strategy, pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=4), 40)
    for name in ("passes", "layers.1.num_batches_tracked", "layers.3.num_batches_tracked"):
        assert run.model.get_buffer(name).item() == 40 * steps


@pytest.mark.parametrize("strategy", [pl.FedAsync(2), pl.EASGD(2)], ids=repr)
def test_statistics_without_a_momentum_are_the_mean_of_all_mini_batches_of_a_model_that_is_pulled(
    strategy: pl.strategy.Strategy,
) -> None:
    model, noted = nn.Sequential(nn.BatchNorm1d(10, momentum=None), nn.Linear(10, 5)), Noted()
    run = train(model, strategy, pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=3), 15, noted)
    used = [batch for step in steps_of(run, noted.drawn) for _, batches, _ in step for batch in batches]
    assert len(used) == 30
    mean = torch.stack([X[batch].mean(0) for batch in used]).mean(0)
    torch.testing.assert_close(run.model.get_buffer("0.running_mean"), mean)


@pytest.mark.parametrize("strategy", [pl.FedAsync(2), pl.EASGD(2)], ids=repr)
def test_counts_of_a_model_that_is_pulled_go_on_in_a_resumed_run(
    strategy: pl.strategy.Strategy, tmp_path: Path
) -> None:
    def run(updates: int, name: str, *, resume: bool = False) -> dict[str, Tensor]:
        found = pl.train(
            task(Normed()), strategy=strategy, fleet=pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=3),
            optimizer=lambda p: torch.optim.SGD(p, lr=RATE), batch_size=16, stop=pl.Stop(updates=updates),
            directory=tmp_path / name, resume=resume, progress=False,
        )  # fmt: skip
        return dict(found.model.named_buffers())

    whole = run(12, "whole")
    run(5, "cut")
    torch.testing.assert_close(run(12, "cut", resume=True), whole, rtol=0, atol=0)


def test_a_fraction_of_a_flag_sets_it_and_what_is_no_count_is_pulled() -> None:
    model = nn.Module()
    model.register_buffer("flag", torch.tensor(False))
    model.register_buffer("count", torch.tensor(7))
    model.register_buffer("total", torch.tensor(1.0))
    began, own = [torch.tensor(False), torch.tensor(5), torch.tensor(9.0)], [torch.tensor(True), torch.tensor(8)]
    change = BufferChange(Fraction(1, 10), began, [*own, torch.tensor(6.0)])
    ModelState(model).move_buffers([change], fresh=False, pulled=True)
    assert (model.get_buffer("flag").item(), model.get_buffer("count").item()) == (True, 10)
    assert model.get_buffer("total").item() == pytest.approx(1.5)


def test_a_model_with_a_counter_alone_counts_every_update() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(10, 5)
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

        def forward(self, inputs: Tensor) -> Tensor:
            self.get_buffer("passes").add_(int(self.training))
            return torch.as_tensor(self.layer(inputs))

    for strategy in (pl.Synchronous(), pl.Asynchronous()):
        run = train(Counting(), strategy, pl.SimulatedFleet(pl.delays.Constant(1.0), workers=4), 12)
        assert run.model.get_buffer("passes").item() == 12


def test_whole_numbers_and_flags_move_by_the_nearest_whole_change() -> None:
    model = nn.Module()
    model.register_buffer("count", torch.tensor([10, 10, 10, 10]))
    model.register_buffer("flag", torch.tensor([False, True, False]))
    model.register_buffer("total", torch.tensor([1.0, -torch.inf]))
    state = ModelState(model)
    began = [each.clone() for each in model.buffers()]
    changes = [
        ([13, 11, 10, 9], [True, True, False], [2.0, -torch.inf]),
        ([13, 10, 10, 7], [True, False, False], [5.0, -torch.inf]),
    ]
    own = [[torch.tensor(each) for each in change] for change in changes]
    model.get_buffer("count").add_(100)  # somebody else's
    model.get_buffer("total")[0] += 100
    state.move_buffers([BufferChange(Fraction(1, 2), began, each) for each in own], fresh=False)
    assert model.get_buffer("count").tolist() == [113, 110, 110, 108]  # 0.5 to the even 0
    assert model.get_buffer("flag").tolist() == [True, True, False]
    assert model.get_buffer("total").tolist() == [103.5, -torch.inf]
