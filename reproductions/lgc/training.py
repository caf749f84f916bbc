"""One training run of the reproduction of live compensation: CIFAR-10 on ten workers, one of three methods.

As the paper has it: N = 10, batches of 32, momentum 0.9, weight decay 0.0005, a learning rate that is divided by 10
half-way, a warm-up of 2/60 of the updates in which K-SGD and LGC-SGD wait for everybody. Ours: how much data, how many
updates, the width of the network, and its norm.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR

from paceline import (
    Every,
    FastestK,
    LiveCompensation,
    Pathological,
    Run,
    SimulatedFleet,
    Stop,
    Synchronous,
    Task,
    train,
)
from paceline.config.named_tasks import lenet
from paceline.delays import Delay, Empirical, ShiftedExponential
from paceline.randomness import stream
from paceline.strategy import Strategy
from reproductions.datasets.cifar import ChannelsLast, Cifar10, cifar10
from reproductions.lgc.timing import BLOCKS, MEAN, QUORUM, SHIFT, WORKERS
from reproductions.models.compiled import lenet as compiled_lenet
from reproductions.models.convolutional import vgg11
from reproductions.pipeline.resuming import resumed
from reproductions.pipeline.samples import packed, right
from reproductions.pipeline.values import rounded

VERSION = 1  # of the campaign's experiment: raise it when settings, arithmetic or data change, not rounding
BATCH = 32
VALIDATED = 2_000  # training samples that no run trains on; the learning rate is chosen by them
PROBED = 1_000  # training samples on which the loss is followed
WIDTH = 1 / 8
CHECKPOINT = 1_000  # updates between two checkpoints of a run that has a folder for them
JUST_AFTER = 1e-6  # of the time of a round: when a late worker's last block ends after the update


@dataclass(frozen=True)
class Size:
    """How much of the data set, how often, and how many test samples the last model is evaluated on.

    ``followed`` is every how many epochs the test accuracy is taken on the way; 0 follows the loss on some training
    samples instead.
    """

    samples: int = 10_000
    epochs: int = 10
    tested: int = 10_000
    followed: int = 0

    @property
    def updates_in_an_epoch(self) -> int:
        return self.samples // WORKERS // BATCH

    @property
    def updates(self) -> int:
        return self.epochs * self.updates_in_an_epoch

    @property
    def warm_up(self) -> int:
        """2 epochs of 60."""
        return round(self.updates * 2 / 60)


@dataclass(frozen=True)
class Case:
    """A method and the circumstances it is tried in. ``done`` says how many blocks late workers get done: 1 to 4.

    ``late`` says what late workers do once an update is made: ``complete`` their batch at no cost in time, as the paper
    assumes; end the ``block`` they are at, as its Algorithm 1; or ``finish`` their batch before they begin the next.
    """

    method: str  # full, k, lgc
    classes: int = 3
    h: int = 10
    quorum: int = QUORUM
    done: str = "4"  # or uniform
    scale: bool = True
    late: str = "complete"


@dataclass(frozen=True)
class Training:
    """One run."""

    data: str
    model: str  # vgg, lenet
    case: Case
    lr: float
    seed: int
    size: Size

    @property
    def name(self) -> str:
        """For people: what differs between the runs of a campaign."""
        case = self.case
        quorum = "" if case.method == "full" else f"-k{case.quorum}-h{case.h}"
        part = f"-r{case.done}{'' if case.scale else '-unscaled'}" if case.done != str(BLOCKS) else ""
        late = "" if case.late == "complete" else f"-{case.late}"
        epochs = f"-{self.size.epochs}-epochs"
        return f"{self.model}-{case.method}-c{case.classes}{quorum}{part}{late}{epochs}-lr{self.lr:g}-seed{self.seed}"


def run_training(training: Training, scratch: Path | None = None) -> dict[str, Any]:
    """Train, and evaluate the last model on test, validation and training samples.

    With a ``scratch`` folder it writes checkpoints there, and continues an interrupted run.
    """
    size = training.size
    pictures = cifar10(training.data, trained=size.samples, validated=VALIDATED, tested=size.tested)
    run = resumed(scratch, lambda: _trained(training, pictures, scratch))
    result: dict[str, Any] = {"ended": run.ended, "problem": run.problem, "seconds": run.history[-1].seconds}
    for name in ("test", "validation", "train"):
        evaluate = Task(run.model, cross_entropy, pictures.train, getattr(pictures, name)).evaluator()
        result |= {f"{name}_{metric}": value for metric, value in evaluate(run.model).items()}
    if not size.followed:
        return {**result, "curve": [(row.updates, round(row.seconds, 4), rounded(row.loss)) for row in run.history]}
    curve = [
        (row.updates, round(row.seconds, 4), rounded(row.training_loss), rounded(row.accuracy)) for row in run.history
    ]
    return {**result, "right": packed(right(run.model, pictures.test)), "curve": curve}


def _trained(training: Training, pictures: Cifar10, scratch: Path | None) -> Run:
    size, seed = training.size, training.seed
    probe = pictures.train[0][:PROBED], pictures.train[1][:PROBED]
    torch.manual_seed(seed)
    model = _network(training.model, in_campaign=scratch is not None)
    return train(
        Task(model, cross_entropy, pictures.train, pictures.test if size.followed else probe),
        strategy=_strategy(training.case, size.warm_up),
        fleet=_fleet(training.case, seed, size.updates),
        optimizer=lambda parameters: SGD(parameters, lr=training.lr, momentum=0.9, weight_decay=5e-4),
        scheduler=lambda optimizer: _divided_half_way(optimizer, size.updates),
        stop=Stop(updates=size.updates),
        batch_size=BATCH,
        partition=Pathological(training.case.classes),
        every=Every(updates=size.updates_in_an_epoch * max(1, size.followed)),
        seed=seed,
        directory=scratch,
        checkpoint=None if scratch is None else Every(updates=CHECKPOINT),
        resume=scratch is not None,
        progress=None if scratch is not None else False,
    )


def _network(name: str, *, in_campaign: bool) -> nn.Module:
    if in_campaign and name == "lenet":
        return compiled_lenet()
    return nn.Sequential(ChannelsLast(), lenet() if name == "lenet" else vgg11(WIDTH, "group"))


def _divided_half_way(optimizer: Optimizer, updates: int) -> LRScheduler:
    return MultiStepLR(optimizer, milestones=[updates // 2], gamma=0.1)


def _strategy(case: Case, warm_up: int) -> Strategy:
    match case.method:
        case "full":
            return Synchronous()
        case "k":
            return FastestK(case.quorum, stop_late=case.late != "finish", warm_up=warm_up)
        case "lgc":
            recall = case.late != "finish"
            return LiveCompensation(case.quorum, BLOCKS, recall=recall, scale=case.scale, warm_up=warm_up)
    raise ValueError(f"there is no method {case.method!r}: full, k or lgc")


def _fleet(case: Case, seed: int, updates: int) -> SimulatedFleet:
    delay = ShiftedExponential(SHIFT, MEAN, case.h)
    if case.done == str(BLOCKS):
        return SimulatedFleet(delay, workers=WORKERS, recall="complete" if case.late == "complete" else "block")
    return SimulatedFleet(partial_work(delay, case, seed, updates), recall="block")


def partial_work(delay: Delay, case: Case, seed: int, updates: int) -> list[Empirical]:
    r"""Durations by which the same workers are late as without, but get $r$ (``done``) of $s$ blocks done.

    Where worker $i$ is late, $X_i$ becomes $(1 + 10^{-6})\, X_{(K)}\, s / r$: its block $r$ ends just after the update,
    and a worker that finishes the block it is at when it is recalled hands in $r$ of them. Of late workers, the
    durations so no longer tell a time; of all others, and of the rounds, they do.
    """
    drawn = np.array(
        [list(islice(delay.durations(stream(seed, "delay", worker)), updates)) for worker in range(WORKERS)]
    )
    kth = np.sort(drawn, axis=0)[case.quorum - 1]
    if case.done == "uniform":  # drawn from a stream that no worker has
        done = stream(seed, "delay", WORKERS).integers(1, BLOCKS + 1, size=drawn.shape)
    else:
        done = np.full(drawn.shape, int(case.done))
    made = np.where(drawn > kth, kth * (1 + JUST_AFTER) * BLOCKS / done, drawn)
    return [Empirical(durations, in_order=True) for durations in made.tolist()]
