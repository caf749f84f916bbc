"""Losses whose mean is not the plain mean over samples: evaluated, observed, chosen by and computed in blocks right.

The truth in these tests is the loss itself, called once with the outputs and targets of all samples concerned.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import paceline as pl
from paceline.data.samples import DatasetSamples, Samples, TensorSamples
from paceline.fleets.base import Fleet
from paceline.learning import loss as losses
from paceline.learning.arena.arena import Layout, ParameterArena
from paceline.learning.gradients.work import GradientWork
from paceline.learning.loss import Loss, LossOfAll, SampleLoss

WEIGHT = torch.tensor([0.2, 1.0, 6.0])


def data(samples: int, ignored: float = 0.3, pixels: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Sorted by class, so that no two parts of them are alike; some targets are to be ignored."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 5, generator=generator)
    y = torch.randint(0, 3, (samples, *pixels), generator=generator).sort(dim=0).values
    y[: samples // 2][torch.rand((samples // 2, *pixels), generator=generator) < ignored] = -100
    return x, y


def model() -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Linear(5, 3)


def own_reduction(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Leaves out what is ignored: a mean over samples only for batches without such targets."""
    each = functional.cross_entropy(outputs, targets, reduction="none")
    return each if reduction == "none" else each.sum() / (targets >= 0).sum()


def scalar(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, weight=WEIGHT)


def of_the_worst(outputs: Tensor, targets: Tensor) -> Tensor:
    """No mean of anything."""
    return functional.cross_entropy(outputs, targets.clamp_min(0), reduction="none").topk(3).values.mean()


LOSSES: dict[str, Loss] = {
    "plain": functional.cross_entropy,
    "class weights": nn.CrossEntropyLoss(weight=WEIGHT),
    "weights and smoothing": nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2),
    "partial": partial(functional.cross_entropy, weight=WEIGHT),
    "own reduction": own_reduction,
    "own number": scalar,
    "of the worst": of_the_worst,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_an_evaluation_is_the_loss_of_all_samples_at_once(name: str) -> None:
    x, y = data(5000)  # more than pass through the model at once
    net, loss = model(), LOSSES[name]
    task = pl.Task(net, loss, train=data(8), test=(x, y))
    with torch.no_grad():
        expected = float(loss(net(x), y))
    assert task.evaluator()(net)["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_target_that_is_ignored_is_neither_right_nor_wrong() -> None:
    x, y = data(5000)
    net = model()
    told = y >= 0
    expected = float((net(x).argmax(dim=1) == y)[told].double().mean())
    metrics = pl.Task(net, functional.cross_entropy, train=(x, y)).evaluator()(net)
    assert metrics["accuracy"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["own number", "own reduction", "of the worst"])
def test_a_target_below_0_is_no_class_whatever_the_loss(name: str) -> None:
    x, y = data(5000)
    net = model()
    told = y >= 0
    expected = float((net(x).argmax(dim=1) == y)[told].double().mean())
    metrics = pl.Task(net, LOSSES[name], train=(x, y)).evaluator()(net)
    assert metrics["accuracy"] == pytest.approx(expected, rel=1e-6)


def test_pixels_that_are_ignored_weigh_nothing() -> None:
    x, y = data(60, pixels=(4,))
    outputs = torch.randn(60, 3, 4, generator=torch.Generator().manual_seed(2))
    loss = nn.CrossEntropyLoss(weight=WEIGHT)
    of_all = LossOfAll(SampleLoss(loss, TensorSamples(x, y)))
    for part in (slice(0, 10), slice(10, 13), slice(13, 60)):
        of_all.add(outputs[part], y[part], part.stop - part.start)
    assert of_all.value() == pytest.approx(float(loss(outputs, y)), rel=1e-6)


def test_outputs_of_any_nesting_are_joined() -> None:
    """A loss of two outputs in a dictionary, of which nothing is known but its number."""
    x, y = data(30, ignored=0.0)

    def loss(outputs: dict[str, Any], targets: Tensor) -> Tensor:
        value: Tensor = (outputs["a"].mean() * outputs["b"][0].mean() - targets.float().mean()).square()
        return value

    of_all = LossOfAll(SampleLoss(loss, TensorSamples(x, y)))
    for part in (slice(0, 10), slice(10, 12), slice(12, 30)):
        room = x[part].clone()
        of_all.add({"a": room, "b": (room,)}, y[part], part.stop - part.start)
        room.zero_()  # as when outputs lie where the next inputs come to lie
    assert of_all.value() == pytest.approx(float(loss({"a": x, "b": (x,)}, y)), rel=1e-5)


def test_outputs_that_cannot_be_joined_are_said(caplog: pytest.LogCaptureFixture) -> None:
    x, y = data(30, ignored=0.0)
    of_all = LossOfAll(SampleLoss(lambda outputs, targets: outputs.square().sum(), TensorSamples(x, y)))
    with caplog.at_level(logging.WARNING, "paceline"):
        of_all.add(torch.tensor(2.0), y[:10], 10)
        of_all.add(torch.tensor(4.0), y[10:], 20)
        assert of_all.value() == pytest.approx((4 * 10 + 16 * 20) / 30)
    assert "cannot be joined" in caplog.text


def test_outputs_that_are_too_many_are_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "GATHERED", 100)
    x, y = data(30, ignored=0.0)
    of_all = LossOfAll(SampleLoss(lambda outputs, targets: outputs.square().sum(), TensorSamples(x, y)))
    with caplog.at_level(logging.WARNING, "paceline"):
        for part in (slice(0, 10), slice(10, 30)):
            of_all.add(x[part], y[part], part.stop - part.start)
        of_all.value()
    assert "more than" in caplog.text


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
@pytest.mark.parametrize("name", ["plain", "class weights"])
def test_the_training_loss_is_that_of_all_samples_used(name: str, evaluation: str) -> None:
    """With a learning rate of 0 every batch is seen by the same model: after one epoch, the loss of all."""
    x, y = data(64)
    loss, net = LOSSES[name], model()
    for strategy in (pl.Synchronous(), pl.ModelAveraging(every=2)):
        run = pl.train(
            pl.Task(net, loss, train=(x, y)),
            strategy=strategy,
            fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2, evaluation=evaluation),  # type: ignore[arg-type]
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
            stop=pl.Stop(epochs=1),
            every=pl.Every(updates=1000),
            batch_size=4,
            progress=False,
        )
        with torch.no_grad():
            expected = float(loss(net(x), y))
        assert run.history[-1].training_loss == pytest.approx(expected, rel=1e-5)


