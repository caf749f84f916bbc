"""A user's loss, the losses of single samples behind it, and the loss of more samples than pass through at once."""

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paceline.data.samples import Samples

Loss = Callable[[Any, Any], Tensor]
MEANS = ("mean", "batchmean")
BY_CLASS = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss", "NLLLoss2d")  # divided by class weights
GATHERED = 1 << 30  # bytes of outputs that are kept to compute a loss of them all

log = logging.getLogger("paceline")


class SampleLoss:
    """Splits a batch loss into per-sample losses where it is their mean; otherwise leaves it whole.

    Torch's losses are asked for ``reduction="none"``; a loss of one's own may return a vector, one value a sample. A
    loss is not their mean with class weights, where a target of the batch is to be ignored, and wherever the first
    batch shows a difference (sums, contrastive losses) or there is no vector. Then it is used as it is, batch by batch.
    """

    def __init__(self, loss: Loss, data: Samples) -> None:
        self.whole = loss
        self._each = _unreduced(loss)
        ignored = _option(loss, "ignore_index")
        self._ignored = ignored if ignored is not None and data.may_have_target(ignored) else None
        self._class_weights: Tensor | None = _option(loss, "weight")
        self._separable: bool | None = None if self._class_weights is None else False
        self._name = _name_in_torch(loss)
        self._doubtful = self._name is None and self._each is not loss  # somebody's own idea of a reduction

    def separable(self, outputs: Any, targets: Any) -> bool:
        """Is the loss of this batch the mean of its samples' losses?"""
        if self._separable is None or (self._separable and self._doubtful):
            self._separable = self._is_mean(outputs, targets)
        if self._separable and self._ignored is not None:
            return not bool((targets == self._ignored).any())
        return self._separable

    def weight(self, outputs: Any, targets: Any, samples: int) -> float | None:
        r"""By what the mean over a batch is to be weighed so that means make up a mean; nothing if it cannot be told.

        $$\bar\ell = \frac{\sum_b W_b\, \bar\ell_b}{\sum_b W_b}$$

        $W$ is the number of samples; in torch's cross entropy and negative log likelihood of classes it is
        $\sum_i w_{y_i}$ over the targets that are not ignored. Of any other loss that is one number nothing is known.
        """
        if self.separable(outputs, targets):
            return float(samples)
        if self._name in BY_CLASS and isinstance(targets, Tensor) and not targets.is_floating_point():
            counted = targets if self._ignored is None else targets[targets != self._ignored]
            weights = self._class_weights
            return float(counted.numel() if weights is None else weights[counted].sum(dtype=torch.float64))
        return None if self._name is None else float(samples)

    def sum_and_weight(self, mean: Tensor, outputs: Any, targets: Any, samples: int) -> tuple[float, float]:
        """A batch's part in the mean loss of many: its mean times its weight (or its samples), and the weight."""
        weight = self.weight(outputs, targets, samples)
        known = float(samples) if weight is None else weight
        return float(mean.detach()) * known, known

    def counted(self, targets: Tensor) -> Tensor:
        """Which targets are not ignored."""
        return torch.ones_like(targets, dtype=torch.bool) if self._ignored is None else targets != self._ignored

    def state(self) -> dict[str, bool | None]:
        """What the first batch showed."""
        return {"separable": self._separable}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["separable"] not in (True, False, None):
            raise ValueError(f"separable={state['separable']!r} is no answer")
        self._separable = state["separable"]

    def _is_mean(self, outputs: Any, targets: Any) -> bool:
        with torch.no_grad():
            each = self._each(outputs, targets)
            if each.dim() != 1 or len(each) != len(targets):
                return False
            if self._name is not None:
                return True
            whole = self.whole(outputs, targets)
            return whole.dim() > 0 or torch.allclose(each.mean(), whole, rtol=1e-4, atol=1e-6, equal_nan=True)

    def each(self, outputs: Any, targets: Any) -> Tensor:
        """One loss for each sample. Only where the loss is separable."""
        return self._each(outputs, targets)

    def mean(self, outputs: Any, targets: Any) -> tuple[Tensor, Tensor | None]:
        """The batch loss, and the samples' own losses where they can be told."""
        if self.separable(outputs, targets):
            each = self._each(outputs, targets)
            return each.mean(), each
        if self.weight(outputs, targets, 1) == 0:  # all are ignored: torch's mean is NaN, and its gradient 0
            return self._each(outputs, targets).sum(), None
        whole = self.whole(outputs, targets)
        return (whole if whole.dim() == 0 else whole.mean()), None


