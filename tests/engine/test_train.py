"""Training: the same bits from the same seed, the arithmetic of torch, and an orderly end, whatever happens."""

import copy
import json
import logging
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.utils.data import TensorDataset

import paceline as pl
from paceline.core.messages import Ticket
from paceline.fleets.base import Fleet
from paceline.learning.loss import Loss
from paceline.storage.description import describe
from paceline.trace.format import NonFinite
from support import repeatable
from support.digits import Noted, digits, digits_task, linear, rows, train, weights
from support.processes import PATIENCE
from support.quadratic import Consecutive, half_square, quadratic
from support.updates import update_times, updates

RANDOM = pl.delays.ShiftedExponential(0.05, 0.02)
TESTS = Path(__file__).parents[1]
STRATEGIES: list[pl.strategy.Strategy] = [
    pl.Synchronous(),
    pl.Asynchronous(),
    pl.FastestK(3),
    pl.FastestK(3, stop_late=False),
    pl.LiveCompensation(3, blocks=4),
    pl.LiveCompensation(3, blocks=4, recall=False),
    pl.LiveCompensation(3, blocks=2, scale=False, warm_up=2),
    pl.Grouped([[0, 1], [2, 3, 4]]),
    pl.Grouped([[0, 1], [2, 3, 4]], inside=pl.LiveCompensation(2, blocks=2)),
]


def equal_fleet(workers: int = 3) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers)


def random_fleet(workers: int = 5, **settings: Any) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(RANDOM, workers=workers, **settings)


def sgd(lr: float = 0.1, **settings: Any) -> Callable[[Iterable[nn.Parameter]], Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **settings)


def by_hand(
    model: nn.Module,
    recorded: Noted,
    *,
    loss: Loss = cross_entropy,
    rounds: int,
    workers: Sequence[int] = (0, 1, 2),
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    data: tuple[Tensor, Tensor] | None = None,
) -> nn.Module:
    """Full-SGD as anybody would write it down, on the batches of a run."""
    x, y = digits()[0] if data is None else data
    model = copy.deepcopy(model)
    steps = (optimizer or sgd())(model.parameters())
    schedule = scheduler(steps) if scheduler else None
    for number in range(rounds):
        steps.zero_grad()
        batches = [recorded.batch(worker, number) for worker in workers]
        torch.stack([loss(model(x[batch]), y[batch]).mean() for batch in batches]).mean().backward()  # type: ignore[no-untyped-call]
        steps.step()
        if schedule:
            schedule.step()
    return model


# The example of the documentation


def test_the_snippet_runs_as_written_and_makes_11_updates() -> None:
    (x, y), (x_test, y_test) = ((a.float(), b) for a, b in digits())
    task = pl.Task(
        model=torch.nn.Linear(64, 10), loss=torch.nn.functional.cross_entropy, train=(x, y), test=(x_test, y_test)
    )
    run = pl.train(
        task,
        strategy=pl.Grouped([[0, 1, 2, 3], [4, 5, 6, 7], list(range(8, 16))]),
        fleet=pl.SimulatedFleet(
            delays=[pl.delays.Constant(1.0)] * 4 + [pl.delays.Constant(2.0)] * 4 + [pl.delays.Constant(3.0)] * 8
        ),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=32,
        stop=pl.Stop(seconds=6.0),
        seed=0,
    )
    assert run.history[-1].updates == 11
    assert run.history[-1].seconds == 6.0
    assert run.mean_staleness == pytest.approx(19 / 11, abs=1e-12)
    assert run.max_staleness == 5
    assert isinstance(run.model.weight, Tensor)
    assert run.model.weight.norm().isfinite()
    assert run.ended == "seconds"
    assert run.history[-1].loss < run.history[0].loss


# The same seed, the same bits


