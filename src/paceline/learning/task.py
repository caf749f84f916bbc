"""What the user gives: a model, a loss or a step, data, and how the result is evaluated."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.codec import check_names
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.fields import shown
from paceline.data.samples import Collate, Data, Samples, TensorSamples, as_tensors, converts, samples, to_device
from paceline.learning.loss import Loss, LossOfAll, Objective, Parallel, SampleLoss
from paceline.learning.step import Averages, MetricFunctions, Metrics, Step, StepLoss

EVALUATED_AT_ONCE = 2048
T = TypeVar("T")

log = logging.getLogger("paceline")


@dataclass(frozen=True)
class Task:
    """Train ``model`` to a small ``loss(model(inputs), targets)``, or what ``step`` returns; evaluate it on ``test``.

    train      with ``loss``, a pair of tensors or numpy arrays, or a map-style dataset of (input, target). With
               ``step``, any map-style dataset too
    step       ``step(model, batch)`` returns the loss of each sample, or their mean, or a mapping with ``loss`` and
               anything else to log; a mean counts for as many samples as the batch has
    collate    makes a batch of a list of samples; torch's ``default_collate`` if it is not given
    metrics    ``metrics(model, batch)`` returns a mapping from names to means over the batch, or to values of each
               sample; or a mapping from names to such functions, or to functions of the averages that these come to:
               ``{"perplexity": lambda means: math.exp(means["loss"])}``
    evaluate   replaces the usual evaluation on ``test``, or on ``train`` without one (mean loss, accuracy of class
               labels, what ``step`` logs, ``metrics``): it takes the model in eval mode and returns a mapping from
               names of metrics to numbers
    unaugmented  where ``train`` augments its samples, the same ones as they are, for methods that label them by a model
    parallel   for workers of several ranks (``ProcessFleet(ranks_per_worker=)``): ``parallel(model, mesh)`` returns the
               module that a rank trains, such as ``DistributedDataParallel(model)``, or the model after
               ``fully_shard(model, mesh=mesh)`` (FSDP2): these average gradients over the ranks. Without it every rank
               has the model, and Paceline adds the gradients up

    The model is copied for every run; yours stays as it is. It is trained on the device that its parameters are on, and
    batches are moved there; modules of it that are in eval mode stay in it.
    """

    model: nn.Module
    loss: Loss | None = None
    train: Data = None  # type: ignore[assignment] # is asked for below
    test: Data | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    unaugmented: Data | None = None
    step: Step | None = field(default=None, kw_only=True)
    collate: Collate | None = field(default=None, kw_only=True)
    metrics: Metrics | None = field(default=None, kw_only=True)
    parallel: Parallel | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            given = f"the class {self.model.__name__}" if isinstance(self.model, type) else type(self.model).__name__
            raise ConfigError(f"model must be a torch module, such as nn.Linear(64, 10), not {given}")
        self._check_functions()
        if self.train is None:
            raise ConfigError("train= is missing: give a pair of tensors or arrays, or a map-style dataset")
        floats = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.get_default_dtype())
        for name in ("train", "test", "unaugmented"):
            given = getattr(self, name)
            object.__setattr__(self, name, as_tensors(given, floats))
            parts = given if isinstance(given, tuple | list) else ()
            if floats is not torch.float64 and any(
                isinstance(part, np.ndarray) and part.dtype == np.float64 for part in parts
            ):
                log.warning("%s: arrays of float64 are taken as %s, the type of the model's parameters", name, floats)
            if len(parts) == 2 and converts(parts[1]):
                log.warning("%s: targets of %s are taken as int64, which torch's losses want", name, parts[1].dtype)

    def _check_functions(self) -> None:
        if (self.loss is None) == (self.step is None):
            raise ConfigError(
                f"a task has either loss= or step=, not {'both' if self.loss is not None else 'neither'}: "
                "loss(outputs, targets), or step(model, batch) for anything else"
            )
        if not callable(self.function):
            what = "loss must be a function of outputs and targets" if self.step is None else "step must be a function"
            raise ConfigError(f"{what}, not {type(self.function).__name__}")
        if self.collate is not None and not callable(self.collate):
            raise ConfigError(f"collate must be a function from samples to a batch, not {type(self.collate).__name__}")
        if self.parallel is not None and not callable(self.parallel):
            raise ConfigError(f"parallel={shown(self.parallel)} is no function from (model, mesh) to a module")
        if self.evaluate is not None and not callable(self.evaluate):
            raise ConfigError(f"evaluate={shown(self.evaluate)} is no function from a model to its metrics")
        if self.metrics is not None:
            MetricFunctions(self.metrics)
            if self.evaluate is not None:
                raise ConfigError("metrics= has no effect beside evaluate=: let evaluate return them")

    @property
    def function(self) -> Callable[..., Any]:
        """The loss, or the step."""
        return self.loss if self.step is None else self.step  # type: ignore[return-value]

    def with_function(self, function: Callable[..., Any]) -> "Task":
        """The same task with another loss, or step: a copy of its own that a run trains."""
        return replace(self, loss=function) if self.step is None else replace(self, step=function)

    def objective(self, data: Samples) -> Objective:
        """What the model is trained to make small on some samples."""
        return StepLoss(self.step) if self.step is not None else SampleLoss(self.function, data)

    def training_samples(self) -> Samples:
        return self._samples(self.train)

    def unaugmented_samples(self) -> Samples:
        """The training samples as they are, in the same order."""
        plain = self.training_samples() if self.unaugmented is None else self._samples(self.unaugmented)
        if len(plain) != len(self.training_samples()):
            raise ConfigError(f"{len(plain)} unaugmented samples for {len(self.training_samples())} training samples")
        return plain

    def _samples(self, data: Data) -> Samples:
        return samples(data, self.collate, pairs=self.step is None)

    def judge(self) -> Callable[[nn.Module], tuple[float, float]]:
        """A function from a model to its (loss, accuracy), NaN if unknown: what ``evaluator`` was before metrics."""
        warnings.warn("Task.judge() is now Task.evaluator()", DeprecationWarning, stacklevel=2)
        evaluate = self.evaluator()

        def judge(model: nn.Module) -> tuple[float, float]:
            metrics = evaluate(model)
            return metrics.get("loss", math.nan), metrics.get("accuracy", math.nan)

        return judge

    def evaluator(self, batch_size: int = 32) -> Callable[[nn.Module], Mapping[str, float]]:
        """A function from a model to its metrics by name; one that cannot be known, as an accuracy, is missing.

        A step is called on batches of ``batch_size`` where samples are collated, for what it needs is not known.
        """
        if self.evaluate is not None:
            own = self.evaluate
            return lambda model: _in_eval_mode(model, lambda: _checked(own(model)))
        data = self._samples(self.train if self.test is None else self.test)
        objective = self.objective(data)
        modules = [self.function] if isinstance(self.function, nn.Module) else []
        metrics = None if self.metrics is None else MetricFunctions(self.metrics)
        plain = self.step is None or isinstance(data, TensorSamples)
        at_once = EVALUATED_AT_ONCE if plain else batch_size

        def evaluate(model: nn.Module) -> dict[str, float]:
            return _in_eval_mode(model, lambda: evaluated_on(model, data, objective, at_once, metrics))

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


@contextmanager
def said_in_one_line(task: Task) -> Iterator[None]:
    """If what is done with a task raises, try its first batches: maybe they say in one line what does not fit."""
    try:
        yield
    except PacelineError:
        raise
    except Exception:  # whatever the user's code raises
        from paceline.learning.workload import try_first_batches

        try_first_batches(task)
        raise


def evaluated_on(
    model: nn.Module, data: Samples, objective: Objective, at_once: int = EVALUATED_AT_ONCE,
    metrics: MetricFunctions | None = None,
) -> dict[str, float]:  # fmt: skip
    """The loss of all samples, the accuracy where they have classes, what a step logs, and other metrics."""
    device = device_of(model)
    outputs = OutputMetrics(objective) if isinstance(objective, SampleLoss) else None
    averages = Averages() if outputs is None or metrics is not None else None
    for begin in range(0, len(data), at_once):
        indices = np.arange(begin, min(begin + at_once, len(data)))
        batch = to_device(data.fetch(indices), device)
        if outputs is not None:
            outputs.add(model, batch, len(indices))
        elif averages is not None:
            found = objective.losses(model, batch, len(indices))
            averages.add({"loss": found.mean()}, len(indices))
            averages.add({name: value for name, value in found.logged.items() if name != "loss"}, len(indices))
        if averages is not None and metrics is not None:
            metrics.add(averages, model, batch, len(indices))
    values = {} if outputs is None else outputs.values()
    if averages is not None:
        values |= averages.means()
        if metrics is not None:
            values |= metrics.derive(values)
    return values


class OutputMetrics:
    """The loss of all samples, and the share of them that is put into its class, from a model's outputs."""

    def __init__(self, loss: SampleLoss) -> None:
        self._loss = loss
        self._of_all = LossOfAll(loss)
        self._correct, self._labelled, self._classified = 0, 0, True

    def add(self, model: nn.Module, batch: Any, samples: int) -> None:
        inputs, targets = batch
        outputs: Any = model(inputs)
        self._of_all.add(outputs, targets, samples)
        self._classified = self._classified and are_classes(outputs, targets)
        if self._classified:
            counted = self._loss.counted(targets)
            self._correct += int(((outputs.argmax(dim=1) == targets) & counted).sum())
            self._labelled += int(counted.sum())

    def values(self) -> dict[str, float]:
        loss = {"loss": self._of_all.value()}
        known = self._classified and self._labelled
        return {**loss, "accuracy": self._correct / self._labelled} if known else loss


def are_classes(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, Tensor)
        and isinstance(targets, Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    )
