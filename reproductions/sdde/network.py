r"""Asynchronous SGD of a real network against its delay equation: LeNet on CIFAR-10, 16 simulated workers.

The network is trained to a minimum $w^*$ of the loss with weight decay. There the sharpest directions $v_i$ of the
Hessian, their curvatures $\lambda_i$ and the deviations $\sigma_i$ of a mini-batch's gradient along them are measured.
Near $w^*$ the theory treats each direction alone:

$$x_{k+1} = x_k - \eta\lambda_i\, x_{k-l_k} + \eta\sigma_i z_k, \qquad x_k = \langle w_k - w^*, v_i \rangle.$$

It tells the variance of $x$ in the long run (``discrete_stationary_variance``), and the learning rate beyond which the
sharpest direction grows (``critical_step`` over $\lambda_1$). Then 16 workers train on from $w^*$ with fixed learning
rates, and every update is projected on the directions. The workers sample from the same data, independently.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from paceline import Asynchronous, Every, Resampled, SimulatedFleet, Stop, Task, train
from paceline.config.named_tasks import lenet
from paceline.core.messages import Step
from paceline.data.batches import Batches
from paceline.data.partition import Indices
from paceline.delays import Constant, ShiftedExponential
from paceline.theory import critical_step, discrete_stationary_variance, mean_square_critical_step
from paceline.trace.reading import Trace
from reproductions.datasets.cifar import cifar10
from reproductions.pipeline.values import rounded

VERSION = 1  # of the campaign's experiment: raise it when settings, arithmetic or data change, not rounding
Floats = NDArray[np.float64]
DISCARDED = 3  # one of so many parts of a path comes before its stationary part


@dataclass(frozen=True)
class NetworkStudy:
    """How much is trained, and at which shares of the largest stable learning rate."""

    data: str
    samples: int = 1_000
    decay: float = 0.01
    epochs: int = 60
    settling: int = 150  # steps along the gradient of all samples, after that
    directions: int = 8
    workers: int = 16
    batch: int = 16
    updates: int = 4_000
    shares: tuple[float, ...] = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1)
    random_shares: tuple[float, ...] = (0.5,)
    seed: int = 0

    @property
    def name(self) -> str:
        return f"lenet-{self.workers}-workers-seed{self.seed}"


def run_study(study: NetworkStudy, _scratch: Path | None = None) -> dict[str, Any]:
    """Find the minimum, measure it, and let the workers loose."""
    pictures = cifar10(study.data, trained=study.samples, validated=1_000, tested=1_000)
    return study_of(study, pictures.train)


def study_of(study: NetworkStudy, pictures: tuple[Tensor, Tensor]) -> dict[str, Any]:
    torch.manual_seed(study.seed)
    place = _Place(lenet(colours=pictures[0].shape[1], pixels=pictures[0].shape[2]), pictures, study)
    place.settle()
    curvatures, directions = place.spectrum()
    deviations = place.deviations(directions)
    limit = critical_step(study.workers - 1) / float(curvatures[0])
    fixed = [_path(study, place, directions, share * limit, random=False) for share in study.shares]
    mixed = [_path(study, place, directions, share * limit, random=True) for share in study.random_shares]
    rows = [
        _row(share, path, curvatures, deviations, random=random)
        for shares, paths, random in ((study.shares, fixed, False), (study.random_shares, mixed, True))
        for share, path in zip(shares, paths, strict=True)
    ]
    return {
        "loss": place.loss(), "gradient_norm": float(place.gradient().norm()), "accuracy": place.accuracy(),
        "curvatures": [rounded(float(value), 6) for value in curvatures],
        "deviations": [rounded(float(value), 6) for value in deviations],
        "delay": study.workers - 1, "limit": limit, "rows": rows,
    }  # fmt: skip


class _Place:
    """A model, the samples it is trained on, and the loss with weight decay around its weights."""

    def __init__(self, model: nn.Module, pictures: tuple[Tensor, Tensor], study: NetworkStudy) -> None:
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.inputs = pictures[0].contiguous(memory_format=torch.channels_last)
        self.labels = pictures[1]
        self.study = study
        self.parameters = list(self.model.parameters())

    def settle(self) -> None:
        """Mini-batches with a learning rate that falls to 0, then the gradient of all samples."""
        study, generator = self.study, torch.Generator().manual_seed(self.study.seed)
        optimizer = SGD(self.parameters, lr=0.02, momentum=0.9, weight_decay=study.decay)
        scheduler = CosineAnnealingLR(optimizer, study.epochs)
        for _ in range(study.epochs):
            for chosen in torch.split(torch.randperm(len(self.labels), generator=generator), study.batch):
                self._step(optimizer, chosen)
            scheduler.step()
        optimizer = SGD(self.parameters, lr=0.01, momentum=0.9, weight_decay=study.decay)
        for _ in range(study.settling):
            self._step(optimizer, torch.arange(len(self.labels)))

    def _step(self, optimizer: SGD, chosen: Tensor) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(self.model(self.inputs[chosen]), self.labels[chosen]))
        optimizer.step()

    def loss(self) -> float:
        with torch.no_grad():
            return float(cross_entropy(self.model(self.inputs), self.labels))

    def accuracy(self) -> float:
        with torch.no_grad():
            return float((self.model(self.inputs).argmax(1) == self.labels).double().mean())

    def gradient(self) -> Tensor:
        """Of the loss with weight decay."""
        found = torch.autograd.grad(cross_entropy(self.model(self.inputs), self.labels), self.parameters)
        return _flat(found) + self.study.decay * self.weights()

    def weights(self) -> Tensor:
        return _flat([parameter.detach() for parameter in self.parameters])

    def times_hessian(self, vector: Floats) -> Floats:
        along = torch.from_numpy(np.asarray(vector, dtype=np.float32)).flatten()
        loss = cross_entropy(self.model(self.inputs), self.labels)
        gradients = torch.autograd.grad(loss, self.parameters, create_graph=True)
        slope = torch.cat([each.flatten() for each in gradients]) @ along
        product = _flat(torch.autograd.grad(slope, self.parameters)) + self.study.decay * along
        return np.asarray(product.double().numpy())

    def spectrum(self) -> tuple[Floats, Tensor]:
        """The largest curvatures, falling, and their directions, one a column."""
        size = len(self.weights())
        start = np.random.default_rng(self.study.seed).standard_normal(size)
        operator = LinearOperator((size, size), matvec=self.times_hessian, dtype=np.float64)
        values, vectors = eigsh(operator, k=self.study.directions, which="LA", tol=1e-2, v0=start)
        order = np.argsort(values)[::-1]
        return values[order], torch.from_numpy(vectors[:, order].copy()).float()

    def deviations(self, directions: Tensor) -> Floats:
        """Of the mean gradient of a mini-batch along each direction, drawn without repetition."""
        each = []
        for place in range(len(self.labels)):
            loss = cross_entropy(self.model(self.inputs[place : place + 1]), self.labels[place : place + 1])
            each.append(_flat(torch.autograd.grad(loss, self.parameters)) @ directions)
        variance = torch.stack(each).double().var(dim=0).numpy()
        batch, samples = self.study.batch, len(self.labels)
        return np.asarray(np.sqrt(variance / batch * (1 - batch / samples)))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.detach().flatten() for each in tensors])


@dataclass(frozen=True)
class SharedSamples:
    """Every worker samples from the data of all: independent mini-batches, without repetition in a batch."""

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        everything = np.sort(np.concatenate(list(shards)))
        return Resampled().open([everything] * len(shards), batch_size, seed)


@dataclass(frozen=True)
class _Projected:
    """What came of a run: its learning rate, how old gradients were, and each update on the directions."""

    lr: float
    delays: Mapping[int, float]
    places: Floats


def _path(study: NetworkStudy, place: _Place, directions: Tensor, lr: float, *, random: bool) -> _Projected:
    """16 workers from the minimum on: of one speed, so that every gradient is 15 updates old, or of random times."""
    home = place.weights()

    def project(model: nn.Module) -> dict[str, float]:
        moved = (_flat([parameter.detach() for parameter in model.parameters()]) - home) @ directions
        return {f"x{number}": float(value) for number, value in enumerate(moved)}

    delay = ShiftedExponential(0.5, 0.5) if random else Constant(1.0)
    run = train(
        Task(place.model, cross_entropy, (place.inputs, place.labels), evaluate=project),
        strategy=Asynchronous(),
        fleet=SimulatedFleet(delay, workers=study.workers),
        optimizer=lambda parameters: SGD(parameters, lr=lr, weight_decay=study.decay),
        stop=Stop(updates=study.updates),
        batch_size=study.batch,
        sampling=SharedSamples(),
        every=Every(updates=1),
        seed=study.seed,
        progress=False,
    )
    places = [[row.metrics[f"x{number}"] for number in range(study.directions)] for row in run.history]
    return _Projected(lr, _delays(run.trace), np.array(places))


def _delays(trace: Trace) -> dict[int, float]:
    """The share of each age of a gradient, once all workers have begun."""
    ages, version = Counter[int](), 0
    for fact in trace:
        if isinstance(fact, Step):
            if version >= 100:
                ages.update(version - ticket.version for ticket in fact.weights)
            version += 1
    total = sum(ages.values())
    return {age: count / total for age, count in sorted(ages.items())}


def _row(share: float, path: _Projected, curvatures: Floats, deviations: Floats, *, random: bool) -> dict[str, Any]:
    """Variances in the long run, found and predicted; without a delay too, which shows what the delay does."""
    settled = path.places[len(path.places) // DISCARDED :]
    found = settled.var(axis=0, ddof=1)
    predicted, undelayed = [], []
    for curvature, deviation in zip(curvatures, deviations, strict=True):
        step, noise = path.lr * float(curvature), path.lr * float(deviation)
        stable = step < mean_square_critical_step(path.delays)
        predicted.append(discrete_stationary_variance(step, path.delays, noise) if stable else None)
        undelayed.append(discrete_stationary_variance(step, 0, noise) if step < 2 else None)
    first = np.abs(path.places[:, 0])
    return {
        "share": share, "lr": path.lr, "random": random, "updates": len(path.places) - 1,
        "delays": {str(age): rounded(part) for age, part in path.delays.items()},
        "found": [rounded(float(value), 6) if np.isfinite(value) else None for value in found],
        "predicted": [None if value is None else rounded(value, 6) for value in predicted],
        "undelayed": [None if value is None else rounded(value, 6) for value in undelayed],
        "sharpest": [rounded(float(value), 4) for value in _envelope(first)],
    }  # fmt: skip


def _envelope(values: Floats, parts: int = 60) -> Floats:
    """The largest of each part of a path: whether it stays or grows."""
    kept = values[np.isfinite(values)]
    return np.array([part.max() for part in np.array_split(kept, parts) if len(part)])