class LossOfAll:
    """The loss of many samples that come in batches: what it is of all of them at once.

    The means of batches are combined where it is known how. Of any other loss the outputs are kept, and it is computed
    once in the end; where those cannot be joined, or take too much memory, the mean by samples is taken, and that said.
    """

    def __init__(self, loss: SampleLoss) -> None:
        self._loss = loss
        self._sum, self._weight = 0.0, 0.0
        self._kept: list[tuple[Any, Any]] = []
        self._sizes: list[int] = []
        self._bytes = 0

    def add(self, outputs: Any, targets: Any, samples: int) -> None:
        weight = self._loss.weight(outputs, targets, samples)
        if weight is None:
            self._kept.append((copied(outputs), copied(targets)))  # they may lie where the next inputs will
            self._sizes.append(samples)
            self._bytes += _bytes(outputs)
            if self._bytes > GATHERED:
                self._say(f"the outputs of all take more than {GATHERED >> 20} MiB")
                self._settle()
        elif weight:  # else all are ignored, and their mean is no number
            self._take(outputs, targets, weight)

    def value(self) -> float:
        self._settle()
        return self._sum / self._weight if self._weight else float("nan")

    def _take(self, outputs: Any, targets: Any, weight: float) -> None:
        self._sum += float(self._loss.mean(outputs, targets)[0]) * weight
        self._weight += weight

    def _settle(self) -> None:
        """The loss of what is kept."""
        pair: tuple[Any, Any] | None = joined(self._kept, self._sizes) if self._kept else None
        if pair is not None:
            self._take(*pair, sum(self._sizes))
        elif self._kept:
            self._say("outputs or targets are not tensors with a row for each sample, and cannot be joined")
            for kept, size in zip(self._kept, self._sizes, strict=True):
                self._take(*kept, size)
        self._kept, self._sizes, self._bytes = [], [], 0

    def _say(self, why: str) -> None:
        log.warning(
            "the loss of many samples is the mean over parts of them, which may not be what it is of all: %s; let the "
            "loss return one value for each sample", why,
        )  # fmt: skip


def joined(batches: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Tensors, however nested, with the rows of all batches; nothing if they have no row for each sample."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        pairs = zip(batches, sizes, strict=True)
        rows = all(each.dim() and each.shape == (size, *first.shape[1:]) for each, size in pairs)
        return torch.cat(list(batches)) if rows else None
    if isinstance(first, Mapping):
        parts = {key: joined([each[key] for each in batches], sizes) for key in first}
        return None if any(part is None for part in parts.values()) else parts
    if isinstance(first, list | tuple) and first:
        pieces = [joined(each, sizes) for each in zip(*batches, strict=True)]
        return None if any(piece is None for piece in pieces) else _like(first, pieces)
    return None


def copied(batch: Any) -> Any:
    """Tensors, however nested, in memory of their own."""
    if isinstance(batch, Tensor):
        return batch.clone()
    if isinstance(batch, Mapping):
        return {key: copied(value) for key, value in batch.items()}
    return _like(batch, [copied(value) for value in batch]) if isinstance(batch, list | tuple) else batch


def _like(example: Any, values: list[Any]) -> Any:
    """A list, a tuple, or a named tuple of the example's kind."""
    return type(example)(*values) if hasattr(example, "_fields") else type(example)(values)


def _bytes(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, Mapping):
        return sum(_bytes(each) for each in batch.values())
    return sum(_bytes(each) for each in batch) if isinstance(batch, list | tuple) else 0


def numbers(losses: Tensor) -> NDArray[Any]:
    """Losses as an array: those of half precision in floats, for numpy does not know all of their types."""
    return losses.detach().to("cpu", torch.promote_types(losses.dtype, torch.float32)).numpy()


def _name_in_torch(loss: Loss) -> str | None:
    """The name of one of torch's own losses that is a mean over samples, or over their class weights."""
    kind: Any = loss.func if isinstance(loss, functools.partial) else loss
    kind = type(kind) if isinstance(kind, nn.Module) else kind
    own = getattr(kind, "__module__", None) in ("torch.nn.modules.loss", "torch.nn.functional")
    return kind.__name__ if own and _option(loss, "reduction") in MEANS else None


def _option(loss: Loss, name: str) -> Any:
    """An option that a torch loss has, was given by ``functools.partial``, or has by default."""
    if isinstance(loss, nn.Module):
        return getattr(loss, name, None)
    try:
        parameter = inspect.signature(loss).parameters.get(name)
    except (TypeError, ValueError):
        return None
    return None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default


def _unreduced(loss: Loss) -> Loss:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        unreduced = copy.copy(loss)  # with the same parameters
        unreduced.reduction = "none"  # type: ignore[assignment]
        return unreduced
    try:
        takes_reduction = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        takes_reduction = False
    if takes_reduction:
        return functools.partial(loss, reduction="none")  # type: ignore[call-arg]
    return loss
