r"""Exact mean and variance of the paths of a linear problem: of the discrete recursion, and of its SDDE.

The gradient is $a\,x$ and its noise has a constant variance, so the moments have equations of their own. The discrete
ones are iterated. Those of the delay equation are solved by the method of steps: on each interval of one update the
delayed values are known polynomials, and so is the solution. Its degree is chosen for 14 digits.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike, NDArray

from paceline.core.errors import ConfigError
from paceline.theory.stability.delays import Delays, grid_delays, probabilities
from paceline.theory.stability.limits import (
    check_momentum,
    critical_step,
    delay_noise,
    dominant_root,
    mean_square_critical_step,
    push_correlations,
    square,
)

Floats = NDArray[np.float64]
DEGREE = 12  # of the polynomials of an interval
MOST_INTERVALS = 200_000
GROWN = 1e12  # times the noise of an update: the sum of no stable response is as large


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and variance after 0, 1, 2, ... updates, or at their times."""

    mean: Floats
    variance: Floats


def recursion_moments(
    scaled_step: float,
    delays: Delays | Sequence[int],
    noise: float,
    *,
    start: float,
    updates: int,
    momentum: float = 0.0,
) -> Moments:
    r"""Exact moments of $x_{k+1} = x_k + m(x_k - x_{k-1}) - h\,x_{k-l_k} + s\,z_k$; values before $x_0$ equal $x_0$.

    scaled_step  $h = \eta a$, the learning rate times the curvature
    delays       a number of updates, a mapping from delays to probabilities, or the recorded delay of each update
    noise        $s = \eta\sigma$, the learning rate times the standard deviation of a stochastic gradient

    With the covariances $C_{ij}$ and means $m_i$ of the last values $x_{k-i}$, and the weights $w$ of the mean
    recursion, $\mathrm{Var}\,x_{k+1} = w^T C w + s^2 + h^2\big(\sum_j q_j (C_{jj} + m_j^2) - q^T (C + m m^T) q\big)$;
    random delays add the last term.
    """
    check_momentum(momentum)
    lags = grid_delays(delays, updates)
    size = max(lags.longest, 1) + 1
    shares = np.zeros(size)
    if lags.recorded is None:
        shares[: lags.longest + 1] = probabilities(delays)  # type: ignore[arg-type]
    last, covariance = np.full(size, float(start)), np.zeros((size, size))
    mean, variance = np.full(updates + 1, float(start)), np.zeros(updates + 1)
    for k in range(updates):
        if lags.recorded is not None:
            shares[:] = 0
            shares[lags.recorded[k]] = 1
        weights = -scaled_step * shares
        weights[0] += 1 + momentum
        weights[1] -= momentum
        moved = weights @ covariance
        spread = shares @ (covariance.diagonal() + last**2) - shares @ covariance @ shares - (shares @ last) ** 2
        mean[k + 1] = weights @ last
        variance[k + 1] = moved @ weights + scaled_step**2 * max(spread, 0.0) + noise**2
        last[1:], last[0] = last[:-1].copy(), mean[k + 1]
        covariance[1:, 1:] = covariance[:-1, :-1].copy()
        covariance[0, 1:] = covariance[1:, 0] = moved[:-1]
        covariance[0, 0] = variance[k + 1]
    return Moments(mean, variance)


def sdde_moments(
    rate: float,
    delays: Delays,
    noise: float,
    *,
    unit: float,
    updates: int,
    history: float | Callable[[float], float],
    momentum: float = 0.0,
) -> Moments:
    r"""Moments of $dX = -a\,X(t-\theta)\,dt + s\,dB$ at the times $0, \delta, 2\delta, \dots$, to about 13 digits.

    rate      $a$
    delays    $\theta$ in units of $\delta$; a random delay is drawn at every instant, so that only its distribution
              matters: $-a \sum_j q_j X(t - j\delta)$. (In discrete time random delays add noise.)
    noise     $s$: for asynchronous SGD, $\sqrt\eta\,\sigma$
    unit      $\delta$, the time of an update
    history   $X(t)$ for $t \le 0$
    momentum  $m$: then $dX = -P\,dt$, $\delta\,dP = (-(1-m) P + a X(t-\theta))\,dt + s\,dB$, which is the limit of
              torch's momentum SGD for $\eta = \delta$. The buffer $P$ starts with 0
    """
    line = _Line(rate, delays, noise, unit, momentum)
    past: Callable[[float], float] = history if callable(history) else lambda t: float(history)
    begin = np.array([past(0.0), 0.0])[: line.size]
    means = [piece[-1, 0] for piece in line.pieces(begin, updates, past)]
    spread = [line.area(piece[:, 0] ** 2) for piece in line.pieces(line.push, updates, lambda t: 0.0)]
    return Moments(np.array([begin[0], *means]), np.concatenate([[0.0], np.cumsum(spread)]))


