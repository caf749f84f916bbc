"""Numbers of each update that a strategy asks for: ``paceline.core.messages.REPORTS`` says which, and what they mean.

A strategy sees no tensors. One that goes by the progress of learning, such as ``AdaptiveQuorum``, names the numbers it
needs in its attribute ``reports``. They come to it as an event after the update, so that the trace has them and a
replay decides the same. Where no strategy asks, nothing is computed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.learning.contributions import Evaluated
from paceline.learning.model_state import like


class UpdateReports:
    """Computes the ``names`` that were asked for, of the combined gradients of one model."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self._last: list[Tensor] | None = None  # the gradient of the update before
        self._numbers: dict[str, float] = {}

    def note(
        self, gradients: Sequence[Tensor], result: Evaluated, loss: float, weights: Mapping[Ticket, Fraction]
    ) -> None:
        """An update steps along these gradients, one vector for each type of number."""
        found = {"loss": loss, "norm": result.norm}
        if "inner" in self.names:
            if self._last is not None:
                found["inner"] = sum(_inner(*pair) for pair in zip(gradients, self._last, strict=True))
            self._last = [flat.detach().clone() for flat in gradients]
        if "spread" in self.names:
            total = float(sum(weights.values()))
            variance = result.mean_square / total - (result.norm / total) ** 2 if total else math.nan
            found["spread"] = math.sqrt(max(0.0, variance)) if math.isfinite(variance) else math.nan
        self._numbers = {name: found[name] for name in self.names if math.isfinite(found.get(name, math.nan))}

    def numbers(self) -> Mapping[str, float]:
        """Those of the last update that are known and finite."""
        return self._numbers

    def state(self) -> State:
        return {} if self._last is None else {"last": self._last}

    def restore(self, state: State, gradients: list[Tensor]) -> None:
        self._last = like(gradients, state["last"]) if "last" in state else None


def _inner(one: Tensor, other: Tensor) -> float:
    if one.is_complex():
        one, other = torch.view_as_real(one).flatten(), torch.view_as_real(other).flatten()
    return float(torch.dot(one.double(), other.double()))
