"""How far from the minimum Group SGD is at most: the proved bound of Gao & Chen, *Group SGD*, theorem 3.1."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError


def group_sgd_bound(
    noises: Sequence[float], *, step: float, smoothness: float, convexity: float, gamma: float, gap: float
) -> NDArray[np.float64]:
    r"""The right side of theorem 3.1 of *Group SGD* after 0, 1, ... updates; $\alpha = 1 - \eta c (1-\gamma)$:

    $$B_{t+1} = \alpha B_t + \tfrac12 \mu \eta^2 v_t.$$

    noises      $v_t = \sigma^2 / (m |G_{k(t)}|)$, the variance of each update's gradient
    step        $\eta$, the learning rate
    smoothness  $\mu$, and ``convexity`` $c$: $c \le \nabla^2 F \le \mu$
    gamma       of assumption 3.5, which no function can check: how much staleness changes the gradient
    gap         $F(w_0) - F_*$

    Needs $\eta \le 1/\mu$, which is checked. With $\gamma > 1$ it is not a bound.
    """
    if not 0 < convexity <= smoothness:
        raise ConfigError(f"a convexity of {convexity} does not fit a smoothness of {smoothness}: 0 < c <= mu")
    if not 0 < step * smoothness <= 1:
        raise ConfigError(
            f"theorem 3.1 does not hold for a learning rate of {step}: above 0, at most 1/mu = {1 / smoothness:g}"
        )
    alpha = 1 - step * convexity * (1 - gamma)
    right = [gap]
    for noise in noises:
        right.append(alpha * right[-1] + smoothness * step**2 * noise / 2)
    return np.array(right)
