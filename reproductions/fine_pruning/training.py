"""One training run of the reproduction of fine-pruning: CIFAR-10, a small network, one way to choose the samples.

Runs of one seed start from the same weights, and their whole epochs have the same order of samples. Ours to choose,
since the paper does not say: momentum 0.9, weight decay 0.0005, a learning rate that is divided by 5 after 30, 60
and 80 % of the epochs (the paper: after 60, 120 and 160 of 200), pictures turned left to right at random.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import BatchSampler

from paceline.config.named_tasks import lenet
from paceline.data.images import Labelled, read_cifar10
from paceline.pruning.rules import FineRule, RandomRule, SoftRule
from paceline.pruning.samplers import PruningSampler
from paceline.pruning.schedule import Schedule
from paceline.randomness import restore_stream, stream, stream_state
from reproductions.models.compiled import lenet as compiled_lenet
from reproductions.models.convolutional import vgg11
from reproductions.pipeline.resuming import keep, kept
from reproductions.pipeline.samples import packed, right
from reproductions.pipeline.values import rounded

VERSION = 1  # of the campaign's experiment: raise it when settings, arithmetic or data change, not rounding
CLASSES = 10
LEARNING_RATES = {"lenet": 0.05, "vgg": 0.05}
MILESTONES = (0.3, 0.6, 0.8)  # of the epochs
BEST = 3  # "the average of the best three accuracies"
CURVE = 5  # epochs between evaluations before that
EVALUATED_AT_ONCE = 1_000
FOLLOWED = 200  # samples whose every loss is kept
COUNTED = ("seen", "seconds", "overhead", "times_pruned", "trends")

Choice = FineRule | RandomRule | SoftRule


@dataclass(frozen=True)
class Size:
    """How much of the data set, for how long, and on how many test or validation samples it is evaluated."""

    samples: int
    epochs: int
    batch: int = 64
    tested: int = 10_000
    last_epochs: int = 5  # each of them is evaluated
    validation: bool = False

    def table(self) -> dict[str, Any]:
        """For the card."""
        return {"judged" if name == "last_epochs" else name: value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Training:
    """One run. ``rule`` is None for all samples; ``share`` shortens the run and its learning rate's schedule."""

    data: str
    model: str  # lenet, vgg
    seed: int
    size: Size
    rule: Choice | None = None
    share: float = 1.0

    @property
    def name(self) -> str:
        """For people: what differs between the runs of a campaign; a sum tells schedules apart."""
        kinds = {FineRule: "pruned", RandomRule: "random", SoftRule: "soft"}
        kind = "shortened" if self.share < 1 else "regular" if self.rule is None else kinds[type(self.rule)]
        return f"{self.model}-{kind}-{self.size.epochs}-epochs-seed{self.seed}"


def run_in_campaign(training: Training, scratch: Path | None = None) -> dict[str, Any]:
    """The same run, without what single samples did, and with the test samples that the last model gets right.

    With a ``scratch`` folder it writes a checkpoint there at each evaluation, and continues an interrupted run.
    """
    pictures = cifar10(training.data, training.size)
    result, model = trained(training, pictures, scratch)
    kept = {name: value for name, value in result.items() if name not in ("times_pruned", "trends", "sizes")}
    inputs, labels = pictures.evaluated
    shown = inputs.contiguous(memory_format=torch.channels_last), labels
    return {**kept, "right": packed(right(model, shown))}


def run_training(training: Training) -> dict[str, Any]:
    """Train, and evaluate the model after each of the last epochs."""
    return trained(training, cifar10(training.data, training.size))[0]


def trained(training: Training, pictures: "Pictures", scratch: Path | None = None) -> tuple[dict[str, Any], nn.Module]:
    """What a run came to, and its last model."""
    size = training.size
    torch.manual_seed(training.seed)
    model = compiled_lenet() if scratch is not None and training.model == "lenet" else network(training.model)
    loop = Loop(training, model, pictures.train)
    curve: list[tuple[float, ...]] = []
    epochs = math.ceil(size.epochs * training.share)
    if (before := kept(scratch)) is not None:
        loop.restore(before["loop"])
        curve = [tuple(row) for row in before["curve"]]
    for epoch in range(len(loop.sizes), epochs):
        loop.epoch(epoch)
        if epoch >= epochs - size.last_epochs or epoch % CURVE == 0:
            curve.append((loop.seen / size.samples, *evaluate(model, pictures.evaluated)))
            keep(scratch, {"loop": loop.state(), "curve": curve})
    best = sorted((accuracy for _, _, accuracy in curve), reverse=True)[:BEST]
    result = {
        "accuracy": sum(best) / len(best),
        "last_accuracy": curve[-1][2],
        "last_loss": curve[-1][1],
        "samples": loop.seen,
        "saved": 1 - loop.seen / (size.samples * size.epochs),
        "sizes": loop.sizes,
        "seconds": loop.seconds,
        "overhead_seconds": loop.overhead,
        "curve": [[rounded(value) for value in row] for row in curve],
        "times_pruned": loop.times_pruned.tolist(),
        "trends": [[rounded(loss, 4) for loss in losses] for losses in loop.trends.T.tolist()],
    }
    return result, model