def sdde_stationary_variance(rate: float, delays: Delays, noise: float, *, unit: float, momentum: float = 0.0) -> float:
    r"""The variance of ``sdde_moments`` in the long run, also for random delays and momentum.

    For a fixed delay without momentum ``stationary_variance`` is a closed form. This function sums the squared response
    to an impulse until it has decayed. A response that does not decay is refused: then the equation is not stable (in
    the mean and in mean square, which is the same for these equations).
    """
    line = _Line(rate, delays, noise, unit, momentum)
    total, window, recent = 0.0, line.longest + 2, list[float]()
    for number, piece in enumerate(line.pieces(line.push, MOST_INTERVALS, lambda t: 0.0)):
        recent.append(line.area(piece[:, 0] ** 2))
        total += recent[-1]
        if not total < GROWN * noise**2 * unit:
            break
        if number % window == window - 1:
            if sum(recent) <= 1e-14 * total:
                return total
            recent.clear()
    raise ConfigError(
        f"there is no stationary variance: the rate {rate:.6g} with delays up to {line.longest} of {unit:.6g} is "
        "unstable, or almost"
    )


class _Line:
    r"""$\dot y = M_0\,y(t) + \sum_j M_j\,y(t-j)$, with the time in units of an update, on Chebyshev points."""

    def __init__(self, rate: float, delays: Delays, noise: float, unit: float, momentum: float) -> None:
        check_momentum(momentum)
        if not (0 < unit < math.inf and math.isfinite(rate) and 0 <= noise < math.inf):
            raise ConfigError(f"a unit of {unit}, a rate of {rate} and a noise of {noise} are not possible")
        shares = probabilities(delays)
        self.longest = len(shares) - 1
        self.size = 2 if momentum else 1
        # the vector that the delayed gradient is multiplied with, and the matrix without it
        into = np.array([0.0, rate]) if momentum else np.array([-rate * unit])
        own = np.array([[0.0, -unit], [0.0, -(1 - momentum)]]) if momentum else np.zeros((1, 1))
        own[:, 0] += shares[0] * into
        self.push = np.array([0.0, noise / unit]) if momentum else np.array([noise])
        self._unit, self._into = unit, into
        self._later = [(j, float(share)) for j, share in enumerate(shares) if j and share]
        points = 0.5 - 0.5 * np.cos(np.pi * np.arange(DEGREE + 1) / DEGREE)
        self._points = points
        self._integrate = _integration(points)
        whole = np.eye(points.size * self.size) - np.kron(self._integrate, own)
        self._solve = np.linalg.inv(whole)

    def pieces(self, begin: Floats, count: int, past: Callable[[float], float]) -> Iterator[Floats]:
        """The solution on each interval of one update, at the Chebyshev points."""
        known: dict[int, Floats] = {
            -j: np.array([past((point - j) * self._unit) for point in self._points]) for j in range(1, self.longest + 1)
        }
        for number in range(count):
            forced = np.zeros_like(self._points)
            for j, share in self._later:
                forced += share * known[number - j]
            right = begin + np.outer(self._integrate @ forced, self._into)
            piece = (self._solve @ right.reshape(-1)).reshape(right.shape)
            known[number] = piece[:, 0]
            known.pop(number - self.longest, None)
            begin = piece[-1]
            yield piece

    def area(self, values: Floats) -> float:
        """The integral over one interval of time."""
        return float(self._integrate[-1] @ values) * self._unit


def _integration(points: Floats) -> Floats:
    """The matrix that maps values at the points to the integrals from 0 to each point."""
    coefficients = np.linalg.inv(chebyshev.chebvander(2 * points - 1, len(points) - 1))
    rows = []
    for unit in coefficients.T:
        integral = chebyshev.chebint(unit, scl=0.5, lbnd=-1)
        rows.append(chebyshev.chebval(2 * points - 1, integral))
    return np.asarray(np.array(rows).T, dtype=np.float64)