def test_a_batch_of_which_all_targets_are_ignored_changes_nothing() -> None:
    x, y = data(64)
    y[:] = -100
    before = model()
    for strategy in (pl.Synchronous(), pl.ModelAveraging(every=2)):
        run = pl.train(
            pl.Task(before, functional.cross_entropy, train=(x, y)),
            strategy=strategy,
            fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            stop=pl.Stop(updates=2),
            batch_size=4,
            progress=False,
        )
        assert run.ended == "updates"
        assert not run.non_finite
        assert torch.equal(run.model.state_dict()["weight"], before.weight)


def test_the_best_local_model_is_chosen_by_the_loss_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """By means of parts the other model would look better."""
    monkeypatch.setattr("paceline.learning.task.EVALUATED_AT_ONCE", 4)
    x, y = data(64, ignored=0.3)
    loss = LOSSES["class weights"]
    run = pl.train(
        pl.Task(model(), loss, train=(x, y)),
        strategy=pl.FinalEnsemble(steps=4),
        fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=4),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        batch_size=4,
        progress=False,
    )
    members = list(run.model.get_submodule("members").children())
    assert run.local is not None
    with torch.no_grad():
        of_all = [float(loss(member(x), y)) for member in members]
        by_parts = [
            np.mean([float(loss(member(x[i : i + 4]), y[i : i + 4])) for i in range(0, 64, 4)]) for member in members
        ]
        assert np.isfinite(by_parts).all()
        assert np.argmin(by_parts) != np.argmin(of_all)
        assert float(loss(run.local(x), y)) == min(of_all)


class Listed:
    """The same as a data set."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]


def gradient_of(
    samples: Samples, loss: Loss, batch: list[int], blocks: tuple[int, int], net: nn.Module
) -> tuple[Tensor, float]:
    """The gradient that a worker hands in of a mini-batch in so many blocks after so many, and the loss it tells."""
    units, done = blocks
    parameters = list(net.parameters())
    layout = Layout(parameters, [], len(batch))
    arena = ParameterArena(layout, torch.zeros(2 * layout.stride, dtype=torch.uint8))
    for own, value in zip(arena[0].parameters, parameters, strict=True):
        own.copy_(value.detach())
    work = GradientWork(net, parameters, samples, SampleLoss(loss, samples))
    for _ in range(2):  # the second time it is known what kind of loss it is
        made, report = work.compute(
            arena[0], arena[1], np.array(batch), units=units, seed=0, go_on=lambda block: block < done
        )
        assert made == done
    mean = report.loss_sum / report.loss_weight if report.loss_weight else float("nan")
    return torch.cat([values.flatten() for values in arena[1].parameters]), mean


def test_a_worker_that_is_recalled_before_its_first_block_brings_nothing() -> None:
    x, y = data(64)
    net = model()
    parameters = list(net.parameters())
    layout = Layout(parameters, [], 8)
    arena = ParameterArena(layout, torch.zeros(2 * layout.stride, dtype=torch.uint8))
    samples = TensorSamples(x, y)
    work = GradientWork(net, parameters, samples, SampleLoss(functional.cross_entropy, samples))
    for units in (1, 4):
        made, report = work.compute(arena[0], arena[1], np.arange(8), units=units, seed=0, go_on=lambda _: False)
        assert (made, report.losses, report.loss_sum, report.norm, report.loss_weight) == (0, 0, 0.0, 0.0, 0.0)
        assert not any(values.any() for values in arena[1].parameters)


class Counting(nn.Module):
    """One value a sample, and how often it, or a copy of it, was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.asked.append(len(outputs))
        return functional.cross_entropy(outputs, targets, reduction="none")


