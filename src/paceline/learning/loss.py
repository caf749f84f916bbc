"""A user's loss, and the losses of single samples behind it."""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.learning.data import Samples

Loss = Callable[[Any, Any], Tensor]


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
        self._separable: bool | None = None if _option(loss, "weight") is None else False

    def separable(self, outputs: Any, targets: Any) -> bool:
        """Is the loss of this batch the mean of its samples' losses?"""
        if self._separable is None:
            self._separable = self._is_mean(outputs, targets)
        if self._separable and self._ignored is not None:
            return not bool((targets == self._ignored).any())
        return self._separable

    def state(self) -> dict[str, bool | None]:
        """What the first batch showed."""
        return {"separable": self._separable}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["separable"] not in (True, False, None):
            raise ValueError(f"separable={state['separable']!r} is no answer")
        self._separable = state["separable"]

    def _is_mean(self, outputs: Any, targets: Any) -> bool:
        with torch.no_grad():
            each, whole = self._each(outputs, targets), self.whole(outputs, targets)
            vector = each.dim() == 1 and len(each) == len(targets)
            same = whole.dim() > 0 or torch.allclose(each.mean(), whole, rtol=1e-4, atol=1e-6, equal_nan=True)
            return bool(vector and same)

    def each(self, outputs: Any, targets: Any) -> Tensor:
        """One loss for each sample. Only where the loss is separable."""
        return self._each(outputs, targets)

    def mean(self, outputs: Any, targets: Any) -> tuple[Tensor, Tensor | None]:
        """The batch loss, and the samples' own losses where they can be told."""
        if self.separable(outputs, targets):
            each = self._each(outputs, targets)
            return each.mean(), each
        whole = self.whole(outputs, targets)
        return (whole if whole.dim() == 0 else whole.mean()), None


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
        unreduced = copy.deepcopy(loss)
        unreduced.reduction = "none"  # type: ignore[assignment]
        return unreduced
    try:
        takes_reduction = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        takes_reduction = False
    if takes_reduction:
        return lambda outputs, targets: loss(outputs, targets, reduction="none")  # type: ignore[call-arg]
    return loss
