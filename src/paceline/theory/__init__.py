r"""What a delay does to stochastic gradient descent, before a run: steps that converge, how fast, and how near.

Everything here is about one direction of curvature $\lambda$, or a quadratic with several, and says so where a number
holds more widely. Delays are whole updates where the discrete algorithm is meant, and times where a differential
equation is. ``docs/theory.md`` tells which number to trust when.
"""

from paceline.theory.approximation import ApproximationError, approximation_error
from paceline.theory.group_bound import group_sgd_bound
from paceline.theory.moments import Moments, recursion_moments, sdde_moments, sdde_stationary_variance
from paceline.theory.rates import (
    TimeToEpsilon,
    corollary_3_3,
    corollary_4_3,
    paper_time_to_epsilon,
    theorem_3_2,
    theorem_3_4,
    theorem_4_1,
    theorem_4_2,
    time_to_epsilon,
)
from paceline.theory.record import Solution
from paceline.theory.recursion import DelayedDescent
from paceline.theory.roots import dominant_root
from paceline.theory.schedules import (
    Schedule,
    recorded_schedule,
    schedule_critical_step,
    schedule_growth,
    simulated_schedule,
)
from paceline.theory.sdde import DelayEquation, solve_sdde
from paceline.theory.stability import (
    critical_step,
    mean_square_critical_step,
    oscillation_limit,
    spectral_radius,
)
from paceline.theory.variance import discrete_stationary_variance, stationary_variance

__all__ = [
    "ApproximationError",
    "DelayEquation",
    "DelayedDescent",
    "Moments",
    "Schedule",
    "Solution",
    "TimeToEpsilon",
    "approximation_error",
    "corollary_3_3",
    "corollary_4_3",
    "critical_step",
    "discrete_stationary_variance",
    "dominant_root",
    "group_sgd_bound",
    "mean_square_critical_step",
    "oscillation_limit",
    "paper_time_to_epsilon",
    "recorded_schedule",
    "recursion_moments",
    "schedule_critical_step",
    "schedule_growth",
    "sdde_moments",
    "sdde_stationary_variance",
    "simulated_schedule",
    "solve_sdde",
    "spectral_radius",
    "stationary_variance",
    "theorem_3_2",
    "theorem_3_4",
    "theorem_4_1",
    "theorem_4_2",
    "time_to_epsilon",
]