def test_a_module_of_ones_own_is_asked_once_a_batch() -> None:
    """After the first batch, which shows that its mean is meant."""
    x, y = data(64)
    y = y.clamp(min=0)
    own, outputs = Counting(), model()(x)
    loss = SampleLoss(own, TensorSamples(x, y))
    assert loss.separable(outputs, y)
    own.asked.clear()
    for _ in range(3):
        found = loss.of(outputs, y, 64)
        assert found.each is not None
        assert torch.equal(found.mean(), functional.cross_entropy(outputs, y, reduction="none").mean())
    assert own.asked == [64] * 3


def test_batches_of_several_sizes_each_keep_their_memory() -> None:
    """As the last, smaller one of an epoch does: nothing is allocated after the first epoch."""
    x, y = data(64)
    samples = TensorSamples(x, y)
    first = [samples.fetch(np.arange(size))[0].data_ptr() for size in range(1, 9)]
    for size, place in enumerate(first, start=1):
        inputs, targets = samples.fetch(np.arange(size)[::-1].copy())
        assert inputs.data_ptr() == place
        assert torch.equal(inputs, x[:size].flip(0))
        assert torch.equal(targets, y[:size].flip(0))


@pytest.mark.parametrize("of", [TensorSamples, DatasetSamples])
@pytest.mark.parametrize(("units", "done"), [(4, 4), (4, 3), (1, 1)])
@pytest.mark.parametrize("name", LOSSES)
def test_blocks_add_up_to_the_gradient_of_the_mini_batch(
    name: str, units: int, done: int, of: Callable[..., Samples]
) -> None:
    """Of what was computed of it; a slot holds it times its share of the samples."""
    x, y = data(64)
    samples: Samples = TensorSamples(x, y) if of is TensorSamples else DatasetSamples(Listed(x, y))
    batch = [0, 40, 1, 60, 2, 33, 63, 3, 41, 62, 20, 21]  # 12 samples of all classes, some ignored
    loss, net = LOSSES[name], model()
    found, told = gradient_of(samples, loss, batch, (units, done), net)
    computed = batch[: len(batch) // units * done]
    net.zero_grad()
    expected = loss(net(x[computed]), y[computed])
    expected.backward()  # type: ignore[no-untyped-call]
    gradient = torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])
    torch.testing.assert_close(found * len(batch) / len(computed), gradient, rtol=1e-5, atol=1e-6)
    assert told == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize("name", ["class weights", "own number"])
def test_blocks_on_processes_train_as_whole_batches_do(name: str) -> None:
    """All are waited for, so nobody is recalled: 5 updates in 4 blocks are those of the simulator in one."""
    x, y = data(64)

    def trained(fleet: Fleet, blocks: int) -> tuple[Tensor, list[float]]:
        run = pl.train(
            pl.Task(model(), LOSSES[name], train=(x, y)),
            strategy=pl.LiveCompensation(quorum=2, blocks=blocks),
            fleet=fleet,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.3),
            stop=pl.Stop(updates=5),
            batch_size=8,
            progress=False,
        )
        return run.model.state_dict()["weight"], [row.training_loss for row in run.history[1:]]

    simulated, seen = trained(pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2), 1)
    real, told = trained(pl.ProcessFleet(workers=2), 4)
    torch.testing.assert_close(real, simulated, rtol=1e-5, atol=1e-6)
    assert told == pytest.approx(seen, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda outputs, targets: None, "the loss returned None, no tensor"),
        (lambda outputs, targets: 1.5, "the loss returned 1.5, no tensor"),
        (lambda outputs, targets: torch.tensor(1.0), "the loss depends on no trained parameter"),
    ],
)
def test_losses_that_cannot_be_trained_are_refused(loss: Any, said: str) -> None:
    with pytest.raises(pl.ConfigError, match=said):
        pl.train(
            pl.Task(nn.Linear(4, 2), loss, (torch.ones(8, 4), torch.zeros(8, dtype=torch.int64))), strategy="ssgd",
            fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2), stop=pl.Stop(updates=2), batch_size=4,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1), progress=False,
        )  # fmt: skip
