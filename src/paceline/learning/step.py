"""The objective of ``Task(step=)``, a function of the user's own from a model and a batch to the loss; and averages.

A step returns the loss of each sample, or their mean, or a mapping with ``loss`` and anything else to log. What it logs
is averaged over samples: numbers, tensors of one value, and vectors with one value for each sample. Other values, such
as the outputs of a model, are not logged.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.learning.loss import BatchLoss, add_logged, sum_of

Step = Callable[[nn.Module, Any], Any]
Metrics = Callable[[nn.Module, Any], Mapping[str, Any]] | Mapping[str, Callable[..., Any]]
WANTED = "return the loss of each sample, their mean, or a mapping with 'loss'"


class StepLoss:
    """Calls a step. The mean that it returns counts for as many samples as its batch has."""

    why_whole = "step returns one loss for a batch, not one for each sample"

    def __init__(self, step: Step) -> None:
        self.whole = step
        self._separable: bool | None = None

    def passed(self, model: nn.Module, batch: Any) -> Any:
        return self.whole(model, batch)

    def losses(self, model: nn.Module, batch: Any, samples: int) -> BatchLoss:
        returned = self.whole(model, batch)
        loss, logged = returned, returned
        if isinstance(returned, Tensor):
            logged = {}
        elif isinstance(returned, Mapping):
            loss = returned.get("loss")
        if not isinstance(loss, Tensor):
            raise _no_loss(returned)
        shape = loss.shape
        if len(shape) == 0:
            self._separable = False
            return BatchLoss(samples, None, loss, float(samples), None, logged)
        if shape != (samples,):
            raise ConfigError(f"step returned a loss of shape {list(shape)} for a batch of {samples} samples: {WANTED}")
        self._separable = True
        return BatchLoss(samples, loss, None, float(samples), None, logged)

    def move(self, device: torch.device) -> None:
        if isinstance(self.whole, nn.Module):
            self.whole.to(device)

    def state(self) -> dict[str, bool | None]:
        return {"separable": self._separable}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state["separable"] not in (True, False, None):
            raise ValueError(f"separable={state['separable']!r} is no answer")
        self._separable = state["separable"]


def _no_loss(returned: Any) -> ConfigError:
    what = "None" if returned is None else f"a {type(returned).__name__}, not a tensor"
    if isinstance(returned, Mapping):
        names = ", ".join(repr(name) for name in returned)
        what = f"a mapping without 'loss' (it has {names or 'nothing'})"
        if "loss" in returned:
            what = f"a mapping whose 'loss' is {shown(returned['loss'])}, not a tensor"
    return ConfigError(f"step returned {what}: {WANTED}")


class Averages:
    """Means of named values over the samples of many batches."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}  # and of how many samples

    def add(self, values: Mapping[str, Any], samples: int, *, strict: bool = False) -> None:
        """Values of a batch of so many samples: a mean, or one for each. Others are an error if ``strict``."""
        for name, value in values.items():
            total = sum_of(value, samples)
            if total is not None:
                add_logged(self._sums, {str(name): (total, float(samples))})
            elif strict:
                raise ConfigError(
                    f"metrics returned {name}={shown(value)} for a batch of {samples} samples: a number, or a vector "
                    "with one for each sample"
                )

    def means(self) -> dict[str, float]:
        return {name: total / samples for name, (total, samples) in self._sums.items()}


class MetricFunctions:
    """The argument ``metrics`` of a task: of batches, and of the averages that these come to."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._whole: Callable[[nn.Module, Any], Any] | None = None
        self._of_batches: dict[str, Callable[..., Any]] = {}
        self._of_averages: dict[str, Callable[..., Any]] = {}
        if isinstance(metrics, Mapping):
            for name, function in metrics.items():
                if not callable(function) or not isinstance(name, str):
                    raise ConfigError(
                        f"metrics[{name!r}] is {shown(function)}: give a function of (model, batch), or of the averages"
                    )
                (self._of_averages if _arguments(function) == 1 else self._of_batches)[name] = function
        elif metrics is not None:
            if not callable(metrics):
                raise ConfigError(
                    f"metrics={shown(metrics)} is no function of (model, batch) that returns a mapping, and no mapping "
                    "from names to such functions"
                )
            self._whole = metrics

    def add(self, averages: Averages, model: nn.Module, batch: Any, samples: int) -> None:
        if self._whole is not None:
            values = self._whole(model, batch)
            if not isinstance(values, Mapping):
                raise ConfigError(f"metrics returned {shown(values)}: let it return a mapping from names to numbers")
            averages.add(values, samples, strict=True)
        for name, function in self._of_batches.items():
            averages.add({name: function(model, batch)}, samples, strict=True)

    def derive(self, means: dict[str, float]) -> Iterator[tuple[str, float]]:
        """What is made of the averages, such as a perplexity."""
        for name, function in self._of_averages.items():
            try:
                yield name, float(function(means))
            except KeyError as error:
                raise ConfigError(
                    f"metrics[{name!r}] asks for the average {error}: there are {', '.join(means) or 'none'}"
                ) from None


def _arguments(function: Callable[..., Any]) -> int:
    """How many arguments a function has to be given."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_place and each.default is inspect.Parameter.empty for each in parameters)