class Dropping(nn.Module):
    """It draws in evaluations too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16).double(), nn.Linear(16, 10).double()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.tanh(self.first(inputs)), 0.5)  # training=True
        return self.last(hidden)  # type: ignore[no-any-return]


def drawn(model: nn.Module, batch: object) -> Mapping[str, float]:
    return {"torch": float(torch.rand(())), "numpy": float(np.random.rand()), "python": random.random()}


def test_evaluations_that_draw_repeat_and_change_nothing_of_what_is_trained(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        task = pl.Task(Dropping(), cross_entropy, train=digits()[0], metrics=drawn)
    settings: dict[str, Any] = {
        "strategy": pl.Synchronous(), "fleet": equal_fleet(4), "optimizer": lambda p: torch.optim.SGD(p, lr=0.1),
        "batch_size": 8,
    }  # fmt: skip

    def run(every: int, **options: Any) -> pl.Run:
        stop = pl.Stop(updates=12)
        return pl.train(task, stop=stop, every=pl.Every(updates=every), progress=False, **settings, **options)

    often, seldom = run(3, directory=tmp_path / "often"), run(12)
    assert often.evaluation == "fused"
    assert torch.equal(weights(often.model), weights(seldom.model))
    assert [row.metrics for row in often.history[:: len(often.history) - 1]] == [row.metrics for row in seldom.history]
    assert len({row.metrics["numpy"] for row in often.history}) == len(often.history)
    assert run(3, seed=1).history[-1].metrics["python"] != often.history[-1].metrics["python"]
    assert pl.replay(tmp_path / "often", task, **settings).differences == {}


def test_one_seed_gives_the_same_bytes_here_and_in_another_process_and_another_seed_does_not(tmp_path: Path) -> None:
    runs = {name: repeatable.run(tmp_path / name, seed) for name, seed in (("one", 5), ("two", 5), ("other", 6))}
    subprocess.run(
        [sys.executable, "-m", "support.repeatable", str(tmp_path / "process"), "5"],
        cwd=TESTS,
        check=True,
        timeout=PATIENCE,
    )
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(repeatable.FILES)
    for name in repeatable.FILES:
        content = (tmp_path / "one" / name).read_bytes()
        assert (tmp_path / "two" / name).read_bytes() == content, name
        assert (tmp_path / "process" / name).read_bytes() == content, name
        assert (tmp_path / "other" / name).read_bytes() != content, name
    assert rows(runs["one"]) == rows(runs["two"]) != rows(runs["other"])
    assert torch.equal(weights(runs["one"].model), weights(runs["two"].model))


def test_a_directory_holds_the_run(tmp_path: Path) -> None:
    run = repeatable.run(tmp_path / "new" / "run", seed=5)
    assert run.directory == tmp_path / "new" / "run"
    saved = load_file(run.directory / "model.safetensors")
    assert saved.keys() == run.model.state_dict().keys()
    assert all(torch.equal(saved[name], value) for name, value in run.model.state_dict().items())
    metrics = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert [tuple(row.values()) for row in metrics] == rows(run)
    assert list(metrics[0]) == list(run.history[0].numbers())
    summary = json.loads((run.directory / "summary.json").read_text())
    assert summary == json.loads(json.dumps(run.summary()))
    assert (summary["ended"], summary["updates"]) == ("updates", 30)
    config = json.loads((run.directory / "config.json").read_text())
    assert (config["seed"], config["batch_size"], config["strategy"]) == (
        5,
        16,
        describe(pl.Grouped([[0, 1, 2], [3, 4, 5, 6]], inside=pl.LiveCompensation(2, blocks=4))),
    )
    assert list(pl.read_trace(run.directory)) == list(run.trace)


def test_a_run_in_memory_is_the_run_on_disk(tmp_path: Path) -> None:
    on_disk, in_memory = (
        pl.train(
            digits_task(),
            strategy=pl.FastestK(3),
            fleet=random_fleet(),
            optimizer=sgd(),
            stop=pl.Stop(updates=10),
            directory=directory,
        )
        for directory in (tmp_path, None)
    )
    assert torch.equal(weights(on_disk.model), weights(in_memory.model))
    assert list(on_disk.trace) == list(in_memory.trace)
    assert in_memory.directory is None


# Lazy and fused evaluation


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_fused_and_exact_evaluation_agree(strategy: pl.strategy.Strategy) -> None:
    """To rounding: 1e-10, in double precision."""
    fused, exact = (
        train(digits_task(), strategy, random_fleet(evaluation=evaluation), updates=25, lr=0.5)
        for evaluation in ("fused", "exact")
    )
    torch.testing.assert_close(weights(fused.model), weights(exact.model), rtol=0, atol=1e-10)
    assert list(fused.trace) == list(exact.trace)
    for one, two in zip(fused.history, exact.history, strict=True):
        assert one.numbers() == pytest.approx(two.numbers(), abs=1e-9, nan_ok=True)


def test_fused_and_exact_evaluation_agree_where_one_pass_is_not_enough() -> None:
    """15 workers with 100 samples each, more than one fused pass takes."""
    fused, exact = (
        train(digits_task(), pl.Synchronous(), random_fleet(15, evaluation=how), updates=4, batch_size=100)
        for how in ("fused", "exact")
    )
    torch.testing.assert_close(weights(fused.model), weights(exact.model), rtol=0, atol=1e-10)
    assert fused.history[-1].samples == exact.history[-1].samples == 4 * 1500


class Counting(nn.Module):
    """Counts the samples that are passed through it in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.samples = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.samples += len(inputs)
        return torch.as_tensor(self.linear(inputs))


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
@pytest.mark.parametrize(
    ("strategy", "gradients"),
    [
        (pl.FastestK(3), 3 * 20),
        (pl.FastestK(3, stop_late=False), 3 * 20),
        (pl.Synchronous(), 5 * 20),
        (pl.Asynchronous(), 20),
    ],
    ids=repr,
)
def test_dropped_gradients_are_never_computed(strategy: pl.strategy.Strategy, gradients: int, evaluation: str) -> None:
    run = train(digits_task(Counting()), strategy, random_fleet(evaluation=evaluation), updates=20)
    assert run.model.samples == 32 * gradients
    assert run.history[-1].samples == 32 * gradients


def test_lgc_computes_every_gradient_once() -> None:
    """The fastest of a round are used twice, and computed once; the late ones of the last round are not computed."""
    run = train(digits_task(Counting()), pl.LiveCompensation(3), random_fleet(recall="complete"), updates=20)
    assert run.model.samples == 32 * (3 * 20 + 2 * 19)
    assert run.history[-1].samples == 32 * (3 * 20 + 2 * 19)


# Mini-batches


def test_mini_batches_are_identical_across_strategies() -> None:
    """Every worker goes through one sequence, however far it comes; one that was stopped begins again where it was."""
    recorded: list[Noted] = []
    for strategy in STRATEGIES:
        recorded.append(Noted())
        train(digits_task(), strategy, random_fleet(recall="complete"), updates=12, sampling=recorded[-1])
    for worker in range(5):
        sequences = []
        for record in recorded:
            drawn = record.draws[worker]
            sequences.append([batch for i, batch in enumerate(drawn) if i == 0 or batch != drawn[i - 1]])
        longest = max(sequences, key=len)
        assert len(longest) >= 12
        for sequence in sequences:
            assert sequence == longest[: len(sequence)]


def test_a_stopped_worker_gets_its_batch_again() -> None:
    """Worker 2 is always late: it is given the same batch ten times; the others never see a batch twice in an epoch."""
    recorded = Noted()
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.0), pl.delays.Constant(5.0)])
    train(digits_task(), pl.FastestK(2), fleet, updates=10, sampling=recorded)
    first = recorded.draws[2][0]
    assert recorded.draws[2] == [first] * len(recorded.draws[2])
    assert recorded.returns == {2: [first] * (len(recorded.draws[2]) - 1)}
    assert len(recorded.draws[2]) in (10, 11)
    used = [sample for batch in recorded.draws[0][:10] for sample in batch]
    assert len(set(used)) == len(used)


def test_what_arrives_late_and_is_dropped_is_given_again() -> None:
    recorded = Noted()
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(1.0), pl.delays.Constant(1.5)])
    train(digits_task(), pl.FastestK(2, stop_late=False), fleet, updates=10, sampling=recorded)
    assert len(recorded.draws[2]) >= 6
    assert {tuple(batch) for batch in recorded.draws[2]} == {tuple(recorded.draws[2][0])}


