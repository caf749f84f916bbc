r"""Theory of stochastic gradient descent with delayed gradients: stable learning rates, speed and error.

Results are for one direction of curvature $\lambda$, or for a quadratic with several, unless a docstring says
otherwise. Delays are whole numbers of updates for the discrete algorithm, and times for a differential equation. Names
with ``step`` (``critical_step``, ``scaled_step``) are about the learning rate times the curvature, $\eta\lambda$.
``docs/theory.md`` explains which number to use when.
"""

from paceline.theory.group_bound import group_sgd_bound
from paceline.theory.sdde.moments import (
    Moments,
    discrete_stationary_variance,
    recursion_moments,
    sdde_moments,
    sdde_stationary_variance,
    stationary_variance,
)
from paceline.theory.sdde.paths import DelayEquation, Solution, solve_sdde
from paceline.theory.sdde.recursion import ApproximationError, DelayedDescent, approximation_error
from paceline.theory.sdde.theorems import (
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
from paceline.theory.stability.limits import (
    critical_step,
    dominant_root,
    mean_square_critical_step,
    oscillation_limit,
    spectral_radius,
)
from paceline.theory.stability.schedules import (
    Schedule,
    recorded_schedule,
    schedule_critical_step,
    schedule_growth,
    simulated_schedule,
)
from paceline.theory.time_bound import TimeBound, time_lower_bound, yardstick

__all__ = [
    "ApproximationError",
    "DelayEquation",
    "DelayedDescent",
    "Moments",
    "Schedule",
    "Solution",
    "TimeBound",
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
    "time_lower_bound",
    "time_to_epsilon",
    "yardstick",
]
