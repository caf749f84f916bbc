"""What a worker does with a ticket: the gradient of a mini-batch, block by block, handed in as one row."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from paceline.learning.data import Samples
from paceline.learning.generators import seed_generators
from paceline.learning.loss import SampleLoss
from paceline.learning.segments import NOTHING, Brought, Segment
from paceline.sampling.partition import Indices


def _backward(values: Tensor, factors: Tensor) -> None:
    """``torch.autograd.backward`` without its checks, which load sympy (seconds) and cost as much as a small model."""
    _engine_run_backward((values,), (factors,), False, False, (), allow_unreachable=True, accumulate_grad=True)


class GradientWork:
    r"""Computes $\frac1n \sum_{i \le n} \nabla \ell_i$ over the samples of a mini-batch, in blocks.

    After $r$ of $s$ blocks the row holds what they contribute to the whole, not their own mean: whoever uses the row
    of an unfinished batch multiplies it by (samples of the batch) / (samples computed).
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], samples: Samples, loss: SampleLoss
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._buffers = list(model.buffers())
        self._samples = samples
        self._loss = loss
        self._source: Segment | None = None
        self._factors: dict[tuple[tuple[int, ...], float], Tensor] = {}

    def compute(
        self, source: Segment, row: Segment, indices: Indices, *, units: int, seed: int, go_on: Callable[[int], bool]
    ) -> tuple[int, Brought]:
        """Compute at the weights of a segment as many blocks as ``go_on(block)`` allows, and write them to a row.

        Returns the number of blocks, and what is to be known of the row.
        """
        self._download(source, seed)
        total, done, end = len(indices), 0, 0
        untold: list[Tensor] = []  # the losses of blocks whose samples' losses cannot be told, times their samples
        while done < units and go_on(done):
            begin, end = end, total * (done + 1) // units
            losses = self._backward(indices[begin:end] if units > 1 else indices, total)
            if losses.dim():
                row.losses[begin:end].copy_(losses)
            else:
                untold.append(losses * (end - begin))
            done += 1
        if not done:
            return 0, NOTHING
        self._hand_in(row)
        if untold:
            row.losses[0] = sum(untold) / end
        return done, row.brought(1 if untold else end)

    def _download(self, source: Segment, seed: int) -> None:
        seed_generators(seed)
        if source is not self._source:
            for parameter, values in zip(self._parameters, source.parameters, strict=True):
                parameter.data = values
            self._source = source
        for buffer, values in zip(self._buffers, source.buffers, strict=True):
            buffer.copy_(values)
        for parameter in self._parameters:
            parameter.grad = None

    def _backward(self, indices: Indices, total: int) -> Tensor:
        """Add a block's part of the mean gradient to ``grad``. Returns its samples' losses, or else its own."""
        inputs, targets = self._samples.fetch(indices)
        outputs: Any = self._model(inputs)
        if self._loss.separable(outputs, targets):
            each = self._loss.each(outputs, targets)
            _backward(each, self._factor((len(indices),), 1 / total, each))
            return each.detach()
        whole, _ = self._loss.mean(outputs, targets)
        _backward(whole, self._factor((), len(indices) / total, whole))
        return whole.detach()

    def _factor(self, shape: tuple[int, ...], value: float, like: Tensor) -> Tensor:
        known = self._factors.get((shape, value))
        if known is None:
            known = self._factors[shape, value] = torch.full(shape, value, dtype=like.dtype)
        return known

    def _hand_in(self, row: Segment) -> None:
        with torch.no_grad():
            # without a gradient: the loss does not depend on it
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
            torch._foreach_copy_(row.parameters, gradients)
            for buffer, values in zip(row.buffers, self._buffers, strict=True):
                buffer.copy_(values)
