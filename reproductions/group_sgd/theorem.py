r"""Theorem 3.1 of *Group SGD* on a toy whose expectations can be computed exactly.

The toy is $F(w) = w^2/2$ with gradients $w + \xi$, where $\xi$ has the variance $\sigma^2$ for one sample. It is smooth
and strongly convex with $\mu = c = 1$. With $|G|$ workers of $m$ samples each an update is

$$w_{t+1} = w_t - \eta\,(w_{t-\tau_t} + \xi_t), \qquad E\,\xi_t^2 = \frac{\sigma^2}{m\,|G_{k(t)}|},$$

so all second moments $E\,w_s w_t$ follow from those before, without sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline import ConfigError
from paceline.theory import group_sgd_bound


class Move(NamedTuple):
    """An update: how many workers' mean it is along, and how many updates were made since they had the model."""

    workers: int
    staleness: int


@dataclass(frozen=True)
class Toy:
    r"""The learning rate ($\eta$), samples a worker ($m$), their variance ($\sigma^2$) and where it begins ($w_0$)."""

    lr: float = 0.02
    batch_size: int = 32
    variance: float = 1.0
    start: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.lr <= 1:
            raise ConfigError(f"theorem 3.1 is not for a learning rate of {self.lr}: more than 0, and at most 1/mu = 1")


@dataclass(frozen=True, eq=False)
class Bound:
    r"""Both sides of theorem 3.1 after 0, 1, ... updates, and the $\gamma$ and $\alpha$ in it."""

    gamma: float
    alpha: float
    left: NDArray[np.float64]
    right: NDArray[np.float64]

    @property
    def applies(self) -> bool:
        r"""Assumption 3.5 is met: $\gamma \le 1$."""
        return self.gamma <= 1

    @property
    def holds(self) -> bool:
        """After every update, the first side is not above the second."""
        return bool((self.left <= self.right * (1 + 1e-12)).all())


def second_moments(moves: Sequence[Move], toy: Toy) -> NDArray[np.float64]:
    r"""$E\,w_s w_t$ for all $s, t$ from 0 to the number of updates."""
    moments = np.zeros((len(moves) + 1, len(moves) + 1))
    moments[0, 0] = toy.start**2
    for t, (workers, staleness) in enumerate(moves):
        used, eta = t - staleness, toy.lr
        row = moments[t, : t + 1] - eta * moments[used, : t + 1]
        moments[t + 1, : t + 1] = moments[: t + 1, t + 1] = row
        noise = toy.variance / (toy.batch_size * workers)
        moments[t + 1, t + 1] = row[t] - eta * row[used] + eta**2 * noise
    return moments


def theorem_3_1(moves: Sequence[Move], toy: Toy) -> Bound:
    r"""Both sides of the bound, exactly, on the toy.

    $$E[F(w_t) - F_*] \le \alpha^t\,(F(w_0) - F_*)
    + \frac{\mu \sigma^2 \eta^2}{2m} \sum_{i<t} \frac{\alpha^i}{|G_{k(t-1-i)}|}, \qquad
    \alpha = 1 - \eta c (1-\gamma).$$

    $\gamma$ is the smallest for which assumption 3.5 is true:
    $E\,|\nabla F(w_t) - \nabla F(w_{t-\tau_t})|^2 \le \gamma\,E\,|\nabla F(w_t)|^2$ at every update.
    For $\eta \le 1/\mu$. Gao & Chen, *Group SGD*, Eqs. (11), (12).
    """
    moments = second_moments(moves, toy)
    squares = moments.diagonal()
    used = [t - move.staleness for t, move in enumerate(moves)]
    apart = [squares[t] + squares[u] - 2 * moments[t, u] for t, u in enumerate(used)]
    gamma = max((float(a / s) for a, s in zip(apart, squares, strict=False)), default=0.0)
    noises = [toy.variance / (toy.batch_size * move.workers) for move in moves]
    right = group_sgd_bound(noises, step=toy.lr, smoothness=1.0, convexity=1.0, gamma=gamma, gap=toy.start**2 / 2)
    return Bound(gamma, 1 - toy.lr * (1 - gamma), squares / 2, right)
