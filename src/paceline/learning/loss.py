"""A user's loss, and the losses of single samples behind it."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[Any, Any], Tensor]


class SampleLoss:
    """Splits a batch loss into per-sample losses where it is their mean; otherwise leaves it whole.

    Torch's losses are asked for ``reduction="none"``; a loss of one's own may return a vector, one value a sample.
    On the first batch the mean is compared with the loss as given. If they differ (class weights, sums, contrastive
    losses), or if there is no vector, ``separable`` is false: the batch loss is used as it is, batch by batch.
    """

    def __init__(self, loss: Loss) -> None:
        self.whole = loss
        self._each = _unreduced(loss)
        self._separable: bool | None = None

    @property
    def separable(self) -> bool:
        return bool(self._separable)

    def settle(self, outputs: Any, targets: Any) -> None:
        """Find out, on a first batch, whether the loss is the mean of per-sample losses."""
        if self._separable is None:
            with torch.no_grad():
                each, whole = self._each(outputs, targets), self.whole(outputs, targets)
                vector = each.dim() == 1 and len(each) == len(targets)
                mean = each.mean()
                same = whole.dim() > 0 or torch.allclose(mean, whole, rtol=1e-4, atol=1e-6, equal_nan=True)
                self._separable = bool(vector and same)

    def each(self, outputs: Any, targets: Any) -> Tensor:
        """One loss for each sample. Only for a separable loss."""
        return self._each(outputs, targets)

    def mean(self, outputs: Any, targets: Any) -> tuple[Tensor, Tensor | None]:
        """The batch loss, and the samples' own losses where they can be told."""
        if self.separable:
            each = self._each(outputs, targets)
            return each.mean(), each
        whole = self.whole(outputs, targets)
        return (whole if whole.dim() == 0 else whole.mean()), None


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
