r"""The two losses of Group SGD (Table 1), sample by sample: a vector, so that workers' passes can be fused.

$$F(w) = \frac{\lambda}{2} |w|^2 + \frac{1}{n} \sum_i \phi(w \cdot x_i, y_i)$$

$\phi$ is here; $\lambda/2\,|w|^2$ comes in one of two ways.

- ``LinearClassifier(penalty=lam)`` adds it to every sample's loss, so its gradient $\lambda w$ is taken at the model
  that the worker has, as the paper's is. The losses that are reported are then those of $F$.
- ``weight_decay=lam`` of ``torch.optim.SGD`` takes it at the model that is updated: the same for synchronous rules, but
  other than the paper's by $\lambda (w_t - w_{t-\tau})$ where gradients are stale. Losses are reported without it.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Scored(NamedTuple):
    """What ``LinearClassifier`` answers: a score for each sample, and the penalty on the weights."""

    scores: Tensor
    penalty: Tensor


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
