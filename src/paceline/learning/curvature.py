r"""How sharply a model's loss bends: the largest eigenvalue of its Hessian, from Hessian-vector products alone.

The step of gradient descent is limited by the sharpest direction: $\eta\,\lambda_{\max}$ must stay below a number that
``paceline.theory.critical_step`` tells for each delay.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.data.samples import to_device
from paceline.learning.task import Task, device_of, eval_mode, said_in_one_line

SAMPLES_AT_ONCE = 1024


@dataclass(frozen=True)
class Curvature:
    r"""The largest eigenvalue of the Hessian of the mean loss over some samples, as far as it was found.

    value      a Rayleigh quotient: $\lambda_{\max}$ is at least this, up to rounding
    error      $\lVert Hv - \lambda v \rVert$ of the unit vector $v$ behind it: some eigenvalue lies within it
    converged  the error came below the tolerance, relative to the value
    """

    value: float
    error: float
    converged: bool
    products: int
    samples: int


class Effort(NamedTuple):
    """How much may be spent on it: samples, products with the Hessian, relative tolerance, seconds of computing."""

    samples: int = 2048
    products: int = 60
    tolerance: float = 1e-3
    seconds: float = math.inf


def curvature(
    task: Task,
    effort: Effort = Effort(),
    *,
    model: nn.Module | None = None,
    seed: int = 0,
    progress: Callable[[Curvature], None] | None = None,
) -> Curvature:
    r"""The largest eigenvalue of the Hessian of ``task``'s training loss, by the Lanczos iteration.

    From a random unit vector $v$ it builds an orthonormal basis of $\{v, Hv, H^2v, \dots\}$, in which $H$ is the
    tridiagonal matrix $T_k$. With $\theta$ the largest eigenvalue of $T_k$ and $s$ the last entry of its eigenvector,

    $$\lVert H y - \theta y \rVert = \beta_k |s|, \qquad \theta \le \lambda_{\max}$$

    for the unit vector $y$ that belongs to $\theta$ (Golub & Van Loan, *Matrix Computations*, Sec. 10.1). Some
    eigenvalue is within $\beta_k |s|$ of $\theta$. That it is the largest one is certain only in the limit; a random
    start makes it hard to miss.

    effort    of the training data at most so many samples, drawn at random; at most so many products; until the error
              is below the tolerance; or until so many seconds have passed
    model     whose weights to look at, instead of ``task.model``
    progress  called after each product

    The model is looked at in **eval mode**: batch normalisation uses its running statistics, and dropout is off. The
    curvature of the training loss with either differs. Only parameters that are trained count. Memory: one vector of
    the size of the model for each product. The model and torch's random state are left as they were. An
    ``autograd.Function`` that is marked ``once_differentiable`` counts as if it were linear, since torch cuts it off.
    """
    _check(effort)
    if not isinstance(task, Task):
        raise ConfigError(f"task={shown(task)} is none: give Task(model, loss, train=(inputs, targets))")
    looked_at = task.model if model is None else model
    hessian = _Hessian(looked_at, task, effort.samples, seed)
    deadline = time.monotonic() + effort.seconds
    with said_in_one_line(task), eval_mode(looked_at):
        for found in _lanczos(hessian, seed, effort.tolerance):
            if progress is not None:
                progress(found)
            if not math.isfinite(found.value):
                raise ConfigError("the curvature is not finite: the loss overflows at these weights")
            spent = found.products >= min(effort.products, hessian.size) or time.monotonic() >= deadline
            if found.converged or spent:
                break
    return found


def _lanczos(hessian: "_Hessian", seed: int, tolerance: float) -> Iterator[Curvature]:
    """What is known after each product."""
    basis = [hessian.random_vector(seed)]
    alphas, betas = list[float](), list[float]()
    while True:
        image = hessian.times(basis[-1])
        alphas.append(float(basis[-1] @ image))
        for _ in range(2):  # once would leave what rounding brings back of the directions known already
            for known in basis:
                image = image - (known @ image) * known
        betas.append(float(image.norm()))
        yield _found(alphas, betas, tolerance, hessian.samples)
        basis.append(image / betas[-1])


def _found(alphas: list[float], betas: list[float], tolerance: float, samples: int) -> Curvature:
    if not all(map(math.isfinite, (*alphas, *betas))):
        return Curvature(math.nan, math.inf, False, len(alphas), samples)
    values, vectors = eigh_tridiagonal(np.array(alphas), np.array(betas[:-1]))
    largest, error = float(values[-1]), betas[-1] * abs(float(vectors[-1, -1]))
    scale = max(abs(float(values[0])), abs(largest))
    return Curvature(largest, error, error <= tolerance * scale, len(alphas), samples)


class _Hessian:
    """Products of the Hessian with vectors: the derivative of the gradient along a direction."""

    def __init__(self, model: nn.Module, task: Task, samples: int, seed: int) -> None:
        self._model = model
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise ConfigError("the model has no parameters that are trained, and so no curvature")
        data = task.training_samples()
        if not len(data):
            raise ConfigError("the curvature needs data: the training set is empty")
        self.samples = min(samples, len(data))
        chosen = np.sort(np.random.default_rng(seed).permutation(len(data))[: self.samples])
        self._batches = [chosen[begin : begin + SAMPLES_AT_ONCE] for begin in range(0, len(chosen), SAMPLES_AT_ONCE)]
        self._data = data
        self._loss = task.objective(data)
        self._device = device_of(model)
        self.size = sum(parameter.numel() for parameter in self._parameters)

    def random_vector(self, seed: int) -> Tensor:
        generator = np.random.default_rng([seed, 1])
        drawn: NDArray[np.float64] = generator.standard_normal(self.size)
        first = self._parameters[0]
        vector = torch.from_numpy(drawn).to(device=first.device, dtype=first.dtype)
        unit: Tensor = vector / vector.norm()
        return unit

    def times(self, vector: Tensor) -> Tensor:
        total, weights = torch.zeros_like(vector), 0.0
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # fast attention has no second derivatives
            for indices in self._batches:
                batch = to_device(self._data.fetch(indices), self._device)
                found = self._loss.losses(self._model, batch, len(indices))
                try:
                    product = self._derivative(found.mean(), vector)
                except RuntimeError as error:
                    raise ConfigError(f"the model has no second derivatives: {' '.join(str(error).split())}") from None
                _, weight = found.sum_and_weight()
                total += product * weight
                weights += weight
        return total / weights if weights else total

    def _derivative(self, loss: Tensor, vector: Tensor) -> Tensor:
        gradients = torch.autograd.grad(loss, self._parameters, create_graph=True, allow_unused=True)
        pieces = torch.split(vector, [parameter.numel() for parameter in self._parameters])
        along = sum(
            (g.flatten() @ piece.to(g.dtype) for g, piece in zip(gradients, pieces, strict=True) if g is not None),
            start=torch.zeros((), device=vector.device),
        )
        if not along.requires_grad:  # a loss that is linear in the parameters does not bend
            return torch.zeros_like(vector)
        seconds = torch.autograd.grad(along, self._parameters, allow_unused=True)
        return torch.cat([
            torch.zeros_like(parameter).flatten() if second is None else second.flatten()
            for parameter, second in zip(self._parameters, seconds, strict=True)
        ]).to(vector.dtype)  # fmt: skip


def _check(effort: Effort) -> None:
    for name, value in effort._asdict().items():
        if not value > 0:
            raise ConfigError(f"a curvature with {name}={value} cannot be found: more than 0")
