r"""The largest stable learning rate if an update uses gradients of several ages, some with negative weights.

Along a direction of curvature $\lambda$ an update is

$$x_{k+1} = x_k + m\,(x_k - x_{k-1}) - h \sum_j w_{k,j}\,x_{k-j}, \qquad h = \eta\lambda,$$

where $w_{k,j}$ is the net weight in update $k$ of gradients that are $j$ updates old. If each update uses gradients of
one age, once, the mean weights $q_j = E\,w_{k,j}$ are the distribution of the delays, and the limits are those of
``critical_step`` and ``mean_square_critical_step``. ``LiveCompensation`` uses gradients twice, once with a negative
weight. In effect, so does Nesterov momentum in torch's form: it is plain momentum with the gradient
$(1+m)\,g_k - m\,g_{k-1}$.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from paceline.core.errors import ConfigError
from paceline.theory.stability.limits import characteristic, check_momentum, first_on_the_circle, push_correlations

Floats = NDArray[np.float64]
TAIL = 1e-3  # share of the weight on the largest ages that is put on one age: long tails are slow and change little
RATIO = 1.25  # of successive learning rates that are tried, up to the limit in the mean


@dataclass(frozen=True)
class NetWeights:
    r"""The net weights of gradients of each age in an update.

    by_age  $q_j = E\,w_{k,j}$ for each age $j$, in updates
    by_gap  $c_d = E \sum_{|i-j| = d} w_{k,i} w_{k,j}$ for each distance $d$ of two ages in one update: $c_0 = 1$ and no
            other where every update uses a single age
    """

    by_age: Mapping[int, float]
    by_gap: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.by_age:
            raise ConfigError("no weights are given: give at least one, such as {0: 1.0}")
        for age, weight in (*self.by_age.items(), *self.by_gap.items()):
            if age < 0 or not math.isfinite(weight):
                raise ConfigError(
                    f"a weight of {weight} at an age of {age} is not possible: finite, at an age of at least 0"
                )
        if not (total := math.fsum(self.by_age.values())) > 0:
            raise ConfigError(f"weights that add up to {total:.6g} do not descend: more than 0")

    @classmethod
    def of_delays(cls, shares: Mapping[int, float]) -> "NetWeights":
        """The weights if each update uses gradients of one age, which is random with these probabilities."""
        return cls(shares, {0: math.fsum(shares.values())})

    def trimmed(self) -> "NetWeights":
        """The weights with the largest ages, which have very little weight, combined."""
        ages = sorted(self.by_age)
        rest = TAIL * math.fsum(map(abs, self.by_age.values()))
        while len(ages) > 1 and (rest := rest - abs(self.by_age[ages[-1]])) > 0:
            ages.pop()
        kept = {age: self.by_age[age] for age in ages}
        kept[ages[-1]] += math.fsum(weight for age, weight in self.by_age.items() if age > ages[-1])
        return NetWeights(kept, self.by_gap)


def net_critical_step(weights: NetWeights, momentum: float = 0.0, *, nesterov: bool = False) -> float:
    r"""The largest learning rate times curvature that is stable in the mean. Exact for independent updates.

    momentum  $m$, as in ``torch.optim.SGD(momentum=...)``; with ``nesterov`` as in ``SGD(nesterov=True)``
    """
    check_momentum(momentum)
    return first_on_the_circle(_by_age(weights, momentum * nesterov), momentum)


def net_mean_square_step(weights: NetWeights, momentum: float = 0.0, *, nesterov: bool = False) -> float:
    r"""The largest learning rate times curvature that is stable in mean square, for independent updates.

    As in ``mean_square_critical_step``, variation between updates adds noise, whose power contributes to later updates
    with the factor

    $$h^2 \Big( \sum_d c_d R_d - \sum_{i,j} q_i q_j R_{|i-j|} \Big),$$

    where $R$ are the correlations of the response of the mean to a unit impulse. The noise decays if the factor is
    below 1. The limit is never above ``net_critical_step``, and far below it if ages vary much between updates.
    """
    check_momentum(momentum)
    weights = weights.trimmed()
    shares, gaps = _by_age(weights, momentum * nesterov), _by_gap(weights, momentum * nesterov)
    limit = first_on_the_circle(shares, momentum)

    def excess(step: float) -> float:
        correlations = push_correlations(step, shares, momentum)
        (used,) = shares.nonzero()
        kept = shares[used] @ correlations[np.abs(used[:, None] - used[None, :])] @ shares[used]
        width = min(len(gaps), len(correlations))
        return float(step**2 * (gaps[:width] @ correlations[:width] - kept)) - 1

    last = limit * (1 - 1e-9)  # at the limit itself the response does not decay
    below, step = 0.0, limit / 1000
    while excess(step) < 0:
        if step == last:
            return limit
        below, step = step, min(RATIO * step, last)
    return float(brentq(excess, below, step, xtol=1e-15, rtol=1e-9)) if below else step


def net_decay(scaled_step: float, weights: NetWeights, momentum: float = 0.0, *, nesterov: bool = False) -> float:
    r"""The factor by which an update changes the mean error in the long run, for ``scaled_step`` $h = \eta\lambda$."""
    check_momentum(momentum)
    shares = _by_age(weights.trimmed(), momentum * nesterov)
    return float(np.abs(np.roots(characteristic(scaled_step, shares, momentum))).max())


def _by_age(weights: NetWeights, nesterov: float) -> Floats:
    shares = np.zeros(1 + max(weights.by_age))
    for age, weight in weights.by_age.items():
        shares[age] = weight
    return np.convolve(shares, [1 + nesterov, -nesterov]) if nesterov else shares


def _by_gap(weights: NetWeights, nesterov: float) -> Floats:
    gaps = np.zeros(2 + max(weights.by_gap, default=0))
    for gap, product in weights.by_gap.items():
        gaps[gap] = product
    if not nesterov:
        return gaps
    # the weights of each update are convolved with (1 + m, -m): so are their autocorrelations
    own = np.array([-(1 + nesterov) * nesterov, (1 + nesterov) ** 2 + nesterov**2, -(1 + nesterov) * nesterov])
    both = np.convolve(np.concatenate([gaps[:0:-1] / 2, gaps[:1], gaps[1:] / 2]), own)
    middle = len(both) // 2
    return np.concatenate([both[middle : middle + 1], 2 * both[middle + 1 :]])
