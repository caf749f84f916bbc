r"""How much an update is worth: noise and curvature of the loss against the batch and the staleness of a rule.

Along a noisy quadratic, gradient descent without staleness makes most of an update at the learning rate

$$\eta = \frac{1}{\lambda}\,\frac{1}{1 + B / b},$$

with the curvature $\lambda$, the noise scale $B$ and $b$ samples an update (McCandlish et al., *An Empirical Model of
Large-Batch Training*, 2018, Eq. (2.6)); the loss falls in proportion to $\eta$. Staleness limits the first of the two
terms only, that without noise: in bounds for stale gradients the two add up (Stich & Karimireddy, *The
error-feedback framework*, 2020; Koloskova et al., *Sharper convergence guarantees for asynchronous SGD*, 2022). So here

$$\frac{1}{\eta_{\text{eff}}} = \lambda \left( \frac{1 - m}{\mu\, s^*} + \frac{B}{b} \right), \qquad
\eta_{\text{eff}} = \frac{\eta}{1 - m},$$

where $s^*$ is the largest $\eta\lambda$ that is stable in mean square at the rule's staleness and the momentum $m$, and
$\mu$ the margin that is kept from it. Without staleness and momentum $s^* = 2$, and with $\mu = 1/2$ this is the
equation above. A rule makes $R\,\eta_{\text{eff}}$ of progress a second, with the weight $R$ that it uses a second.

$\lambda$ and $B$ are those of the initial weights. Noise mostly grows in training, and makes staleness matter less.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from paceline.core.errors import ConfigError
from paceline.prediction.pace import Pace
from paceline.prediction.predict import Descent
from paceline.theory.stability.net_weights import NetWeights

MARGIN = 0.5
CLOSEST = 0.95  # of the limit
TAIL = 0.01  # of the weight, on the largest ages: what they cost in time they do not change in the limit
LARGEST_NOISE = 1e6  # samples: beyond this only their number counts


@dataclass(frozen=True)
class Worth:
    """What is known of the loss: its largest curvature, its noise scale in samples, and what the optimizer does."""

    curvature: float
    noise: float
    descent: Descent = Descent()
    lr: float | None = None  # that is used now
    margin: float = MARGIN

    def __post_init__(self) -> None:
        if not 0 < self.curvature < math.inf:
            raise ConfigError(f"a curvature of {self.curvature:g} bounds no learning rate: a finite number above 0")
        if not self.noise >= 0:
            raise ConfigError(f"a noise scale of {self.noise:g} samples is not possible: at least 0")
        object.__setattr__(self, "noise", min(self.noise, LARGEST_NOISE))

    def limit(self, pace: Pace) -> float:
        """The largest learning rate that is stable in mean square."""
        ages, gaps = (tuple(sorted(each.items())) for each in (pace.weights.by_age, pace.weights.by_gap))
        return _limit(self.descent, ages, gaps) / self.descent.sharpness(self.curvature)

    def effective_rate(self, pace: Pace) -> float:
        r"""$\eta_{\text{eff}}$: how far a weight of one moves the model, in the long run."""
        steady = (1 - self.descent.momentum) / self.descent.gain / (self.margin * self.limit(pace))
        return 1 / (steady + self.descent.sharpness(self.curvature) * self.noise / pace.batch)

    def learning_rate(self, pace: Pace, now: Pace) -> float:
        """For the optimizer: that of now, changed as theory says, or else theory's own; within the margin."""
        scale = (1 - self.descent.momentum) / self.descent.gain
        own = self.effective_rate(pace)
        rate = scale * own if self.lr is None else self.lr * own / self.effective_rate(now)
        return min(rate, self.largest(pace, now))

    def largest(self, pace: Pace, now: Pace) -> float:
        """The largest that is recommended: within the margin, or as near to the limit as that of now, if it is stable.

        A learning rate that works now above the margin shows that curvature is overestimated at the initial weights.
        """
        near = 0.0 if self.lr is None else min(self.lr / self.limit(now), CLOSEST)
        return max(self.margin, near) * self.limit(pace)

    def with_noise(self, factor: float) -> "Worth":
        return replace(self, noise=factor * self.noise)


@lru_cache(maxsize=1024)
def _limit(descent: Descent, ages: tuple[tuple[int, float], ...], gaps: tuple[tuple[int, float], ...]) -> float:
    """The largest learning rate times curvature. The largest ages, with a hundredth of the weight, count as one."""
    kept, tail = dict(ages), 0.0
    most = TAIL * math.fsum(abs(weight) for _, weight in ages)
    for age, weight in reversed(ages[1:]):
        if abs(tail) + abs(weight) > most:
            break
        tail += kept.pop(age)
    kept[max(kept)] += tail
    return descent.limit(NetWeights(kept, dict(gaps)))


def speed(pace: Pace, worth: Worth | None) -> float:
    """Progress a second; where nothing is known of the loss, samples a second."""
    if worth is None:
        return pace.samples_per_second
    return pace.weight_per_second * worth.effective_rate(pace)
