"""Will this learning rate converge at this staleness? Ask the theory, then look at paths of the delay equation."""

import numpy as np

from paceline import theory

DELAY, CURVATURE, SIGMA = 10, 2.0, 2.0

for momentum in (0.0, 0.9):
    largest = theory.critical_step(DELAY, momentum) / CURVATURE
    print(f"delay {DELAY}, momentum {momentum}: learning rates up to {largest:.4f} are stable in the mean")

for rate in (0.005, 0.07, 0.08):
    descent = theory.DelayedDescent(gradient=lambda x: CURVATURE * x, sigma=SIGMA, step=rate)
    solution = theory.solve_sdde(
        descent.equation(), step=rate, steps=2000, delay=DELAY, history=4.0, paths=4000, keep="moments"
    )
    assert solution.variance is not None
    spread = float(solution.variance[-1, 0])
    try:
        exact = theory.discrete_stationary_variance(rate * CURVATURE, DELAY, rate * SIGMA)
    except ValueError as problem:
        print(f"learning rate {rate}: variance {spread:.3g} after 2000 updates; {problem}")
    else:
        ends = np.abs(solution.end).max()
        print(f"learning rate {rate}: variance {spread:.3g} (exact {exact:.3g}), no path further out than {ends:.3g}")
