r"""The linear models of Group SGD and their two losses (Table 1), sample by sample, so that passes can be fused.

$$F(w) = \frac{\lambda}{2} |w|^2 + \frac{1}{n} \sum_i \phi(w \cdot x_i, y_i)$$

$\phi$ is here; $\lambda/2\,|w|^2$ comes in one of two ways.

- ``LinearClassifier(penalty=lam)`` adds it to every sample's loss, so its gradient $\lambda w$ is taken at the model
  that the worker has, as the paper's is. The losses that are reported are then those of $F$.
- ``weight_decay=lam`` of ``torch.optim.SGD`` takes it at the model that is updated: the same for synchronous rules, but
  other than the paper's by $\lambda (w_t - w_{t-\tau})$ where gradients are stale. Losses are reported without it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline import ConfigError


class Scored(NamedTuple):
    """What ``LinearClassifier`` answers: a score for each sample, and the penalty on the weights."""

    scores: Tensor
    penalty: Tensor


class LinearClassifier(nn.Module):
    r"""One score $w \cdot x$ for each sample, no bias; with ``logistic`` or ``smooth_svm``, one of the two models.

    It starts at $w = 0$. With a ``penalty`` ($\lambda$) it answers the scores and $\frac{\lambda}{2} |w|^2$, which the
    losses add up; without one, the scores alone. MNIST, odd against even: 784 parameters.

    *Group SGD*, Table 1; $\lambda$ = 0.001 for logistic regression, 0.01 for the SVM.
    """

    def __init__(self, inputs: int = 784, penalty: float = 0.0) -> None:
        if inputs < 1:
            raise ConfigError(f"a linear model of {inputs} inputs is not possible: at least 1")
        if not 0 <= penalty < math.inf:
            raise ConfigError(f"penalty={penalty} is not possible: 0 or more, and finite")
        super().__init__()
        self.linear = nn.Linear(inputs, 1, bias=False)
        nn.init.zeros_(self.linear.weight)
        self.penalty = penalty

    def forward(self, inputs: Tensor) -> Scored | Tensor:
        scores: Tensor = self.linear(inputs.flatten(1)).squeeze(1)
        if not self.penalty:
            return scores
        return Scored(scores, self.penalty / 2 * self.linear.weight.square().sum())


def logistic(outputs: Scored | Tensor, targets: Tensor) -> Tensor:
    r"""$\phi(z, y) = \log(1 + e^z) - y z$ for $y$ in {0, 1}. *Group SGD*, Table 1."""
    scores, penalty = _parts(outputs)
    each = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    return each if penalty is None else each + penalty


def smooth_svm(outputs: Scored | Tensor, targets: Tensor) -> Tensor:
    r"""$\phi(z, y) = \frac12 \max(0, 1 - y z)^2$ for $y$ in {-1, 1}. *Group SGD*, Table 1."""
    scores, penalty = _parts(outputs)
    each = (1 - targets * scores).clamp(min=0).square() / 2
    return each if penalty is None else each + penalty


def correct(outputs: Scored | Tensor, targets: Tensor) -> Tensor:
    """For each sample, whether the sign of its score tells its class: {0, 1} or {-1, 1}."""
    return (_parts(outputs)[0] > 0) == (targets > 0)


def odd(labels: Tensor) -> Tensor:
    """Digits as the targets of ``logistic``: 1 for odd ones, 0 for even ones."""
    return (labels % 2).to(torch.get_default_dtype())


def odd_sign(labels: Tensor) -> Tensor:
    """Digits as the targets of ``smooth_svm``: 1 for odd ones, -1 for even ones."""
    return 2 * odd(labels) - 1


def _parts(outputs: Scored | Tensor) -> tuple[Tensor, Tensor | None]:
    if isinstance(outputs, Tensor):
        return (outputs if outputs.dim() == 1 else outputs.squeeze(1)), None
    return outputs
