"""What a worker does with a ticket: the gradient of a mini-batch, block by block, written to one slot of the arena."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.data.samples import Samples, copied, joined
from paceline.learning.arena.arena import EMPTY_REPORT, Report, Slot
from paceline.learning.generators import seed_generators
from paceline.learning.loss import Objective, SampleLoss, add_logged, no_pieces, pieces
from paceline.learning.model_state import make_dense
from paceline.learning.workload import state_of


def _backward(values: Tensor, factors: Tensor) -> None:
    """``torch.autograd.backward`` without its checks, which load sympy (seconds) and cost as much as a small model."""
    _engine_run_backward((values,), (factors,), False, False, (), allow_unreachable=True, accumulate_grad=True)


class GradientWork:
    r"""Computes $\frac1n \sum_{i \le n} \nabla \ell_i$ over the samples of a mini-batch, in blocks.

    After $r$ of $s$ blocks the slot holds what they contribute to the whole, not their own mean: whoever uses the slot
    of an unfinished batch multiplies it by (samples of the batch) / (samples computed).

    Where the mean is one by other weights than the number of samples (class weights, targets that are ignored), blocks
    are weighed by those. Where it is not known to be a mean at all, the model is passed through block by block, and the
    loss of all outputs and its gradient are computed in the end: of the mini-batch, or of what of it was computed.

    With ``micro_batches`` no pass has more than that part of a mini-batch's samples.
    """

    def __init__(
        self, model: nn.Module, parameters: Sequence[nn.Parameter], samples: Samples, loss: Objective, *,
        micro_batches: int = 1, logged: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._model = model
        self._parameters = parameters
        self._buffers = state_of(model, loss.whole).buffers
        self._samples = samples
        self._loss = loss
        self._micro_batches = micro_batches
        self._logged = logged  # the names of what a step logs
        self._in_the_end = False  # is the loss one that cannot be computed by blocks?
        self._source: Slot | None = None
        self._factors: dict[tuple[tuple[int, ...], float], Tensor] = {}

    def compute(
        self, source: Slot, slot: Slot, indices: Indices, *, units: int, seed: int, go_on: Callable[[int], bool]
    ) -> tuple[int, Report]:
        """Compute as many blocks as ``go_on(block)`` allows, at the weights of one slot, and write the sum to another.

        Returns the number of blocks, and what is reported of the gradient.
        """
        self._download(source, seed)
        if not self._in_the_end:
            done, report = self._by_blocks(slot, indices, units, go_on)
        if self._in_the_end:  # which may have turned out only now
            self._download(source, seed)
            done, report = self._together(slot, indices, units, go_on)
        return done, report

    def _by_blocks(self, slot: Slot, indices: Indices, units: int, go_on: Callable[[int], bool]) -> tuple[int, Report]:
        total, done, end = len(indices), 0, 0
        separate: list[slice] = []  # of the blocks whose samples have losses of their own
        loss_sum, loss_weight = 0.0, 0.0  # of the others
        split, most, passes = units > 1 or self._micro_batches > 1, -(-total // self._micro_batches), 0
        logged: dict[str, tuple[float, float]] = {}
        while done < units and go_on(done):
            begin, end = end, total * (done + 1) // units
            done += 1
            for part in [slice(begin, end)] if self._micro_batches == 1 else pieces(begin, end, most):
                size = part.stop - part.start
                passes += 1
                found = self._loss.losses(self._model, self._samples.fetch(indices[part] if split else indices), size)
                if found.logged:
                    add_logged(logged, found.logged_sums())
                if (each := found.each) is not None:
                    _backward(each, self._factor((size,), 1 / total, each))
                    slot.losses[part].copy_(each.detach())
                    separate.append(part)
                    continue
                if found.weight is None and self._micro_batches > 1:
                    raise no_pieces(self._micro_batches)
                if found.weight is None and units > 1:
                    self._in_the_end = True
                    return 0, EMPTY_REPORT
                weight, mean = float(total) if found.weight is None else found.weight, found.mean()
                _backward(mean, self._factor((), weight / total if split else 1.0, mean))
                loss_sum += float(mean.detach()) * weight
                loss_weight += weight
        if not done:
            return 0, EMPTY_REPORT
        for place, name in enumerate(self._logged):
            slot.logged[2 * place : 2 * place + 2] = torch.tensor(logged.get(name, (0.0, 0.0)), dtype=torch.float64)
        if len(separate) == passes:
            unused = self._hand_in(slot)
            return done, slot.report(end, unused=unused)
        loss_sum += sum(float(slot.losses[part].sum()) for part in separate)
        loss_weight += sum(part.stop - part.start for part in separate)
        if split and loss_weight:
            self._scale(end / loss_weight)
        return done, self._hand_in_whole(slot, loss_sum / loss_weight if loss_weight else 0.0, loss_weight)

    def _together(self, slot: Slot, indices: Indices, units: int, go_on: Callable[[int], bool]) -> tuple[int, Report]:
        total, done, end = len(indices), 0, 0
        assert isinstance(self._loss, SampleLoss)  # every other loss of a batch is a mean
        passed: list[tuple[Any, Any]] = []
        sizes: list[int] = []
        while done < units and go_on(done):
            begin, end = end, total * (done + 1) // units
            done += 1
            inputs, targets = self._samples.fetch(indices[begin:end])
            passed.append((self._model(copied(inputs)), targets))  # what was fetched is written over by the next block
            sizes.append(end - begin)
        if not done:
            return 0, EMPTY_REPORT
        pair = joined(passed, sizes)
        if pair is None:
            raise ConfigError(
                "the loss is one number for a mini-batch, and the model's outputs are not tensors with a row for each "
                "sample: it cannot be computed in blocks; let the loss return one value for each sample, or blocks=1"
            )
        outputs, targets = pair
        mean = self._loss.of(outputs, targets, end).mean()
        _backward(mean, self._factor((), end / total, mean))
        return done, self._hand_in_whole(slot, float(mean.detach()), end)

    def _scale(self, factor: float) -> None:
        with torch.no_grad():
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def _hand_in_whole(self, slot: Slot, mean: float, weight: float) -> Report:
        """Hand in a gradient of which only the loss of the whole batch is known."""
        unused = self._hand_in(slot)
        slot.losses[0] = mean
        return slot.report(1, weight, unused=unused)

    def _download(self, source: Slot, seed: int) -> None:
        seed_generators(seed)
        if source is not self._source:
            for parameter, values in zip(self._parameters, source.parameters, strict=True):
                parameter.data = values
            self._source = source
        for buffer, values in zip(self._buffers, source.buffers, strict=True):
            buffer.copy_(values)
        for parameter in self._parameters:
            parameter.grad = None

    def _factor(self, shape: tuple[int, ...], value: float, like: Tensor) -> Tensor:
        known = self._factors.get((shape, value))
        if known is None:
            known = self._factors[shape, value] = torch.full(shape, value, dtype=like.dtype)
        return known

    def _hand_in(self, slot: Slot) -> int:
        """Returns how many parameters the loss does not depend on: without a gradient, and marked in the slot."""
        make_dense(self._parameters)
        missing = [number for number, parameter in enumerate(self._parameters) if parameter.grad is None]
        with torch.no_grad():
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
            torch._foreach_copy_(slot.parameters, gradients)
            if missing:
                slot.unused.zero_()
                slot.unused[missing] = 1
            for buffer, values in zip(slot.buffers, self._buffers, strict=True):
                buffer.copy_(values)
        return len(missing)