@overload
def stationary_variance(rate: float, delay: float, noise: float) -> float: ...
@overload
def stationary_variance(rate: Floats, delay: float, noise: ArrayLike) -> Floats: ...
def stationary_variance(rate: ArrayLike, delay: float, noise: ArrayLike) -> float | Floats:
    r"""The variance of $dX = -a\,X(t-\tau)\,dt + s\,dB$ in the long run, for $0 < a\tau < \pi/2$. Exact.

    $$\mathrm{Var} = \frac{s^2\,(1 + \sin a\tau)}{2a \cos a\tau}$$

    rate   $a$, or a symmetric positive definite matrix $A$; then the result is the covariance matrix
    delay  $\tau$, in the unit of time of ``rate``
    noise  $s$, or a matrix $G$ with the noise $G\,dB$. For asynchronous SGD with the learning rate $\eta$ it is
           $\sqrt\eta\,\sigma$, where $\sigma$ is the standard deviation of a stochastic gradient

    A matrix is decomposed into its eigenvalues $a_i$. For two of them, the integral $\int_0^\infty r_i r_j\,dt$ of the
    responses $r$ to a unit impulse solves a linear equation:
    with $\omega = \sqrt{a_i a_j}$ it is $P$ from $P = \frac{\omega}{a_j}(P \sin\omega\tau - R\cos\omega\tau)$,
    $a_i (P \cos\omega\tau + R \sin\omega\tau) - \omega R = 1$.

    An equation that is not stable in the mean is refused: it has no such variance.
    """
    matrix = square(rate)
    if not np.allclose(matrix, matrix.T, rtol=1e-9, atol=0):
        raise ConfigError(f"the rate {matrix.tolist()} is not symmetric, as a Hessian is")
    rates, directions = np.linalg.eigh(matrix)
    if (rates <= 0).any() or dominant_root(matrix, delay) >= 0:
        raise ConfigError(
            f"there is no stationary variance: the rate {rates.max():.6g} with the delay {delay:.6g} is unstable, "
            f"as rate * delay must be between 0 and pi/2, and every rate positive (the smallest is {rates.min():.6g})"
        )
    diffusion = np.atleast_2d(np.asarray(noise, dtype=np.float64))
    if diffusion.shape[0] != len(matrix) or not np.isfinite(diffusion).all():
        raise ConfigError(f"noise of shape {diffusion.shape} does not fit {len(matrix)} dimensions, or is infinite")
    turned = directions.T @ diffusion
    covariance = directions @ (_shared(rates, delay) * (turned @ turned.T)) @ directions.T
    return float(covariance[0, 0]) if np.ndim(rate) == 0 else covariance


def discrete_stationary_variance(scaled_step: float, delays: Delays, noise: float, momentum: float = 0.0) -> float:
    r"""The variance of $x_{k+1} = x_k + m(x_k - x_{k-1}) - h\,x_{k-l_k} + s\,z_k$ in the long run. Exact.

    scaled_step  $h = \eta\lambda$, the learning rate times the curvature
    delays       a number of updates, or a mapping from delays to probabilities, drawn for each update
    noise        $s = \eta\sigma$, the learning rate times the standard deviation of a stochastic gradient
    momentum     $m$, as in ``torch.optim.SGD(momentum=...)``

    It is $s^2 R_0 / (1 - h^2 \sum_n \varphi_n)$ with $R_0 = \sum_n r_n^2$ and $\varphi$ as in
    ``mean_square_critical_step``. A learning rate that is not stable in mean square is refused.
    """
    if not 0 <= noise < math.inf:
        raise ConfigError(f"a noise of {noise} is not possible: at least 0, and finite")
    limit = critical_step(delays, momentum)
    shares = probabilities(delays)
    returned = delay_noise(scaled_step, shares, momentum) if 0 < scaled_step < limit else math.inf
    if not returned < 1:
        raise ConfigError(
            f"there is no stationary variance: a learning rate times curvature of {scaled_step:.6g} is not stable "
            f"in mean square, which needs more than 0 and less than {mean_square_critical_step(delays, momentum):.6g}"
        )
    return float(noise**2 * push_correlations(scaled_step, shares, momentum)[0] / (1 - returned))


def _shared(rates: Floats, delay: float) -> Floats:
    """The integral of the product of the responses of two directions, for each pair."""
    first, second = rates[:, None], rates[None, :]
    omega = np.sqrt(first * second)
    sine, cosine = np.sin(omega * delay), np.cos(omega * delay)
    # with R = P * ratio from the first equation, the second gives P; a delay of 0 is no special case
    ratio = (omega / second * sine - 1) / (omega / second * cosine)
    return np.asarray(1 / (first * (cosine + ratio * sine) - omega * ratio))
