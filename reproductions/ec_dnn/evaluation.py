r"""Evaluation of the local models and the global one: errors, losses, and whether Jensen's inequality holds.

$$\mathrm{Diff}_{LG} = \frac1K \sum_k \mathrm{error}_k - \mathrm{error}_{global}$$

*EC-DNN*, Eq. (11): how much better the global model is than the local ones are on average; Eq. (4): the loss of the
simple ensemble is at most the mean loss, for each sample.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from paceline.learning.models.ensemble import Ensemble, as_distribution
from paceline.learning.task import eval_mode
from reproductions.datasets.cifar import Pictures

AT_ONCE = 500
ROUNDING = 1e-5  # of single precision, relative to the loss: more than that is a violation


class Evaluation(NamedTuple):
    """Shares of wrong answers on some pictures, and for how many of these Jensen's inequality fails."""

    error: float  # of the global model
    errors: list[float]  # of each local model
    simple_error: float  # of the simple ensemble of the local models
    losses: list[float]
    violations: int


def evaluate(model: nn.Module, members: Sequence[nn.Module], pictures: Pictures) -> Evaluation:
    """Pass pictures through the local models (``members``) and, unless it is an ensemble of them, the global one."""
    inputs, labels = pictures
    each = torch.stack([logits(member, inputs) for member in members])
    outputs = torch.softmax(each, dim=2)
    simple = outputs.mean(dim=0)
    if isinstance(model, Ensemble):
        combined = as_distribution(torch.einsum("k,knc->nc", model.weights, outputs))
    else:
        combined = logits(model, inputs)
    losses = torch.stack([cross_entropy(own, labels, reduction="none") for own in each]).double()
    of_simple = -simple.double().gather(1, labels.unsqueeze(1)).squeeze(1).clamp_min(1e-300).log()
    mean = losses.mean(dim=0)
    return Evaluation(
        error=_error(combined, labels),
        errors=[_error(own, labels) for own in each],
        simple_error=_error(simple, labels),
        losses=losses.mean(dim=1).tolist(),
        violations=int((of_simple > mean + ROUNDING * (1 + mean)).sum()),
    )


def training_losses(members: Sequence[nn.Module], pictures: Pictures) -> list[float]:
    """The mean loss of each local model, by which the paper chooses the final one (``_L``)."""
    return [float(cross_entropy(logits(member, pictures[0]), pictures[1])) for member in members]


def logits(model: nn.Module, inputs: Tensor) -> Tensor:
    """In eval mode; afterwards the model is in the mode that it was in."""
    with eval_mode(model), torch.inference_mode():
        return torch.cat([model(part) for part in torch.split(inputs, AT_ONCE)])


def _error(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(dim=1) != labels).double().mean())
