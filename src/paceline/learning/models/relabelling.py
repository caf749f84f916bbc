"""The outputs of several models for the samples of each worker, combined as an ensemble combines them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.data.samples import Samples, to_device
from paceline.learning.models.ensemble import NormalEquations, as_distribution, margin_weights
from paceline.learning.task import are_classes, device_of, eval_mode

Combine = Callable[[Tensor, Tensor], Tensor]  # of the models' outputs and the labels
PASSED_AT_ONCE = 256  # samples; more at once is slower, for their activations leave the caches


@dataclass(frozen=True, slots=True)
class Weighing:
    """How the outputs are weighed: ``simple``, ``margin`` or ``regression``, and how the latter is fitted."""

    rule: str = "simple"
    pooled: bool = False
    non_negative: bool = False


@dataclass(frozen=True, slots=True)
class Relabelled:
    """The combined outputs for the samples of each worker, and the coefficients fitted on all of them together."""

    labels: list[Tensor]
    coefficients: Tensor | None


def relabel(models: Sequence[nn.Module], samples: Samples, parts: Sequence[Indices], weighing: Weighing) -> Relabelled:
    """Pass the samples of each part through every model, in eval mode and without gradients."""
    with eval_mode(*models), torch.inference_mode():
        if weighing.rule == "regression" and len(models) > 1:
            return _by_regression(models, samples, parts, weighing)
        combine = _by_margin if weighing.rule == "margin" else _evenly
        return Relabelled([_combined(part, samples, models, combine) for part in parts], None)


def outputs(models: Sequence[nn.Module], samples: Samples, part: Indices) -> Iterator[tuple[Tensor, Tensor]]:
    """The models' softmax outputs (models, samples, classes), and the labels, for some samples after the other."""
    device = device_of(models[0])
    for begin in range(0, len(part), PASSED_AT_ONCE):
        inputs, labels = to_device(samples.fetch(part[begin : begin + PASSED_AT_ONCE]), device)
        # one model after the other: the activations of one are gone before those of the next come
        each = [_probabilities(model(inputs), labels) for model in models]
        if len({tuple(one.shape) for one in each}) > 1:
            raise ConfigError(f"an ensemble needs models with the same classes, not {[one.shape[1] for one in each]}")
        yield torch.stack(each), labels


def _probabilities(outputs: Any, labels: Any) -> Tensor:
    if not are_classes(outputs, labels):
        raise ConfigError("an ensemble needs a model with one output a class, and class numbers as labels")
    probabilities: Tensor = torch.softmax(outputs, dim=1)
    return probabilities


def _combined(part: Indices, samples: Samples, models: Sequence[nn.Module], combine: Combine) -> Tensor:
    pieces = [combine(each, labels) for each, labels in outputs(models, samples, part)]
    return torch.cat(pieces) if pieces else torch.empty(0, 0)


def _evenly(each: Tensor, labels: Tensor) -> Tensor:
    return each.mean(dim=0)


def _by_margin(each: Tensor, labels: Tensor) -> Tensor:
    return torch.einsum("kn,knc->nc", margin_weights(each, labels), each)


def _by_regression(
    models: Sequence[nn.Module], samples: Samples, parts: Sequence[Indices], weighing: Weighing
) -> Relabelled:
    """Each part by its own coefficients as soon as it is through; pooled ones have to wait for the last part."""
    together = NormalEquations(len(models))
    labels: list[Tensor] = []
    waiting: list[Tensor] = []
    for part in parts:
        fit, pieces = NormalEquations(len(models)), list[Tensor]()
        for each, classes in outputs(models, samples, part):
            fit.add(each, classes)
            pieces.append(each)
        together.join(fit)
        every = torch.cat(pieces, dim=1) if pieces else torch.empty(len(models), 0, 0)
        if weighing.pooled:
            waiting.append(every)
        else:
            labels.append(_weighted(fit.solve(non_negative=weighing.non_negative), every))
    pooled = together.solve(non_negative=weighing.non_negative)
    labels += [_weighted(pooled, every) for every in waiting]
    return Relabelled(labels, pooled)


def _weighted(coefficients: Tensor, every: Tensor) -> Tensor:
    """Pseudo labels: the weighted sum of the outputs, clipped and normalised (C2)."""
    return as_distribution(torch.einsum("k,knc->nc", coefficients.to(every), every)) if every.numel() else every[0]
