"""What the user gives: a model, a loss, data, and how the result is evaluated."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.codec import check_names
from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.data.samples import Data, Samples, as_tensors, samples, to_device
from paceline.learning.loss import Loss, LossOfAll, SampleLoss

EVALUATED_AT_ONCE = 2048
T = TypeVar("T")

log = logging.getLogger("paceline")


@dataclass(frozen=True)
class Task:
    """Train ``model`` to a small ``loss(outputs, targets)`` on ``train``; evaluate it on ``test``.

    Data are pairs of tensors or numpy arrays, or map-style datasets of (input, target). ``evaluate`` replaces the
    usual evaluation (mean loss and, for class labels, accuracy on ``test``, or on ``train`` without one): it takes the
    model in eval mode and returns a mapping from names of metrics to numbers, such as ``loss``, ``accuracy`` and
    ``perplexity``. Where ``train`` augments its samples, ``unaugmented`` are the same ones as they are, for methods
    that label them by a model. The model is copied for every run; yours stays as it is. It is trained on the device
    that its parameters are on; modules of it that are in eval mode stay in it.
    """

    model: nn.Module
    loss: Loss
    train: Data
    test: Data | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    unaugmented: Data | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            given = f"the class {self.model.__name__}" if isinstance(self.model, type) else type(self.model).__name__
            raise ConfigError(f"model must be a torch module, such as nn.Linear(64, 10), not {given}")
        if not callable(self.loss):
            raise ConfigError(f"loss must be a function of outputs and targets, not {type(self.loss).__name__}")
        floats = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.get_default_dtype())
        for name in ("train", "test", "unaugmented"):
            given = getattr(self, name)
            object.__setattr__(self, name, as_tensors(given, floats))
            if floats is not torch.float64 and any(
                isinstance(part, np.ndarray) and part.dtype == np.float64
                for part in (given if isinstance(given, tuple | list) else ())
            ):
                log.warning("%s: arrays of float64 are taken as %s, the type of the model's parameters", name, floats)

    def training_samples(self) -> Samples:
        return samples(self.train)

    def unaugmented_samples(self) -> Samples:
        """The training samples as they are, in the same order."""
        plain = self.training_samples() if self.unaugmented is None else samples(self.unaugmented)
        if len(plain) != len(self.training_samples()):
            raise ConfigError(f"{len(plain)} unaugmented samples for {len(self.training_samples())} training samples")
        return plain

    def judge(self) -> Callable[[nn.Module], tuple[float, float]]:
        """A function from a model to its (loss, accuracy), NaN if unknown: what ``evaluator`` was before metrics."""
        warnings.warn("Task.judge() is now Task.evaluator()", DeprecationWarning, stacklevel=2)
        evaluate = self.evaluator()

        def judge(model: nn.Module) -> tuple[float, float]:
            metrics = evaluate(model)
            return metrics.get("loss", math.nan), metrics.get("accuracy", math.nan)

        return judge

    def evaluator(self) -> Callable[[nn.Module], Mapping[str, float]]:
        """A function from a model to its metrics by name; one that cannot be known, as an accuracy, is missing."""
        if self.evaluate is not None:
            own = self.evaluate
            return lambda model: _in_eval_mode(model, lambda: _checked(own(model)))
        data = samples(self.train if self.test is None else self.test)
        loss = SampleLoss(self.loss, data)
        modules = [self.loss] if isinstance(self.loss, nn.Module) else []

        def evaluate(model: nn.Module) -> dict[str, float]:
            value, accuracy = _in_eval_mode(model, lambda: loss_and_accuracy(model, data, loss))
            return {"loss": value} if math.isnan(accuracy) else {"loss": value, "accuracy": accuracy}

        return (lambda model: _in_eval_mode(modules[0], lambda: evaluate(model))) if modules else evaluate


def device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _checked(values: Any) -> dict[str, float]:
    """What the user's evaluation returned, as numbers of Python."""
    try:
        return {name: _number(name, value) for name, value in check_names(values).items()}
    except ValueError as error:
        raise ConfigError(f"evaluate returned {error}: let it return {{'loss': ..., 'accuracy': ...}}") from None


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise ValueError(f"{name}={shown(value)}, which is no number")


def _in_eval_mode(model: nn.Module, evaluate: Callable[[], T]) -> T:
    with eval_mode(model), torch.no_grad():
        return evaluate()


@contextmanager
def eval_mode(*models: nn.Module) -> Iterator[None]:
    """Every module in eval mode, and then each as it was: some may be in eval mode for good."""
    before = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def loss_and_accuracy(model: nn.Module, data: Samples, loss: SampleLoss) -> tuple[float, float]:
    """The loss of all samples, and the share of them that is put into its class; NaN if there are no classes."""
    device, of_all = device_of(model), LossOfAll(loss)
    correct, labelled, classified = 0, 0, True
    for begin in range(0, len(data), EVALUATED_AT_ONCE):
        indices = np.arange(begin, min(begin + EVALUATED_AT_ONCE, len(data)))
        inputs, targets = to_device(data.fetch(indices), device)
        outputs: Any = model(inputs)
        of_all.add(outputs, targets, len(indices))
        classified = classified and are_classes(outputs, targets)
        if classified:
            counted = loss.counted(targets)
            correct += int(((outputs.argmax(dim=1) == targets) & counted).sum())
            labelled += int(counted.sum())
    return of_all.value(), correct / labelled if classified and labelled else float("nan")


def are_classes(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    )
