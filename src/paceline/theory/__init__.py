r"""What a delay does to stochastic gradient descent, before a run: steps that converge, how fast, and how near.

Everything here is about one direction of curvature $\lambda$, or a quadratic with several, and says so where a number
holds more widely. Delays are whole updates where the discrete algorithm is meant, and times where a differential
equation is. ``docs/theory.md`` tells which number to trust when.
"""

from paceline.theory.roots import dominant_root
from paceline.theory.stability import (
    critical_step,
    mean_square_critical_step,
    oscillation_limit,
    spectral_radius,
)
from paceline.theory.variance import discrete_stationary_variance, stationary_variance

__all__ = [
    "critical_step",
    "discrete_stationary_variance",
    "dominant_root",
    "mean_square_critical_step",
    "oscillation_limit",
    "spectral_radius",
    "stationary_variance",
]