def test_the_blocks_that_were_not_done_are_given_first() -> None:
    """Worker 1 does 3 of 4 blocks (24 of 32 samples): its next batch begins with the other 8."""
    recorded = Noted()
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(2.0)], recall="block")
    train(digits_task(), pl.LiveCompensation(1, blocks=4), fleet, updates=2, sampling=recorded)
    first, second = recorded.draws[1][:2]
    assert recorded.returns[1][0] == first[24:]
    assert second[:8] == first[24:]
    assert not set(second[8:]) & set(first)


def test_a_worker_that_leaves_gives_its_batch_back() -> None:
    recorded = Noted()
    fleet = pl.SimulatedFleet(
        [pl.delays.Constant(1.0), pl.delays.Constant(1.0)], changes=[pl.Left(0.5, 1), pl.Joined(1.5, 1)]
    )
    train(digits_task(), pl.Synchronous(), fleet, updates=3, sampling=recorded)
    assert recorded.draws[1][1] == recorded.draws[1][0]


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
def test_the_losses_of_single_samples_are_handed_to_the_sampling(evaluation: str) -> None:
    """Those of the first round, at the initial model, to 1e-12; and one observation for every gradient used."""
    recorded = Noted()
    run = train(digits_task(), pl.Synchronous(), random_fleet(evaluation=evaluation), updates=4, sampling=recorded)
    (x, y), _ = digits()
    for worker in range(5):
        assert [indices for indices, _ in recorded.losses[worker]] == recorded.draws[worker][:4]
        indices, losses = recorded.losses[worker][0]
        expected = cross_entropy(linear()(x[indices]), y[indices], reduction="none")
        assert losses == pytest.approx(expected.tolist(), abs=1e-12)
    first = [loss for worker in range(5) for loss in recorded.losses[worker][0][1]]
    assert run.history[1].training_loss == pytest.approx(sum(first) / len(first), abs=1e-12)


def test_under_lgc_the_losses_of_a_sample_are_observed_once_and_only_if_it_was_done() -> None:
    recorded = Noted()
    fleet = pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(2.0)], recall="block")
    train(digits_task(), pl.LiveCompensation(1, blocks=4), fleet, updates=3, sampling=recorded)
    assert [indices for indices, _ in recorded.losses[0]] == recorded.draws[0][:3]
    assert recorded.losses[1][0][0] == recorded.draws[1][0][:24]
    assert [len(losses) for _, losses in recorded.losses[1]] == [len(i) for i, _ in recorded.losses[1]]


def test_a_dataset_trains_as_the_tensors_it_is_made_of() -> None:
    (x, y), test = digits()
    tensors, dataset = (
        train(pl.Task(linear(), cross_entropy, train=data, test=test), pl.FastestK(3), random_fleet(), updates=8)
        for data in ((x, y), TensorDataset(x, y))
    )
    assert torch.equal(weights(tensors.model), weights(dataset.model))
    assert rows(tensors) == rows(dataset)


# Against torch


@pytest.mark.parametrize(
    "optimizer",
    [
        sgd(),
        sgd(momentum=0.9),
        sgd(momentum=0.9, nesterov=True, weight_decay=5e-3),
        sgd(momentum=0.9, dampening=0.5),
        sgd(weight_decay=5e-3),
        lambda parameters: torch.optim.SGD(parameters, lr=-0.1 * -1, maximize=True),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    ],
    ids=["sgd", "momentum", "nesterov", "dampening", "decay", "maximize", "adam", "adamw", "rmsprop"],
)
@pytest.mark.parametrize("evaluation", ["fused", "exact"])
def test_synchronous_training_is_the_loop_one_would_write(
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer], evaluation: str
) -> None:
    """To 1e-6, after 15 updates."""
    recorded = Noted()
    run = pl.train(
        digits_task(),
        strategy=pl.Synchronous(),
        fleet=random_fleet(3, evaluation=evaluation),
        optimizer=optimizer,
        stop=pl.Stop(updates=15),
        sampling=recorded,
    )
    expected = by_hand(linear(), recorded, rounds=15, optimizer=optimizer)
    torch.testing.assert_close(weights(run.model), weights(expected), rtol=0, atol=1e-6)
    assert (weights(run.model) - weights(linear())).abs().max() > 1e-3


