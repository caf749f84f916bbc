r"""How noisy the gradients of mini-batches are, in samples: the gradient noise scale.

With the true gradient $G$ and the covariance $\Sigma$ of the gradient of one sample,

$$B = \frac{\operatorname{tr} \Sigma}{\lVert G \rVert^2}.$$

A mini-batch of $B$ samples has as much noise as gradient. Fewer updates do not help much above it, and more samples an
update do not help much below. From the squared norms of gradients of two sizes $b < b'$, both without bias:

$$\lVert G \rVert^2 \approx \frac{b' \lVert g_{b'} \rVert^2 - b \lVert g_b \rVert^2}{b' - b}, \qquad
\operatorname{tr}\Sigma \approx \frac{\lVert g_b \rVert^2 - \lVert g_{b'} \rVert^2}{1/b - 1/b'}.$$

McCandlish et al., *An Empirical Model of Large-Batch Training*, 2018, Eq. (2.9) and App. A.1.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.data.samples import to_device
from paceline.learning.task import Task, device_of, eval_mode, said_in_one_line

PIECES = 32  # small batches, whose mean is the large one
SAMPLES = 2048  # at most


@dataclass(frozen=True)
class NoiseScale:
    """The noise scale at some weights, in samples; infinite where the gradient is lost in the noise."""

    value: float
    samples: int


def noise_scale(task: Task, *, model: nn.Module | None = None, seed: int = 0) -> NoiseScale:
    """The gradient noise scale of ``task``'s training loss, at the weights of its model.

    The model is looked at in eval mode, as by ``curvature``: dropout adds noise that is not counted.
    """
    looked_at = task.model if model is None else model
    parameters = [parameter for parameter in looked_at.parameters() if parameter.requires_grad]
    data = task.training_samples()
    count = min(SAMPLES, len(data)) // PIECES * PIECES
    if not parameters or not count:
        raise ConfigError(f"the noise of gradients needs trained parameters and at least {PIECES} samples")
    chosen = np.random.default_rng(seed).permutation(len(data))[:count]
    loss, device = task.objective(data), device_of(looked_at)
    total: Tensor | None = None
    small = 0.0
    with said_in_one_line(task), eval_mode(looked_at), torch.enable_grad():
        for indices in np.split(chosen, PIECES):
            batch = to_device(data.fetch(np.sort(indices)), device)
            mean = loss.losses(looked_at, batch, len(indices)).mean()
            found = torch.autograd.grad(mean, parameters, allow_unused=True)
            gradient = torch.cat([each.detach().flatten().double() for each in found if each is not None])
            small += float(gradient @ gradient) / PIECES
            total = gradient if total is None else total + gradient
    assert total is not None
    large, one = float(total @ total) / PIECES**2, count // PIECES
    signal = (count * large - one * small) / (count - one)
    noise = (small - large) / (1 / one - 1 / count)
    if not math.isfinite(small):
        raise ConfigError("the noise of gradients is not finite: the loss overflows at these weights")
    return NoiseScale(max(0.0, noise / signal) if signal > 0 else math.inf, count)