class Loop:
    """A plain training loop. Times are of the processor, of training alone; ``overhead`` is what the sampler takes."""

    def __init__(self, training: Training, model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
        size = training.size
        self.seen, self.seconds, self.overhead = 0, 0.0, 0.0
        self.sizes: list[int] = []
        self.times_pruned = np.zeros(size.samples, dtype=np.int64)
        self.trends = np.full((size.epochs, FOLLOWED), np.nan)  # of the first samples
        self._inputs, self._targets = data
        self._model = model
        self._observed = training.rule is not None
        self._weighed = isinstance(training.rule, SoftRule)
        rule = training.rule or RandomRule(Schedule(1, 1, 0, window=1), fraction=0.0)
        self._sampler = PruningSampler(rule, size.samples, training.seed, 0, 1)
        self._lr = LEARNING_RATES[training.model]
        self._optimizer = SGD(model.parameters(), lr=self._lr, momentum=0.9, weight_decay=5e-4)
        self._batch = size.batch
        self._epochs = size.epochs * training.share
        self._most = round(self._epochs * size.samples)
        self._flips = stream(training.seed, "pruning", 1)

    def state(self) -> dict[str, Any]:
        """Between two epochs: with it another loop of the same training goes on with the same bits."""
        counts = {name: getattr(self, name) for name in COUNTED}
        return {
            **counts, "sizes": self.sizes, "model": self._model.state_dict(), "random": torch.get_rng_state(),
            "optimizer": self._optimizer.state_dict(), "sampler": self._sampler.state_dict(),
            "flips": stream_state(self._flips),
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        for name in COUNTED:
            setattr(self, name, state[name])
        self.sizes = list(state["sizes"])
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for parameter, values in self._optimizer.state.items():  # laid out as the parameter is
            values["momentum_buffer"] = torch.empty_like(parameter).copy_(values["momentum_buffer"])
        self._sampler.load_state_dict(state["sampler"])
        torch.set_rng_state(state["random"])
        restore_stream(self._flips, state["flips"])

    def epoch(self, number: int) -> None:
        """Train for one epoch, or as far as the number of samples allows."""
        begun = process_time()
        self._set_epoch(number)
        self.sizes.append(len(self._sampler))
        self.times_pruned += ~self._sampler.kept
        whole = len(self._sampler)
        for done, batch in enumerate(self._batches()):
            indices = batch[: self._most - self.seen]
            if not len(indices):
                break
            at = (number + done * self._batch / whole) / self._epochs
            self._optimizer.param_groups[0]["lr"] = self._lr * 0.2 ** sum(at >= each for each in MILESTONES)
            losses = cross_entropy(self._model(self._pictures(indices)), self._targets[indices], reduction="none")
            self._observe(indices, losses.detach(), number)
            weighed = losses * self._sampler.weights(indices) if self._weighed else losses
            self._optimizer.zero_grad()
            torch.autograd.backward(weighed.mean())
            self._optimizer.step()
            self.seen += len(indices)
        self.seconds += process_time() - begun

    def _set_epoch(self, number: int) -> None:
        begun = process_time()
        self._sampler.set_epoch(number)
        self.overhead += process_time() - begun if self._observed else 0.0

    def _observe(self, indices: Tensor, losses: Tensor, epoch: int) -> None:
        if self._observed:
            begun = process_time()
            self._sampler.observe(indices, losses)
            self.overhead += process_time() - begun
        for place in torch.nonzero(indices < FOLLOWED).flatten().tolist():
            self.trends[epoch, int(indices[place])] = float(losses[place])

    def _batches(self) -> Iterator[Tensor]:
        return map(torch.tensor, BatchSampler(self._sampler, self._batch, drop_last=False))

    def _pictures(self, indices: Tensor) -> Tensor:
        pictures = self._inputs[indices]
        turned = torch.from_numpy(self._flips.random(len(indices)) < 0.5)
        pictures[turned] = pictures[turned].flip(3)
        return pictures.contiguous(memory_format=torch.channels_last)


def evaluate(model: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Mean loss and accuracy."""
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(data[1]), EVALUATED_AT_ONCE):
            inputs, targets = (each[begin : begin + EVALUATED_AT_ONCE] for each in data)
            outputs = model(inputs.contiguous(memory_format=torch.channels_last))
            loss += float(cross_entropy(outputs, targets, reduction="sum"))
            correct += int((outputs.argmax(1) == targets).sum())
    model.train()
    return loss / len(data[1]), correct / len(data[1])


def network(name: str) -> nn.Module:
    model = lenet() if name == "lenet" else vgg11(1 / 8, "group")
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Training samples, and those that models are evaluated on."""

    train: tuple[Tensor, Tensor]
    evaluated: tuple[Tensor, Tensor]


@cache
def cifar10(folder: str, size: Size) -> Pictures:
    """The first pictures of each class, and test pictures, or training pictures from the end of the files."""
    published = read_cifar10(folder)
    train = chosen_samples(published.train.labels, size.samples)
    others = chosen_samples(published.train.labels[::-1], size.tested)
    evaluated = (
        _tensors(published.train, len(published.train) - 1 - others)
        if size.validation
        else _tensors(published.test, np.arange(size.tested))
    )
    return Pictures(_tensors(published.train, train), evaluated)


def chosen_samples(labels: NDArray[np.int64], samples: int) -> NDArray[np.int64]:
    """The first samples of each class, as many of each, in the order of the files."""
    each = [np.flatnonzero(labels == label)[: samples // CLASSES] for label in range(CLASSES)]
    return np.sort(np.concatenate(each))


def _tensors(labelled: Labelled, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    pixels = (labelled.images[indices] / np.float32(255) - np.float32(0.47)) / np.float32(0.25)
    return torch.from_numpy(pixels), torch.from_numpy(labelled.labels[indices])