def test_asynchronous_training_is_the_loop_one_would_write() -> None:
    """Each gradient is that of the model its worker downloaded: to 1e-10, after 40 updates."""
    recorded = Noted()
    run = train(digits_task(), pl.Asynchronous(), random_fleet(4), updates=40, sampling=recorded)
    (x, y), _ = digits()
    model = linear()
    versions, drawn = [copy.deepcopy(model)], dict.fromkeys(range(4), 0)
    for update in updates(run.trace):
        (ticket,) = update.step.weights
        batch = recorded.batch(ticket.worker, drawn[ticket.worker])
        drawn[ticket.worker] += 1
        old = versions[ticket.version]
        gradients = torch.autograd.grad(cross_entropy(old(x[batch]), y[batch]), list(old.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
        versions.append(copy.deepcopy(model))
    torch.testing.assert_close(weights(run.model), weights(model), rtol=0, atol=1e-10)
    assert max(age for update in updates(run.trace) for age in update.ages) >= 3


def test_the_scheduler_steps_once_an_update() -> None:
    recorded, schedule = Noted(), lambda optimizer: StepLR(optimizer, step_size=2, gamma=0.5)
    run = pl.train(
        digits_task(),
        strategy=pl.Synchronous(),
        fleet=random_fleet(3),
        optimizer=sgd(momentum=0.9),
        scheduler=schedule,
        stop=pl.Stop(updates=9),
        sampling=recorded,
    )
    expected = by_hand(linear(), recorded, rounds=9, optimizer=sgd(momentum=0.9), scheduler=schedule)
    constant = by_hand(linear(), recorded, rounds=9, optimizer=sgd(momentum=0.9))
    torch.testing.assert_close(weights(run.model), weights(expected), rtol=0, atol=1e-10)
    assert (weights(run.model) - weights(constant)).abs().max() > 1e-3


def one_step(clip_norm: float | None, fleet: Fleet | None = None) -> Tensor:
    run = pl.train(
        digits_task(),
        strategy=pl.Synchronous(),
        fleet=fleet or equal_fleet(),
        optimizer=sgd(1.0),
        stop=pl.Stop(updates=1),
        clip_norm=clip_norm,
    )
    return weights(run.model) - weights(linear())


def test_a_gradient_longer_than_the_clipping_norm_is_shortened_to_it() -> None:
    plain, clipped = one_step(None), one_step(0.125)
    assert plain.norm() > 0.2
    assert clipped.norm().item() == pytest.approx(0.125, rel=1e-9)
    torch.testing.assert_close(clipped, plain * 0.125 / plain.norm(), rtol=0, atol=1e-12)


def test_processes_clip_what_the_mean_of_their_gradients_is() -> None:
    plain, clipped = (one_step(norm, pl.ProcessFleet(workers=2)) for norm in (None, 0.125))
    assert plain.norm() > 0.2
    torch.testing.assert_close(clipped, plain * 0.125 / plain.norm(), rtol=0, atol=1e-12)


def test_a_gradient_shorter_than_the_clipping_norm_is_left_alone() -> None:
    assert torch.equal(one_step(100.0), one_step(None))


def square_of_the_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets).square()


def own_vector(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - nn.functional.one_hot(targets, 10)).square().sum(dim=1)


CLASS_WEIGHTS = torch.arange(1, 11, dtype=torch.float64)
LOSSES: dict[str, Loss] = {
    "function": cross_entropy,
    "module": nn.CrossEntropyLoss(),
    "label smoothing": nn.CrossEntropyLoss(label_smoothing=0.1),
    "class weights": nn.CrossEntropyLoss(weight=CLASS_WEIGHTS),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "partial": partial(cross_entropy, label_smoothing=0.2),
    "own scalar": square_of_the_mean,
    "own vector": own_vector,
}


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
@pytest.mark.parametrize("name", LOSSES)
def test_any_loss_trains_as_in_a_loop_by_hand(name: str, evaluation: str) -> None:
    """To 1e-10, after 10 updates, whether the loss is the mean of the samples' losses or not."""
    recorded, loss = Noted(), LOSSES[name]
    run = train(
        digits_task(loss=loss),
        pl.Synchronous(),
        random_fleet(3, evaluation=evaluation),
        updates=10,
        lr=0.01,
        sampling=recorded,
    )
    expected = by_hand(linear(), recorded, loss=loss, rounds=10, optimizer=sgd(0.01))
    torch.testing.assert_close(weights(run.model), weights(expected), rtol=0, atol=1e-10)
    per_sample = name in ("function", "module", "label smoothing", "partial", "own vector")
    assert bool(recorded.losses) == per_sample


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
def test_targets_to_ignore_that_the_first_batch_does_not_have_are_ignored(evaluation: str) -> None:
    """Worker 0 has none of them; the batches of worker 1 are means over fewer samples."""
    (x, y), test = digits()
    y = y[:1000].clone()
    y[600:] = -100
    task = pl.Task(linear(), nn.CrossEntropyLoss(), train=(x[:1000], y), test=test)
    recorded = Noted()
    run = pl.train(
        task,
        strategy=pl.Asynchronous(),
        fleet=pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(100.0)], evaluation=evaluation),  # type: ignore[arg-type]
        optimizer=sgd(),
        stop=pl.Stop(updates=101),
        partition=Consecutive(),
        sampling=recorded,
    )
    before = train_to(task, updates=100)
    batch = recorded.batch(1, 0)
    assert 0 < (y[batch] == -100).sum() < 32
    start = linear()
    gradients = torch.autograd.grad(cross_entropy(start(x[batch]), y[batch]), list(start.parameters()))
    last = updates(run.trace)[-1].step
    assert [ticket.worker for ticket in last.weights] == [1]
    step = -0.1 * torch.cat([gradient.flatten() for gradient in gradients])
    torch.testing.assert_close(weights(run.model), before + step, rtol=0, atol=1e-10)


def train_to(task: pl.Task, updates: int) -> Tensor:
    """The weights of the run above before the slow worker comes in."""
    run = pl.train(
        task,
        strategy=pl.Asynchronous(),
        fleet=pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(100.0)]),
        optimizer=sgd(),
        stop=pl.Stop(updates=updates),
        partition=Consecutive(),
    )
    return weights(run.model)


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
def test_class_weights_count_even_if_the_first_batch_has_only_a_class_of_weight_one(evaluation: str) -> None:
    """Every worker has one class, and that of worker 0 has weight 1, where weighted and plain means agree."""
    (x, y), test = digits()
    loss = nn.CrossEntropyLoss(weight=CLASS_WEIGHTS)
    recorded = Noted()
    run = pl.train(
        pl.Task(linear(), loss, train=(x, y), test=test),
        strategy=pl.Asynchronous(),
        fleet=pl.SimulatedFleet(
            [pl.delays.Constant(1.0 + worker / 100) for worker in range(10)],
            evaluation=evaluation,  # type: ignore[arg-type]
        ),
        optimizer=sgd(),
        stop=pl.Stop(updates=2),
        partition=pl.Pathological(1),
        sampling=recorded,
    )
    start = linear()
    total = weights(start).clone()
    for worker in (0, 1):
        batch = recorded.batch(worker, 0)
        assert set(y[batch].tolist()) == {worker}
        gradients = torch.autograd.grad(loss(start(x[batch]), y[batch]), list(start.parameters()))
        total -= 0.1 * torch.cat([gradient.flatten() for gradient in gradients])
    torch.testing.assert_close(weights(run.model), total, rtol=0, atol=1e-10)


# Buffers


