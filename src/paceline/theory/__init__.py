r"""What a delay does to stochastic gradient descent, before a run: steps that converge, how fast, and how near.

Everything here is about one direction of curvature $\lambda$, or a quadratic with several, and says so where a number
holds more widely. Delays are whole updates where the discrete algorithm is meant, and times where a differential
equation is. ``docs/theory.md`` tells which number to trust when.
"""

from paceline.theory.moments import Moments, recursion_moments, sdde_moments, sdde_stationary_variance
from paceline.theory.record import Solution
from paceline.theory.recursion import DelayedDescent
from paceline.theory.roots import dominant_root
from paceline.theory.sdde import DelayEquation, solve_sdde
from paceline.theory.stability import (
    critical_step,
    mean_square_critical_step,
    oscillation_limit,
    spectral_radius,
)
from paceline.theory.variance import discrete_stationary_variance, stationary_variance

__all__ = [
    "DelayEquation",
    "DelayedDescent",
    "Moments",
    "Solution",
    "critical_step",
    "discrete_stationary_variance",
    "dominant_root",
    "mean_square_critical_step",
    "oscillation_limit",
    "recursion_moments",
    "sdde_moments",
    "sdde_stationary_variance",
    "solve_sdde",
    "spectral_radius",
    "stationary_variance",
]
