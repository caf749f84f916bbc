r"""The largest stable learning rate of SGD with delayed gradients, for the discrete recursion, exactly.

Along a direction of curvature $\lambda$ the update with a gradient that is $l_k$ updates old is

$$x_{k+1} = x_k + m\,(x_k - x_{k-1}) - h\,x_{k-l_k}, \qquad h = \eta\lambda,$$

with heavy-ball momentum $m$ as in ``torch.optim.SGD``: the delayed gradient enters the buffer. All limits are limits of
$h$, the learning rate times the curvature; divide by the largest curvature for the limit of the learning rate $\eta$.
There are two notions of stability:

in the mean      $E\,x_k \to 0$ from every start: ``critical_step``
in mean square   $E\,x_k^2 \to 0$ too, or to the variance due to additive noise: ``mean_square_critical_step``

They are the same for a fixed delay. For random delays, drawn independently for each update, the second is stricter.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import lambertw

from paceline.core.errors import ConfigError
from paceline.theory.stability.delays import Delays, probabilities

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
OVERSAMPLED = 16  # grid points per oscillation of the condition for a root on the unit circle


def critical_step(delays: Delays, momentum: float = 0.0) -> float:
    r"""The largest learning rate times curvature, $\eta\lambda$, up to which SGD is stable in the mean. Exact.

    The mean follows the recursion with the characteristic polynomial

    $$(z-1)(z-m)\,z^{L-1} + h \sum_{j=0}^{L} q_j\, z^{L-j},$$

    where $q_j$ is the probability of the delay $j$. For small $h$ all its roots are inside the unit circle; the
    limit is the smallest $h$ that puts one on it. A fixed delay $l$ without momentum has $2 \sin(\pi / (2 (2l+1)))$.

    delays    a number of updates, or a mapping from delays to probabilities
    momentum  $m$, as in ``torch.optim.SGD(momentum=...)``, without dampening and not Nesterov's

    For a fixed delay stability in the mean is mean-square stability too (under additive noise). For random delays it is
    not: see ``mean_square_critical_step``.
    """
    check_momentum(momentum)
    shares = probabilities(delays)
    delay = len(shares) - 1
    if momentum == 0 and shares[delay] == 1:
        return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    return first_on_the_circle(shares, momentum)


def oscillation_limit(delay: int) -> float:
    r"""The largest learning rate times curvature without oscillation, for a fixed delay without momentum. Exact.

    It is $l^l / (l+1)^{l+1}$. Up to it the dominant root of $z^{l+1} - z^l + h$ is real and positive, so that the error
    shrinks without changing its sign; above it, the path oscillates about the optimum, and still converges up to
    ``critical_step``. The continuous limit is $a\tau \le 1/e$.
    """
    length = len(probabilities(delay)) - 1
    return 1.0 if length == 0 else math.exp(length * math.log(length) - (length + 1) * math.log(length + 1))


def spectral_radius(scaled_step: float, delays: Delays, momentum: float = 0.0) -> float:
    r"""The factor by which an update changes the mean error in the long run; below 1 is stable in the mean.

    It is the largest modulus of the roots of the polynomial in ``critical_step``. ``scaled_step`` is $h$, the learning
    rate times the curvature.
    """
    check_step(scaled_step)
    check_momentum(momentum)
    return float(np.abs(np.roots(characteristic(scaled_step, probabilities(delays), momentum))).max())


def mean_square_critical_step(delays: Delays, momentum: float = 0.0) -> float:
    r"""The largest learning rate times curvature up to which SGD is stable in mean square, for independent delays.

    Random delays add a noise of their own, $x_{k-l_k} - \sum_j q_j x_{k-j}$. With the response $r_n$ of the
    mean recursion to a unit impulse, its power in update $k$ contributes to later ones with the factors

    $$h^2 \varphi_n = h^2 \Big( \sum_j q_j r_{n-j}^2 - \big(\textstyle\sum_j q_j r_{n-j}\big)^2 \Big) \ge 0,$$

    so it decays if and only if the mean does and $h^2 \sum_n \varphi_n < 1$. For a fixed delay there is no such
    noise, and this is ``critical_step``.
    """
    limit = critical_step(delays, momentum)
    shares = probabilities(delays)
    if shares.max() == 1:
        return limit

    def excess(step: float) -> float:
        return float(delay_noise(step, shares, momentum)) - 1

    below = 0.0
    for part in (*np.linspace(0, 1, 65)[1:-1].tolist(), 1 - 1e-9):
        step = part * limit
        if excess(step) >= 0:
            return float(brentq(excess, below, step, xtol=1e-15, rtol=1e-12)) if below else step
        below = step
    return limit  # delays that hardly vary add hardly any noise


def characteristic(scaled_step: float, shares: Floats, momentum: float) -> Floats:
    """The coefficients of the characteristic polynomial, from the highest power down."""
    coefficients = np.zeros(max(len(shares), 2) + 1)
    coefficients[:3] = 1, -(1 + momentum), momentum
    coefficients[1 : len(shares) + 1] += scaled_step * shares
    return coefficients if momentum or len(shares) > 1 else coefficients[:2]


def push_correlations(scaled_step: float, shares: Floats, momentum: float) -> Floats:
    r"""$R_i = \sum_n r_n r_{n+i}$ of the response $r$ to a unit impulse, for $i = 0, 1, \dots$ up to the longest delay.

    The Yule-Walker equations $\sum_j c_j R_{|i-j|} = [i = 0]$ of the polynomial with coefficients $c_j$; it must be
    stable.
    """
    coefficients = characteristic(scaled_step, shares, momentum)
    size = len(coefficients)
    lags = np.abs(np.arange(size)[:, None] - np.arange(size)[None, :])
    system = np.zeros((size, size))
    np.add.at(system, (np.arange(size)[:, None], lags), np.broadcast_to(coefficients, (size, size)))
    pushed = np.zeros(size)
    pushed[0] = 1
    return np.asarray(np.linalg.solve(system, pushed), dtype=np.float64)


def delay_noise(scaled_step: float, shares: Floats, momentum: float) -> float:
    r"""The factor $h^2 \sum_n \varphi_n$ of ``mean_square_critical_step``: 0 for a fixed delay."""
    correlations = push_correlations(scaled_step, shares, momentum)
    (used,) = shares.nonzero()
    lags = np.abs(used[:, None] - used[None, :])
    kept = shares[used] @ correlations[lags] @ shares[used]
    return float(scaled_step**2 * (correlations[0] - kept))


def check_momentum(momentum: float) -> None:
    """Raise ``ConfigError`` unless 0 <= momentum < 1, as for ``torch.optim.SGD``."""
    if not 0 <= momentum < 1:
        raise ConfigError(f"a momentum of {momentum} is not possible: at least 0 and below 1")


def check_step(scaled_step: float) -> None:
    if not 0 < scaled_step < math.inf:
        raise ConfigError(f"a learning rate times curvature of {scaled_step} is not possible: positive and finite")


def first_on_the_circle(shares: Floats, momentum: float) -> float:
    r"""The smallest $h > 0$ with a root $z = e^{i\omega}$.

    With $N = z - (1+m) + m/z$ and $Q = \sum_j q_j z^{-j}$ this is $h = -N/Q$, which must be real: $\Im(N\bar Q) = 0$.
    """
    (used,) = shares.nonzero()

    def response(omegas: Floats) -> Complexes:
        return np.asarray(np.exp(1j * np.outer(omegas, used)) @ shares[used])  # the conjugate of Q

    def condition(omega: float) -> float:
        return float((_numerator(np.array([omega]), momentum) * response(np.array([omega]))).imag[0])

    def steps(omegas: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):  # where the response is 0, no value is too large
            real = (_numerator(omegas, momentum) / response(omegas).conj()).real
        return np.where(real < 0, -real, np.inf)

    lows, highs = _brackets(shares, momentum, response)
    nearby = np.minimum(steps(lows), steps(highs))
    best = float(steps(np.array([np.pi]))[0])
    for place in np.argsort(nearby):
        if nearby[place] > 2 * best:  # and the rest is larger still
            break
        low, high = float(lows[place]), float(highs[place])
        ends = condition(low), condition(high)
        if ends[0] * ends[1] < 0:
            omega = brentq(condition, low, high, xtol=1e-15, rtol=4e-15)
        else:  # one end is itself a root, up to rounding
            omega = low if abs(ends[0]) < abs(ends[1]) else high
        best = min(best, float(steps(np.array([omega]))[0]))
    return best


def _brackets(shares: Floats, momentum: float, response: Callable[[Floats], Complexes]) -> tuple[Floats, Floats]:
    """Intervals in which the condition for a root on the circle changes its sign."""
    count = OVERSAMPLED * (len(shares) + 1)
    omegas = np.linspace(0, np.pi, count + 1)[1:-1]
    values = (_numerator(omegas, momentum) * np.fft.rfft(shares, 2 * count).conj()[1:-1]).imag
    # Two changes may lie between neighbours: then the parabola through three points has its vertex near or beyond 0.
    slope, bend = values[2:] - values[:-2], values[2:] - 2 * values[1:-1] + values[:-2]
    (turns,) = ((np.abs(slope) < 2 * np.abs(bend)) & (bend * values[1:-1] > 0)).nonzero()
    extra = omegas[turns + 1] - slope[turns] / (2 * bend[turns]) * omegas[0]
    omegas = np.concatenate([omegas, extra])
    values = np.concatenate([values, (_numerator(extra, momentum) * response(extra)).imag])
    order = np.argsort(omegas)
    omegas, signs = omegas[order], np.signbit(values[order])
    (changes,) = (signs[1:] != signs[:-1]).nonzero()
    return omegas[changes], omegas[changes + 1]


def _numerator(omegas: Floats, momentum: float) -> Complexes:
    return (1 + momentum) * (np.cos(omegas) - 1) + 1j * (1 - momentum) * np.sin(omegas)


def dominant_root(rate: ArrayLike, delay: float) -> float:
    r"""$V = \sup\{\Re\beta : \det(\beta I + A e^{-\beta\tau}) = 0\}$, the real part of the rightmost root.

    $$V = \max_i \frac{\Re\, W_0(-\lambda_i \tau)}{\tau}$$

    over the eigenvalues $\lambda_i$ of $A$, with the principal branch $W_0$ of Lambert's function, which is the
    rightmost of all branches. For $\tau = 0$ it is $-\min_i \Re\lambda_i$.

    rate   $A$: a number $a$, or a square matrix
    delay  $\tau$, in the unit of time of ``rate`` (not updates)

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