class Normalised(nn.Module):
    """Batch normalisation with its running statistics and its counter."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.layers = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)).double()

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(inputs))


def normalised_by_hand(recorded: Noted, rounds: Sequence[Iterable[int]]) -> nn.Module:
    """Each contributor passes its batch through a copy of its own; gradients and float buffers are averaged."""
    (x, y), _ = digits()
    model = Normalised()
    for number, contributors in enumerate(rounds):
        copies = []
        for worker in sorted(contributors):
            copies.append(copy.deepcopy(model))
            batch = recorded.batch(worker, number)
            cross_entropy(copies[-1](x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter, *own in zip(model.parameters(), *(each.parameters() for each in copies), strict=True):
                gradients = torch.stack([mine.grad for mine in own if mine.grad is not None])
                parameter.sub_(gradients.mean(dim=0), alpha=0.1)
            for buffer, *values in zip(model.buffers(), *(each.buffers() for each in copies), strict=True):
                stacked = torch.stack(list(values))
                buffer.copy_(stacked.mean(dim=0) if buffer.is_floating_point() else stacked.amax(dim=0))
    return model


@pytest.mark.parametrize("evaluation", ["fused", "exact"])
@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.FastestK(2)], ids=repr)
def test_batch_normalisation_sees_each_workers_batch_alone(strategy: pl.strategy.Strategy, evaluation: str) -> None:
    """To 1e-10: parameters, running means and variances averaged over contributors, the counter counts updates."""
    recorded = Noted()
    fleet = pl.SimulatedFleet(
        [pl.delays.Empirical([1.0 + 0.3 * ((i + k) % 3) for k in range(3)], in_order=True) for i in range(3)],
        evaluation=evaluation,  # type: ignore[arg-type]
    )
    run = train(digits_task(Normalised()), strategy, fleet, updates=5, sampling=recorded)
    made = updates(run.trace)
    if isinstance(strategy, pl.FastestK):  # a stopped worker draws again: count its draws by rounds
        assert len({update.workers for update in made}) == 3
    expected = normalised_by_hand(recorded, [update.workers for update in made])
    for (name, value), other in zip(run.model.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, rtol=0, atol=1e-10, msg=name)
    assert run.model.get_buffer("layers.1.num_batches_tracked").item() == 5
    assert not run.model.get_buffer("layers.1.running_mean").equal(torch.zeros(8))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_batch_normalisation_trains_under_every_strategy(strategy: pl.strategy.Strategy) -> None:
    """Fused evaluation is not for it, so that both are the same to the bit; the buffers stay finite and move."""
    fused, exact = (
        train(digits_task(Normalised()), strategy, random_fleet(evaluation=how), updates=12)
        for how in ("fused", "exact")
    )
    for one, two in zip(fused.model.state_dict().values(), exact.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)
        assert one.isfinite().all()
    assert fused.model.get_buffer("layers.1.running_var").ne(1).all()


# The end of a run


def test_a_run_ends_after_so_many_updates() -> None:
    run = train(digits_task(), pl.Asynchronous(), equal_fleet(), updates=7)
    assert (run.ended, run.history[-1].updates, len(updates(run.trace))) == ("updates", 7, 7)


@pytest.mark.parametrize(("epochs", "count"), [(1, 15), (2, 30), (0.5, 8)])
def test_a_run_ends_after_so_many_epochs(epochs: float, count: int) -> None:
    """Three workers with 500 samples have 15 whole batches of 32 each: 1440 samples an epoch."""
    run = pl.train(
        digits_task(), strategy=pl.Synchronous(), fleet=equal_fleet(), optimizer=sgd(), stop=pl.Stop(epochs=epochs)
    )
    assert (run.ended, run.history[-1].updates, run.history[-1].samples) == ("epochs", count, 96 * count)


@pytest.mark.parametrize(("seconds", "count"), [(0.3, 3), (0.29, 2), (0.35, 3), (0.7, 7), (1.0, 10)])
def test_events_at_exactly_the_limit_count(seconds: float, count: int) -> None:
    """Three times 0.1 is more than 0.3 in floating point, and yet at 0.3."""
    run = pl.train(
        digits_task(),
        strategy=pl.Synchronous(),
        fleet=pl.SimulatedFleet([pl.delays.Constant(0.1), pl.delays.Constant(0.05)]),
        optimizer=sgd(),
        stop=pl.Stop(seconds=seconds),
    )
    assert (run.ended, run.history[-1].updates) == ("seconds", count)
    trace = pl.simulate(pl.Synchronous(), pl.SimulatedFleet([pl.delays.Constant(0.1)]), pl.Stop(seconds=seconds))
    assert len(updates(trace)) == count


def test_all_that_happens_at_exactly_the_limit_counts() -> None:
    run = pl.train(
        digits_task(), strategy=pl.Asynchronous(), fleet=equal_fleet(5), optimizer=sgd(), stop=pl.Stop(seconds=2.0)
    )
    assert (run.history[-1].updates, run.history[-1].seconds) == (10, 2.0)


def test_a_run_ends_when_the_target_is_seen() -> None:
    run = pl.train(
        digits_task(),
        strategy=pl.Synchronous(),
        fleet=equal_fleet(),
        optimizer=sgd(0.5),
        stop=pl.Stop(target=0.8, updates=500),
    )
    assert run.ended == "target"
    assert run.history[-1].accuracy >= 0.8
    assert all(row.accuracy < 0.8 for row in run.history[:-1])
    assert run.seconds_to(0.8) == run.history[-1].seconds == float(run.history[-1].updates)
    assert run.seconds_to(0.999) is None


def test_whichever_end_comes_first_ends_the_run() -> None:
    for stop, ended in (
        (pl.Stop(updates=3, seconds=10.0, epochs=5), "updates"),
        (pl.Stop(updates=30, seconds=2.0, epochs=5), "seconds"),
        (pl.Stop(updates=30, seconds=20.0, epochs=0.1), "epochs"),
    ):
        run = pl.train(digits_task(), strategy=pl.Synchronous(), fleet=equal_fleet(), optimizer=sgd(), stop=stop)
        assert run.ended == ended


def judged(every: pl.Every | None, delay: float, updates: int) -> list[tuple[int, float]]:
    run = pl.train(
        quadratic([1.0, 2.0]),
        strategy=pl.Synchronous(),
        fleet=pl.SimulatedFleet(pl.delays.Constant(delay), workers=2),
        optimizer=sgd(0.01),
        stop=pl.Stop(updates=updates),
        batch_size=1,
        every=every,
    )
    return [(row.updates, row.seconds) for row in run.history]


def test_the_model_is_judged_every_so_many_updates_and_at_both_ends() -> None:
    assert judged(pl.Every(updates=3), 1.0, 8) == [(0, 0.0), (3, 3.0), (6, 6.0), (8, 8.0)]
    assert judged(pl.Every(updates=4), 1.0, 8) == [(0, 0.0), (4, 4.0), (8, 8.0)]


def test_the_model_is_judged_at_the_first_update_after_every_so_many_seconds() -> None:
    assert judged(pl.Every(seconds=2.0), 0.75, 9) == [(0, 0.0), (3, 2.25), (6, 4.5), (8, 6.0), (9, 6.75)]
    assert judged(pl.Every(seconds=1.0), 2.5, 3) == [(0, 0.0), (1, 2.5), (2, 5.0), (3, 7.5)]


def test_an_update_at_exactly_the_time_of_a_judgement_is_judged() -> None:
    """Also where three times 0.1 is more than 0.3 in floating point."""
    rows = judged(pl.Every(seconds=0.1), 0.1, 10)
    assert rows == [(i, i / 10) for i in range(11)]


def test_without_a_wish_the_model_is_judged_often_at_first_and_then_whenever_updates_grew_by_a_twentieth() -> None:
    counts = [count for count, _ in judged(None, 1.0, 300)]
    assert counts[:21] == list(range(21))
    assert len(counts) < 90
    assert all(later <= math.ceil(1.05 * count) + 1 for count, later in pairwise(counts[20:]))
    assert counts[-1] == 300


def test_an_evaluation_of_ones_own_replaces_the_usual_one() -> None:
    (x, y), _ = digits()
    modes = []

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        modes.append((model.training, torch.is_grad_enabled()))
        return {"loss": 0.25, "accuracy": 0.75}

    run = train(pl.Task(linear(), cross_entropy, (x, y), evaluate=evaluate), pl.Synchronous(), equal_fleet(), updates=3)
    assert [(row.loss, row.accuracy) for row in run.history] == [(0.25, 0.75)] * 4
    assert modes == [(False, False)] * 4
    assert run.model.training


def test_the_history_tells_the_loss_and_the_accuracy_on_the_test_data() -> None:
    run = train(digits_task(), pl.Synchronous(), equal_fleet(), updates=5)
    _, (x, y) = digits()
    outputs = run.model(x)
    assert run.history[-1].loss == pytest.approx(cross_entropy(outputs, y).item(), abs=1e-12)
    assert run.history[-1].accuracy == (outputs.argmax(dim=1) == y).double().mean().item()
    assert [row.samples for row in run.history] == [96 * i for i in range(6)]


# What is left untouched


@pytest.mark.parametrize("mode", [True, False])
def test_the_users_model_is_left_untouched(mode: bool) -> None:
    model = Normalised()
    model.train(mode)
    before = copy.deepcopy(model.state_dict())
    run = train(digits_task(model), pl.Asynchronous(), equal_fleet(), updates=5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training is mode
    assert run.model is not model


def test_the_global_random_state_is_left_untouched_and_does_not_matter(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    one = repeatable.run(tmp_path / "one", seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    two = repeatable.run(tmp_path / "two", seed=5)
    assert torch.equal(weights(one.model), weights(two.model))


def test_the_data_are_left_untouched() -> None:
    (x, y), test = digits()
    inputs, targets = x.clone(), y.clone()
    train(pl.Task(linear(), cross_entropy, (inputs, targets), test), pl.Asynchronous(), equal_fleet(), updates=5)
    assert torch.equal(inputs, x)
    assert torch.equal(targets, y)


# Contributions that are not finite


def with_nan(*workers: int, model: nn.Module | None = None) -> pl.Task:
    """Five workers with 300 samples each, in order; those of the named workers are NaN."""
    (x, y), test = digits()
    x = x.clone()
    for worker in workers:
        x[300 * worker : 300 * (worker + 1)] = math.nan
    return pl.Task(linear() if model is None else model, cross_entropy, train=(x, y), test=test)


def train_with_nan(task: pl.Task, strategy: pl.strategy.Strategy, updates: int, **settings: Any) -> pl.Run:
    return pl.train(
        task,
        strategy=strategy,
        fleet=random_fleet(5),
        optimizer=sgd(),
        stop=pl.Stop(updates=updates),
        partition=Consecutive(),
        **settings,
    )


def test_a_contribution_that_is_not_finite_is_left_out_of_the_mean_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorded, task = Noted(), with_nan(1)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        run = train_with_nan(task, pl.Synchronous(), 6, sampling=recorded)
    assert isinstance(task.train, tuple)
    expected = by_hand(linear(), recorded, rounds=6, workers=(0, 2, 3, 4), data=task.train)
    torch.testing.assert_close(weights(run.model), weights(expected), rtol=0, atol=1e-10)
    assert (run.ended, run.problem) == ("updates", None)
    assert [(ticket.worker, ticket.version) for ticket in run.non_finite] == [(1, version) for version in range(6)]
    assert [fact.ticket for fact in run.trace if isinstance(fact, NonFinite)] == list(run.non_finite)
    assert run.summary()["spoiled_by_worker"] == {"1": 6}
    messages = [record.getMessage() for record in caplog.records if record.name == "paceline"]
    assert len(messages) == 6
    assert "worker 1" in messages[2]
    assert "version 2" in messages[2]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_under_every_strategy_training_goes_on_without_a_worker_that_is_not_finite(
    strategy: pl.strategy.Strategy,
) -> None:
    run = train_with_nan(with_nan(1), strategy, 25)
    assert run.ended == "updates"
    assert weights(run.model).isfinite().all()
    assert {ticket.worker for ticket in run.non_finite} == {1}
    assert len(set(run.non_finite)) == len(run.non_finite)
    assert run.history[-1].loss < run.history[0].loss - 0.05
    for before, row in pairwise(run.history):
        assert math.isfinite(row.training_loss) == (row.samples > before.samples)


def test_running_statistics_of_a_worker_that_is_not_finite_are_left_out_too() -> None:
    run = train_with_nan(with_nan(1, model=Normalised()), pl.Synchronous(), 5)
    assert all(value.isfinite().all() for value in run.model.state_dict().values())
    assert {ticket.worker for ticket in run.non_finite} == {1}


def test_asynchronous_training_counts_but_does_not_make_the_updates_of_a_worker_that_is_not_finite() -> None:
    run = train_with_nan(with_nan(1), pl.Asynchronous(), 40)
    alone = [update.step for update in updates(run.trace)]
    bad = [ticket for step in alone for ticket in step.weights if ticket.worker == 1]
    assert list(run.non_finite) == bad
    assert len(bad) >= 5
    assert run.history[-1].updates == 40


def test_when_a_whole_round_is_not_finite_the_run_ends_with_the_weights_it_had(tmp_path: Path) -> None:
    run = train_with_nan(with_nan(0, 1, 2, 3, 4), pl.Synchronous(), 10, directory=tmp_path)
    assert run.ended == "diverged"
    assert run.problem is not None
    assert "update 1" in run.problem
    assert "version 0" in run.problem
    assert "staleness 0" in run.problem
    assert torch.equal(weights(run.model), weights(linear()))
    assert len(run.non_finite) == 5
    saved = load_file(tmp_path / "model.safetensors")
    assert torch.equal(saved["weight"], linear().weight)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["ended"], summary["problem"]) == ("diverged", run.problem)
    spoiled = [fact.ticket.worker for fact in pl.read_trace(tmp_path) if isinstance(fact, NonFinite)]
    assert sorted(spoiled) == [0, 1, 2, 3, 4]


def test_asynchronous_training_ends_after_one_contribution_of_each_worker_if_none_was_ever_finite() -> None:
    run = train_with_nan(with_nan(0, 1, 2, 3, 4), pl.Asynchronous(), 50)
    assert run.ended == "diverged"
    assert "none of the last 5 contributions is finite" in str(run.problem)
    assert len(run.non_finite) == 5


def breaks_beyond_one(x: Tensor, targets: Tensor) -> Tensor:
    return half_square(x, targets) * torch.where(x > 1, math.nan, 1.0)


def test_a_run_that_breaks_on_the_way_keeps_its_last_good_weights_and_says_where() -> None:
    """F = (x - 10)^2 / 2, eta = 0.1: x = 0, 1, 1.9, and beyond 1 there is no loss: version 2 is the first bad one."""
    task = quadratic([10.0, 10.0])
    run = pl.train(
        pl.Task(task.model, breaks_beyond_one, task.train, evaluate=task.evaluate),
        strategy=pl.Synchronous(),
        fleet=equal_fleet(2),
        optimizer=sgd(),
        stop=pl.Stop(updates=50),
        batch_size=1,
    )
    assert run.ended == "diverged"
    assert run.problem is not None
    assert all(text in run.problem for text in ("update 3", "version 2", "staleness 0"))
    assert run.model.get_parameter("x").item() == pytest.approx(1.9, abs=1e-12)
    assert run.history[-1].updates == 2
    assert run.history[-1].loss == pytest.approx(1.9, abs=1e-12)
    assert [(ticket.worker, ticket.version) for ticket in run.non_finite] == [(0, 2), (1, 2)]


def test_asynchronous_training_ends_when_nobody_is_finite_any_more() -> None:
    """Three workers, one at a time: after as many bad contributions in a row as there are workers."""
    task = quadratic([10.0] * 3)
    run = pl.train(
        pl.Task(task.model, breaks_beyond_one, task.train, evaluate=task.evaluate),
        strategy=pl.Asynchronous(),
        fleet=equal_fleet(3),
        optimizer=sgd(),
        stop=pl.Stop(updates=50),
        batch_size=1,
    )
    assert run.ended == "diverged"
    assert run.problem is not None
    assert "staleness 2" in run.problem
    assert 1 < run.model.get_parameter("x").item() < 10
    assert len(run.non_finite) == 3


@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.Asynchronous(), pl.LiveCompensation(1, blocks=1)], ids=repr)
def test_a_step_that_overflows_is_taken_back(strategy: pl.strategy.Strategy) -> None:
    """With eta = 1e200, x grows to 1e200 and would then be infinite."""
    task = quadratic([1.0, 1.0])
    run = pl.train(
        task, strategy=strategy, fleet=equal_fleet(2), optimizer=sgd(1e200), stop=pl.Stop(updates=50), batch_size=1
    )
    assert run.ended == "diverged"
    assert run.problem is not None
    assert "version" in run.problem
    assert "staleness" in run.problem
    assert 1e190 < abs(run.model.get_parameter("x").item()) < math.inf


# Directories, Ctrl-C, TensorBoard


def test_ctrl_c_leaves_a_complete_directory(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "support.endless", str(directory)], cwd=TESTS, stderr=subprocess.PIPE, text=True
    )
    try:
        metrics = directory / "metrics.jsonl"
        deadline = time.monotonic() + PATIENCE
        while not (metrics.exists() and metrics.read_text().count("\n") > 5):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert sorted(path.name for path in directory.iterdir()) == sorted(repeatable.FILES)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["ended"] == "interrupted"
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["updates"] == summary["updates"] == len(updates(pl.read_trace(directory)))
    assert all(value.isfinite().all() for value in load_file(directory / "model.safetensors").values())


def test_a_directory_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(pl.ConfigError, match="is not empty"):
        repeatable.run(tmp_path, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(pl.ConfigError, match="is not empty"):
        repeatable.run(tmp_path / "notes.txt", seed=0)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_tensorboard_shows_the_history(tmp_path: Path) -> None:
    run = pl.train(
        digits_task(),
        strategy=pl.Asynchronous(),
        fleet=equal_fleet(),
        optimizer=sgd(),
        stop=pl.Stop(updates=6),
        directory=tmp_path,
        tensorboard=True,
    )
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name in ("loss", "accuracy", "staleness", "samples", "seconds"):
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert shown == [(row.updates, pytest.approx(getattr(row, name), rel=1e-6)) for row in run.history]
    assert len(events.Scalars("training_loss")) >= 6


# Bad input


def attempt(
    tmp_path: Path,
    strategy: pl.strategy.Strategy = pl.Synchronous(),
    *,
    data: tuple[Tensor, Tensor] | None = None,
    workers: int = 4,
    **settings: Any,
) -> None:
    train_data = digits()[0] if data is None else data
    pl.train(
        pl.Task(linear(), cross_entropy, train_data),
        **{
            "strategy": strategy,
            "fleet": equal_fleet(workers),
            "optimizer": sgd(),
            "stop": pl.Stop(updates=1),
            "directory": tmp_path / "run",
            **settings,
        },
    )


def some(samples: int) -> tuple[Tensor, Tensor]:
    x, y = digits()[0]
    return x[:samples], y[:samples]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": pl.FastestK(5)}, "quorum of 5 does not fit 4 workers"),
        ({"strategy": pl.FastestK(0)}, "quorum of 0 does not fit 4 workers"),
        ({"strategy": pl.LiveCompensation(5)}, "quorum of 5 does not fit 4 workers"),
        ({"strategy": pl.LiveCompensation(3, blocks=5)}, "5 blocks do not divide a batch of 32 evenly: nearest 4"),
        ({"strategy": pl.LiveCompensation(3, blocks=0)}, "cannot have 0 blocks"),
        ({"strategy": pl.Grouped([[0, 1], [2]])}, "groups miss worker 3"),
        ({"strategy": pl.Grouped([[0, 1], [2, 3, 4, 5]])}, "groups name workers 4, 5"),
        ({"strategy": pl.Grouped([[0, 1], [2, 3]], inside=pl.FastestK(3))}, r"in the group \[0, 1\]: a quorum of 3"),
        ({"data": some(31)}, "31 samples, fewer than one batch of 32"),
        ({"data": some(100)}, "leaves worker 0 with 25 samples, fewer than one batch of 32"),
        ({"data": some(3), "batch_size": 1}, "leaves worker 3 empty"),
        ({"partition": pl.Pathological(1)}, "leaves classes out"),
        ({"partition": pl.Dirichlet(0.01), "workers": 16}, "leaves worker"),
        ({"batch_size": 0}, "batch_size=0 is not possible"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"clip_norm": math.nan}, "clip_norm=nan"),
        ({"tensorboard": True, "directory": None}, "needs a directory"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)}, "optimizer must be a function"),
        ({"data": (some(40)[0], some(50)[1])}, "40 inputs and 50 targets do not pair up"),
        ({"data": 7}, "pair of tensors or arrays, or a map-style dataset, not int"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_nothing_is_written(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(pl.ConfigError, match=message) as caught:
        attempt(tmp_path, **settings)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pl.Grouped([[0, 1], [1, 2]]), "groups overlap: worker 1 named more than once"),
        (lambda: pl.Grouped([[0, 1], []]), "at least one worker each"),
        (lambda: pl.Grouped([]), "at least one worker each"),
        (lambda: pl.delays.Constant(0.0), "must be positive and finite, not 0.0"),
        (lambda: pl.delays.Constant(math.nan), "must be positive and finite, not nan"),
        (pl.Stop, "a run needs an end"),
        (lambda: pl.Stop(updates=0), "updates=0"),
        (lambda: pl.Stop(seconds=math.nan), "seconds=nan"),
        (lambda: pl.Stop(target=math.inf), "target=inf"),
        (pl.Every, "either updates or seconds"),
        (lambda: pl.Every(updates=1, seconds=1.0), "either updates or seconds"),
        (lambda: pl.Every(seconds=0.0), "more than 0"),
        (lambda: pl.groups_by_speed([1.0], tolerance=-1.0), "tolerance of -1.0"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(pl.ConfigError, match=message):
        make()


def test_a_simulation_without_a_model_needs_an_end_that_does_not_need_one() -> None:
    with pytest.raises(pl.ConfigError, match="ends by updates or seconds"):
        pl.simulate(pl.Synchronous(), equal_fleet(), pl.Stop(epochs=1))


def test_a_target_that_can_never_be_seen_is_refused() -> None:
    """A task whose accuracy cannot be told would go on for ever."""
    with pytest.raises(pl.ConfigError, match="target"):
        pl.train(
            quadratic([1.0, 2.0]),
            strategy=pl.Synchronous(),
            fleet=equal_fleet(2),
            optimizer=sgd(),
            stop=pl.Stop(target=0.9, updates=5),
            batch_size=1,
        )


def test_a_strategy_that_leaves_everybody_without_work_is_the_strategys_fault() -> None:
    class Lazy(pl.strategy.Strategy):
        def decide(self, ledger: object, /) -> Sequence[Any]:
            return []

    with pytest.raises(pl.strategy.IllegalDecision, match="leaves 3 workers with nothing to do"):
        train(digits_task(), Lazy(), equal_fleet(), updates=1)


def test_tickets_name_the_version_that_was_downloaded() -> None:
    """Not the one at arrival: the lesson of another simulator."""
    run = train(
        digits_task(),
        pl.Asynchronous(),
        pl.SimulatedFleet([pl.delays.Constant(1.0), pl.delays.Constant(2.5)]),
        updates=4,
    )
    used = [next(iter(update.step.weights)) for update in updates(run.trace)]
    assert [(ticket.worker, ticket.version) for ticket in used] == [(0, 0), (0, 1), (1, 0), (0, 2)]
    assert update_times(run.trace) == [1.0, 2.0, 2.5, 3.0]
    assert isinstance(used[0], Ticket)
