"""Models whose outputs are added up, the coefficients (Sec. 3.2 of EC-DNN), and the labels that come of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.data.samples import Samples, to_device
from paceline.learning.task import are_classes, device_of, eval_mode

Combine = Callable[[Tensor, Tensor], Tensor]  # of the models' outputs and the labels
Counted = Callable[[Tensor], Tensor]  # from labels to which of them are not ignored
PASSED_AT_ONCE = 256  # samples; more at once is slower, for their activations leave the caches


class Ensemble(nn.Module):
    r"""The members' softmax outputs, weighted and added: $\log \sum_k \alpha_k f(w_k; x)$.

    The output is a logarithm, so that it can stand where a single model's logits do: cross entropy and the largest
    class of it are those of the weighted sum. Negative sums, which regression coefficients can give, count as 0.
    """

    def __init__(self, members: Sequence[nn.Module], weights: Sequence[float] | Tensor | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        given = [1 / len(members)] * len(members) if weights is None else weights
        self.weights: Tensor
        self.register_buffer("weights", torch.as_tensor(given, dtype=torch.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        total: Tensor | None = None
        for weight, member in zip(self.weights, self.members, strict=True):
            part = weight * torch.softmax(member(inputs), dim=1)
            total = part if total is None else total + part
        assert total is not None
        return logarithm(total)


def logarithm(sums: Tensor) -> Tensor:
    """The logarithm of weighted sums of outputs, made a distribution."""
    return as_distribution(sums).clamp_min(torch.finfo(sums.dtype).tiny).log()


def as_distribution(sums: Tensor) -> Tensor:
    """No negative values, and sums of 1; all equal where nothing is left (C2)."""
    positive = sums.clamp_min(0.0)
    totals = positive.sum(dim=1, keepdim=True)
    return torch.where(totals > 0, positive / totals.clamp_min(torch.finfo(sums.dtype).tiny), 1 / sums.shape[1])


class NormalEquations:
    r"""Least squares of one-hot labels on the models' outputs, without intercept, Eq. (7).

    $$\alpha = G^{-1} b, \qquad G_{kl} = \sum_x \langle f_k(x), f_l(x) \rangle, \qquad b_k = \sum_x f_k(x)_y.$$

    Sums over several data sets give the coefficients of all of them together.
    """

    def __init__(self, models: int) -> None:
        self.products = torch.zeros(models, models, dtype=torch.float64)
        self.targets = torch.zeros(models, dtype=torch.float64)

    def add(self, outputs: Tensor, labels: Tensor, counted: Tensor | None = None) -> None:
        """``outputs`` of shape (models, samples, classes), ``labels`` the classes of the samples.

        A sample whose label is not ``counted``, or for which some model's output is not finite, tells nothing, and is
        left out.
        """
        telling = outputs.isfinite().all(dim=2).all(dim=0)
        if counted is not None:
            telling &= counted
        if not bool(telling.all()):
            outputs, labels = outputs[:, telling], labels[telling]
        flat = outputs.flatten(start_dim=1).double()
        self.products += (flat @ flat.T).cpu()
        own = outputs.gather(2, labels.expand(len(outputs), -1).unsqueeze(2))
        self.targets += own.double().sum(dim=(1, 2)).cpu()

    def join(self, other: "NormalEquations") -> None:
        self.products += other.products
        self.targets += other.targets

    def solve(self, *, non_negative: bool = False) -> Tensor:
        """The coefficients; of several solutions (identical models) the smallest. Even ones if nothing was added."""
        if not bool(self.products.any()):
            return torch.full_like(self.targets, 1 / len(self.targets))
        if non_negative:
            return self._non_negative()
        solution: Tensor = torch.linalg.lstsq(self.products, self.targets.unsqueeze(1), driver="gelsd").solution
        return solution.squeeze(1)

    def _non_negative(self) -> Tensor:
        r"""$\min \lVert L^T \alpha - c \rVert$ with $L L^T = G$ has the same normal equations."""
        from scipy.optimize import nnls

        values, vectors = torch.linalg.eigh(self.products)
        values = values.clamp_min(0.0)
        roots = values.sqrt()
        inverse = torch.where(roots > 1e-9 * roots.max(), 1 / roots.clamp_min(1e-300), 0.0)
        solution, _ = nnls((roots.unsqueeze(1) * vectors.T).numpy(), (inverse * (vectors.T @ self.targets)).numpy())
        return torch.from_numpy(solution)


def margin_weights(outputs: Tensor, labels: Tensor, counted: Tensor | None = None) -> Tensor:
    r"""Each model's coefficient for each sample, Eq. (8); equal ones where every model is wrong (C4).

    They are equal too where a label is not ``counted``, so that nobody can be right or wrong.

    $$\alpha_{k,x,y} \propto \max\bigl(f_k(x)_y - \max_{i \ne y} f_k(x)_i,\ 0\bigr)$$
    """
    if counted is None:
        weights = margins(outputs, labels).clamp_min(0.0)
    else:
        weights = margins(outputs, torch.where(counted, labels, 0)).clamp_min(0.0) * counted
    totals = weights.sum(dim=0)
    return torch.where(totals > 0, weights / totals.clamp_min(torch.finfo(outputs.dtype).tiny), 1 / len(outputs))


def margins(outputs: Tensor, labels: Tensor) -> Tensor:
    r"""$f_y - \max_{i \ne y} f_i$ for each model and sample: positive where the model is right."""
    places = labels.expand(len(outputs), -1).unsqueeze(-1)
    own = outputs.gather(-1, places).squeeze(-1)
    return own - outputs.scatter(-1, places, -torch.inf).amax(dim=-1)


# The outputs of several models for the samples of each worker.


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


def relabel(
    models: Sequence[nn.Module], samples: Samples, parts: Sequence[Indices], weighing: Weighing,
    counted: Counted | None = None,
) -> Relabelled:  # fmt: skip
    """Pass the samples of each part through every model, in eval mode and without gradients.

    ``counted`` tells which labels the loss does not ignore. A sample without one gets pseudo labels as all others do,
    but a regression is not fitted on it, and by ``margin`` its models weigh the same.
    """
    labels_count: Counted = _all if counted is None else counted
    with eval_mode(*models), torch.inference_mode():
        if weighing.rule == "regression" and len(models) > 1:
            return _by_regression(models, samples, parts, weighing, labels_count)
        combine = partial(_by_margin, labels_count) if weighing.rule == "margin" else _evenly
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
    combined = [combine(each, labels) for each, labels in outputs(models, samples, part)]
    return torch.cat(combined) if combined else torch.empty(0, 0)


def _evenly(each: Tensor, labels: Tensor) -> Tensor:
    return each.mean(dim=0)


def _by_margin(labels_count: Counted, each: Tensor, labels: Tensor) -> Tensor:
    return torch.einsum("kn,knc->nc", margin_weights(each, labels, _classes(labels, labels_count, each)), each)


def _all(labels: Tensor) -> Tensor:
    return torch.ones_like(labels, dtype=torch.bool)


def _classes(labels: Tensor, labels_count: Counted, each: Tensor) -> Tensor:
    """Which labels count; those have to be classes of the models."""
    counted, classes = labels_count(labels), each.shape[2]
    if bool((wrong := counted & ((labels < 0) | (labels >= classes))).any()):
        raise ConfigError(
            f"a target is {int(labels[wrong][0])}, and the model has the classes 0 to {classes - 1}: if the loss "
            "ignores it, let it say so as torch's do, by an argument or attribute ignore_index; or weigh the ensemble "
            "by 'simple', which needs no targets"
        )
    return counted


def _by_regression(
    models: Sequence[nn.Module], samples: Samples, parts: Sequence[Indices], weighing: Weighing, labels_count: Counted
) -> Relabelled:
    """Each part by its own coefficients as soon as it is through; pooled ones have to wait for the last part."""
    together = NormalEquations(len(models))
    labels: list[Tensor] = []
    waiting: list[Tensor] = []
    for part in parts:
        fit, found = NormalEquations(len(models)), list[Tensor]()
        for each, classes in outputs(models, samples, part):
            fit.add(each, classes, _classes(classes, labels_count, each))
            found.append(each)
        together.join(fit)
        every = torch.cat(found, dim=1) if found else torch.empty(len(models), 0, 0)
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
