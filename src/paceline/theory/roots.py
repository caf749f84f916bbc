r"""The characteristic roots of the linear delay equation $\dot X(t) = -A\,X(t-\tau)$: how fast it forgets."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import lambertw

from paceline.core.errors import ConfigError


def dominant_root(rate: ArrayLike, delay: float) -> float:
    r"""$V = \sup\{\Re\beta : \det(\beta I + A e^{-\beta\tau}) = 0\}$, the real part of the rightmost root.

    $$V = \max_i \frac{\Re\, W_0(-\lambda_i \tau)}{\tau}$$

    over the eigenvalues $\lambda_i$ of $A$, with the principal branch $W_0$ of Lambert's function, which is the
    rightmost of all branches. For $\tau = 0$ it is $-\min_i \Re\lambda_i$.

    rate   $A$: a number $a$, or a square matrix
    delay  $\tau$, in the same time in which ``rate`` counts (not updates)

    The continuous equation is stable in the mean if and only if $V < 0$, for a number if $0 < a\tau < \pi/2$; with
    additive noise it is then stable in mean square too. Means decay like $e^{Vt}$.
    This is about the differential equation; the limit of the discrete algorithm is ``critical_step``.

    He et al., *Differential Equations for Modeling Asynchronous Algorithms*, Theorem 4.1.
    """
    check_delay(delay)
    eigenvalues = np.linalg.eigvals(square(rate)).astype(np.complex128)
    roots = -eigenvalues if delay == 0 else _principal(-eigenvalues * delay) / delay
    return float(roots.real.max())


def square(rate: ArrayLike) -> NDArray[np.float64]:
    """A rate as a square matrix of finite numbers, or an error."""
    matrix = np.asarray(rate, dtype=np.float64)
    matrix = matrix.reshape(1, 1) if matrix.ndim == 0 else matrix
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ConfigError(f"a rate of shape {matrix.shape} is not possible: a number, or a square matrix")
    if not np.isfinite(matrix).all():
        raise ConfigError(f"the rate {matrix.tolist()} is not finite")
    return matrix


def _principal(z: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Lambert's W0. Next to its branch point -1/e, where scipy has no value, its series in p = sqrt(2 (1 + e z))."""
    p = np.sqrt(2 * (1 + math.e * z))
    with np.errstate(invalid="ignore"):
        known = lambertw(z)
    return np.where(np.abs(p) < 1e-3, -1 + p - p**2 / 3 + 11 / 72 * p**3 - 43 / 540 * p**4, known)


def check_delay(delay: float) -> None:
    if not 0 <= delay < math.inf:
        raise ConfigError(f"a delay of {delay} is not possible: at least 0, and finite")
