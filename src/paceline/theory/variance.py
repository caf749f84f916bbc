r"""How far noise keeps a stable algorithm from the optimum, for ever: in continuous and in discrete time."""

import math
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.core.errors import ConfigError
from paceline.theory.histogram import Delays, probabilities
from paceline.theory.roots import dominant_root, square
from paceline.theory.stability import critical_step, delay_noise, mean_square_critical_step, push_correlations

Floats = NDArray[np.float64]


@overload
def stationary_variance(rate: float, delay: float, noise: float) -> float: ...
@overload
def stationary_variance(rate: Floats, delay: float, noise: ArrayLike) -> Floats: ...
def stationary_variance(rate: ArrayLike, delay: float, noise: ArrayLike) -> float | Floats:
    r"""The variance of $dX = -a\,X(t-\tau)\,dt + s\,dB$ in the long run, for $0 < a\tau < \pi/2$. Exact.

    $$\mathrm{Var} = \frac{s^2\,(1 + \sin a\tau)}{2a \cos a\tau}$$

    rate   $a$, or a symmetric positive definite matrix $A$; then the result is the covariance matrix
    delay  $\tau$, in the time in which ``rate`` counts
    noise  $s$, or a matrix $G$ with the noise $G\,dB$. For asynchronous SGD with the step $\eta$ it is
           $\sqrt\eta\,\sigma$, where $\sigma$ is the standard deviation of a stochastic gradient

    A matrix is taken apart into its eigenvalues $a_i$. Two of them share
    $\int_0^\infty r_i r_j\,dt$ of their responses $r$ to a unit push, which solves a linear equation of its own:
    with $\omega = \sqrt{a_i a_j}$ it is $P$ from $P = \frac{\omega}{a_j}(P \sin\omega\tau - R\cos\omega\tau)$,
    $a_i (P \cos\omega\tau + R \sin\omega\tau) - \omega R = 1$.

    An equation that is not stable in the mean has no such variance, and is refused.
    """
    matrix = square(rate)
    if not np.allclose(matrix, matrix.T, rtol=1e-9, atol=0):
        raise ConfigError(f"the rate {matrix.tolist()} is not symmetric, as a matrix of second derivatives is")
    rates, directions = np.linalg.eigh(matrix)
    if (rates <= 0).any() or dominant_root(matrix, delay) >= 0:
        raise ConfigError(
            f"there is no stationary variance: the rate {rates.max():.6g} with the delay {delay:.6g} is unstable, "
            f"as rate * delay must be between 0 and pi/2, and every rate positive (the smallest is {rates.min():.6g})"
        )
    diffusion = np.atleast_2d(np.asarray(noise, dtype=np.float64))
    if diffusion.shape[0] != len(matrix) or not np.isfinite(diffusion).all():
        raise ConfigError(f"noise of shape {diffusion.shape} does not go with {len(matrix)} dimensions, or is infinite")
    turned = directions.T @ diffusion
    covariance = directions @ (_shared(rates, delay) * (turned @ turned.T)) @ directions.T
    return float(covariance[0, 0]) if np.ndim(rate) == 0 else covariance


def discrete_stationary_variance(scaled_step: float, delays: Delays, noise: float, momentum: float = 0.0) -> float:
    r"""The variance of $x_{k+1} = x_k + m(x_k - x_{k-1}) - h\,x_{k-l_k} + s\,z_k$ in the long run. Exact.

    scaled_step  $h = \eta\lambda$, the step times the curvature
    delays       a number of updates, or a mapping from delays to probabilities, drawn anew for each update
    noise        $s = \eta\sigma$, the step times the standard deviation of a stochastic gradient
    momentum     $m$, as in ``torch.optim.SGD(momentum=...)``

    It is $s^2 R_0 / (1 - h^2 \sum_n \varphi_n)$ with $R_0 = \sum_n r_n^2$ and $\varphi$ as in
    ``mean_square_critical_step``. A step that is not stable in mean square has no such variance, and is refused.
    """
    if not 0 <= noise < math.inf:
        raise ConfigError(f"a noise of {noise} is not possible: at least 0, and finite")
    limit = critical_step(delays, momentum)
    shares = probabilities(delays)
    returned = delay_noise(scaled_step, shares, momentum) if 0 < scaled_step < limit else math.inf
    if not returned < 1:
        raise ConfigError(
            f"there is no stationary variance: a step times curvature of {scaled_step:.6g} is not stable in mean "
            f"square, which needs more than 0 and less than {mean_square_critical_step(delays, momentum):.6g}"
        )
    return float(noise**2 * push_correlations(scaled_step, shares, momentum)[0] / (1 - returned))


def _shared(rates: Floats, delay: float) -> Floats:
    """What the responses of two directions have in common, for each pair."""
    first, second = rates[:, None], rates[None, :]
    omega = np.sqrt(first * second)
    sine, cosine = np.sin(omega * delay), np.cos(omega * delay)
    # with R = P * ratio from the first equation, the second gives P; written so that no delay is no special case
    ratio = (omega / second * sine - 1) / (omega / second * cosine)
    return np.asarray(1 / (first * (cosine + ratio * sine) - omega * ratio))
