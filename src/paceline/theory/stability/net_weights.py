r"""The largest stable step of updates that each use gradients of one or of several ages, some with a negative weight.

Along a direction of curvature $\lambda$ an update is

$$x_{k+1} = x_k + m\,(x_k - x_{k-1}) - h \sum_j w_{k,j}\,x_{k-j}, \qquad h = \eta\lambda,$$

where $w_{k,j}$ is the net weight in update $k$ of gradients that are $j$ updates old. Where each update uses gradients
of one age, once, the mean weights $q_j = E\,w_{k,j}$ are the distribution of the delays, and what follows is
``critical_step`` and ``mean_square_critical_step``. ``LiveCompensation`` uses gradients twice, once with a negative
weight; and so, in effect, does Nesterov's momentum in torch's form: a step along $(1+m)\,g_k - m\,g_{k-1}$, put through
the plain momentum.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from paceline.core.errors import ConfigError
from paceline.theory.stability.delays import check_momentum
from paceline.theory.stability.limits import characteristic, first_on_the_circle, push_correlations

Floats = NDArray[np.float64]
TAIL = 1e-3  # of the weight, on the largest ages: lumped together, since long tails cost much and change little
RATIO = 1.25  # of the steps that are looked at, from a thousandth of the limit in the mean up to it


@dataclass(frozen=True)
class NetWeights:
    r"""What updates are made of.

    by_age  $q_j = E\,w_{k,j}$ for each age $j$, in updates
    by_gap  $c_d = E \sum_{|i-j| = d} w_{k,i} w_{k,j}$ for each distance $d$ of two ages in one update: $c_0 = 1$ and no
            other where every update uses a single age
    """

    by_age: Mapping[int, float]
    by_gap: Mapping[int, float]

    def __post_init__(self) -> None:
        if not self.by_age:
            raise ConfigError("no weights are given: at least that of one age, such as {0: 1.0}")
        for age, weight in (*self.by_age.items(), *self.by_gap.items()):
            if age < 0 or not math.isfinite(weight):
                raise ConfigError(f"a weight of {weight} on an age of {age} is not possible: finite, from 0 updates on")
        if not (total := math.fsum(self.by_age.values())) > 0:
            raise ConfigError(f"weights that add up to {total:.6g} do not descend: more than 0")

    @classmethod
    def of_delays(cls, shares: Mapping[int, float]) -> "NetWeights":
        """Each update uses one age, which it has with these probabilities."""
        return cls(shares, {0: math.fsum(shares.values())})

    def trimmed(self) -> "NetWeights":
        """With the largest ages, of very little weight, counted as one."""
        ages = sorted(self.by_age)
        rest = TAIL * math.fsum(map(abs, self.by_age.values()))
        while len(ages) > 1 and (rest := rest - abs(self.by_age[ages[-1]])) > 0:
            ages.pop()
        kept = {age: self.by_age[age] for age in ages}
        kept[ages[-1]] += math.fsum(weight for age, weight in self.by_age.items() if age > ages[-1])
        return NetWeights(kept, self.by_gap)


def net_critical_step(weights: NetWeights, momentum: float = 0.0, *, nesterov: bool = False) -> float:
    r"""The largest $\eta\lambda$ such that all smaller ones are stable in the mean. Exact for independent updates.

    momentum  $m$, as in ``torch.optim.SGD(momentum=...)``; with ``nesterov`` as in ``SGD(nesterov=True)``
    """
    check_momentum(momentum)
    return first_on_the_circle(_by_age(weights, momentum * nesterov), momentum)


def net_mean_square_step(weights: NetWeights, momentum: float = 0.0, *, nesterov: bool = False) -> float:
    r"""The largest $\eta\lambda$ such that all smaller ones are stable in mean square, for independent updates.

    As in ``mean_square_critical_step``, what differs from update to update is a noise of its own, whose power comes
    back by the factor

    $$h^2 \Big( \sum_d c_d R_d - \sum_{i,j} q_i q_j R_{|i-j|} \Big),$$

    where $R$ are the correlations of the response of the mean to a unit push. It dies out if that is below 1. Never
    above ``net_critical_step``; far below where ages vary between updates and the average of their effects is mild.
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

    last = limit * (1 - 1e-9)  # at the limit itself the response does not end
    below, step = 0.0, limit / 1000
    while excess(step) < 0:
        if step == last:
            return limit
        below, step = step, min(RATIO * step, last)
    return float(brentq(excess, below, step, xtol=1e-15, rtol=1e-9)) if below else step


def net_decay(scaled_step: float, weights: NetWeights, momentum: float = 0.0, *, nesterov: bool = False) -> float:
    r"""By which factor an update shrinks the mean error in the long run, at $h$ = ``scaled_step``."""
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
    # as if each update's weights were convolved: both sides of their autocorrelation with that of (1 + m, -m)
    own = np.array([-(1 + nesterov) * nesterov, (1 + nesterov) ** 2 + nesterov**2, -(1 + nesterov) * nesterov])
    both = np.convolve(np.concatenate([gaps[:0:-1] / 2, gaps[:1], gaps[1:] / 2]), own)
    middle = len(both) // 2
    return np.concatenate([both[middle : middle + 1], 2 * both[middle + 1 :]])
