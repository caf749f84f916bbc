"""The experiment of *Group SGD*: MNIST, odd against even, on 16 workers of three speeds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paceline import (
    Asynchronous,
    Every,
    Grouped,
    Resampled,
    Run,
    SimulatedFleet,
    Stop,
    Synchronous,
    Task,
    groups_by_speed,
    simulate,
    train,
)
from paceline.core.errors import Diverged
from paceline.core.messages import Event, Step
from paceline.data.images import Labelled, read_mnist
from paceline.delays import Constant
from reproductions.group_sgd.theorem import Move
from reproductions.models.linear import LinearClassifier, correct, logistic, odd, odd_sign, smooth_svm
from reproductions.pipeline.values import rounded

UNITS = (1.0,) * 4 + (2.0,) * 4 + (3.0,) * 8
PERIOD = 6.0  # after which everything repeats
FLEET = SimulatedFleet([Constant(units) for units in UNITS])
STRATEGIES = {"ssgd": Synchronous(), "gsgd": Grouped(groups_by_speed(UNITS)), "asgd": Asynchronous()}
BATCH = 32
BEYOND = 1e4  # a norm of weights that no stable run comes near: they end with one of about 2
AT_ONCE = 2000  # images evaluated together: they stay in the processor's cache


class Model(NamedTuple):
    """A loss of the paper's Table 1 with its labels, its penalty and the learning rates that the paper gives it."""

    loss: Callable[..., Tensor]
    targets: Callable[[Tensor], Tensor]
    penalty: float
    learning_rates: dict[str, float]


MODELS = {
    "svm": Model(smooth_svm, odd_sign, 0.01, {"ssgd": 0.04, "gsgd": 0.015, "asgd": 0.001}),
    "logistic": Model(logistic, odd, 0.001, {"ssgd": 0.2, "gsgd": 0.08, "asgd": 0.01}),
}


@dataclass(frozen=True)
class Training:
    """One run: a model, a strategy, its learning rate and a seed, for so many units of time.

    With ``on_the_way`` it is evaluated all along, else at the end.
    """

    model: str
    strategy: str
    lr: float
    seed: int
    units: float
    data: str
    on_the_way: bool = True


class Made(NamedTuple):
    """An update of a simulated run: when, along how many workers' mean, how stale."""

    at: float
    workers: int
    staleness: int

    @property
    def move(self) -> Move:
        return Move(self.workers, self.staleness)


def updates_of(strategy: str, stop: Stop) -> list[Made]:
    """When the strategy updates the model, without a model. Each update here has one staleness."""
    at, made = 0.0, list[Made]()
    for fact in simulate(STRATEGIES[strategy], FLEET, stop):
        if isinstance(fact, Event):
            at = fact.at
        elif isinstance(fact, Step):
            (staleness,) = {len(made) - ticket.version for ticket in fact.weights}
            made.append(Made(at, len(fact.weights), staleness))
    return made


def run_training(training: Training) -> dict[str, Any]:
    """Train, and evaluate: the loss with its penalty on the training images, and the accuracy on the test images.

    The weights after each update are kept, and evaluated together in the end: one product of two matrices is many
    times as fast as as many products of a matrix and a vector.
    """
    model = MODELS[training.model]
    train_images, test_images = mnist(training.data)
    kept = _KeptWeights()
    run = train(
        Task(
            LinearClassifier(784, model.penalty),
            model.loss,
            (train_images.pixels, model.targets(train_images.labels)),
            evaluate=kept,
        ),
        strategy=STRATEGIES[training.strategy],
        fleet=FLEET,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=training.lr),
        stop=Stop(seconds=training.units),
        batch_size=BATCH,
        sampling=Resampled(),
        every=Every(updates=1),
        seed=training.seed,
        progress=False,
    )
    chosen = _chosen(run, training)
    together = torch.stack([kept.weights[place] for place in chosen])
    rows = [run.history[place] for place in chosen]
    return {
        "ended": run.ended,
        "updates": [row.updates for row in rows],
        "units": [row.seconds for row in rows],
        "loss": [rounded(loss, 6) for loss in _losses(together, train_images, model).tolist()],
        "accuracy": [rounded(share, 6) for share in _accuracies(together, test_images, model).tolist()],
    }


class _KeptWeights:
    """Keeps the weights at each evaluation, and ends a run whose weights have diverged."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self._ended = False

    def __call__(self, classifier: nn.Module) -> dict[str, float]:
        weights = next(classifier.parameters()).detach().flatten()
        if not self._ended and not float(weights @ weights) < BEYOND**2:
            self._ended = True  # the last weights are evaluated all the same
            raise Diverged(f"the weights' norm is above {BEYOND:g}")
        self.weights.append(weights.clone())
        return {}


def update_grid(most: int) -> list[int]:
    """Numbers of updates at which models are evaluated: all at first, then each 5 % more."""
    grid, count = [0], 1
    while count <= most:
        grid.append(count)
        count = max(count + 1, int(count * 1.05))
    return grid


def time_grid(units: float) -> list[float]:
    """Instants at which models are evaluated: each unit up to 30, then whenever everything repeats."""
    return [float(t) for t in range(31) if t <= units] + [float(t) for t in np.arange(36, units + 1, PERIOD)]


def _chosen(run: Run, training: Training) -> list[int]:
    last = len(run.history) - 1
    if not training.on_the_way:
        return [last]
    times = np.array([row.seconds for row in run.history])
    by_time = np.searchsorted(times, time_grid(training.units), side="right") - 1
    return sorted({*by_time.tolist(), *update_grid(last), last})


class Images(NamedTuple):
    pixels: Tensor
    labels: Tensor


@lru_cache(maxsize=1)
def mnist(data: str) -> tuple[Images, Images]:
    """Pixels from 0 to 1, not standardised: with that the paper's learning rates are just below what is stable."""

    def images(part: Labelled) -> Images:
        pixels = torch.from_numpy(part.images).reshape(len(part), 784).to(torch.float32).div_(255)
        return Images(pixels, torch.from_numpy(part.labels))

    mnist = read_mnist(data)
    return images(mnist.train), images(mnist.test)


def _losses(weights: Tensor, images: Images, model: Model) -> Tensor:
    targets = model.targets(images.labels)
    total = torch.zeros(len(weights), dtype=torch.float64)
    for begin in range(0, len(targets), AT_ONCE):
        scores = weights @ images.pixels[begin : begin + AT_ONCE].T
        wanted = targets[begin : begin + AT_ONCE].expand_as(scores)
        each: Tensor = model.loss(scores.reshape(-1), wanted.reshape(-1))
        total += each.reshape(scores.shape).sum(dim=1, dtype=torch.float64)
    return total / len(targets) + model.penalty / 2 * weights.double().square().sum(dim=1)


def _accuracies(weights: Tensor, images: Images, model: Model) -> Tensor:
    targets = model.targets(images.labels)
    right = torch.zeros(len(weights), dtype=torch.int64)
    for begin in range(0, len(targets), AT_ONCE):
        scores = weights @ images.pixels[begin : begin + AT_ONCE].T
        wanted = targets[begin : begin + AT_ONCE].expand_as(scores)
        right += correct(scores.reshape(-1), wanted.reshape(-1)).reshape(scores.shape).sum(dim=1)
    return right.double() / len(targets)
