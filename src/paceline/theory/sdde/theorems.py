r"""The theorems of *Differential Equations for Modeling Asynchronous Algorithms* (He et al.), as functions.

Numerical assumptions are checked; the others are in the docstrings. The paper does not give its constants
$C_1, \dots, C_6$, so those bounds say how a quantity scales, not how large it is. They are arguments, by default 1. For
planning use ``time_to_epsilon``, which needs no constants.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.core.errors import ConfigError
from paceline.theory.sdde.moments import discrete_stationary_variance, recursion_moments
from paceline.theory.stability.delays import Delays
from paceline.theory.stability.limits import (
    check_delay,
    critical_step,
    dominant_root,
    mean_square_critical_step,
    spectral_radius,
)

Floats = NDArray[np.float64]
MOST_UPDATES = 2_000_000


def theorem_3_2(
    updates: int, delay: int, batch_size: int, smoothness: float, constants: tuple[float, float] = (1.0, 1.0)
) -> float:
    r"""How far the SDDE may be from ASGD with random delays up to $l$, after $K$ updates with $\eta = \delta = 1/K$.

    $$E|X(t_K) - x_K| \le C_1 \Big(\frac{1}{\sqrt K} + \frac{l}{K^{3/2}}\Big) + C_2 \frac{e^{L(l+1)}}{\sqrt b\,(l+1)}$$

    Needs $L(l+1) \le K$, which is checked. The paper does not say how $X$ and $x$ are coupled.
    """
    _check_fine(updates, smoothness * (delay + 1), "L (l + 1)")
    first, second = constants
    spread = math.exp(smoothness * (delay + 1)) / (math.sqrt(batch_size) * (delay + 1))
    return first * _discretised(updates, delay) + second * spread


def corollary_3_3(
    updates: int, batch_size: int, smoothness: float, constants: tuple[float, float] = (1.0, 1.0)
) -> float:  # fmt: skip
    r"""Without a delay, $C_1 K^{-1/2} + C_2\, e^L b^{-1/2}$: ``theorem_3_2`` with $l = 0$."""
    return theorem_3_2(updates, 0, batch_size, smoothness, constants)


def theorem_3_4(
    updates: int, delay: int, batch_size: int, smoothness: float, constants: tuple[float, float] = (1.0, 1.0)
) -> float:
    r"""How far the SDDE may be from ASGD with a fixed delay $l$, which does not affect the second term.

    $$E|X(t_K) - x_K| \le C_3 \Big(\frac{1}{\sqrt K} + \frac{l}{K^{3/2}}\Big) + C_4 \frac{e^{L}}{\sqrt b}$$

    Needs $L\,l \le K$, which is checked.
    """
    _check_fine(updates, smoothness * delay, "L l")
    third, fourth = constants
    return third * _discretised(updates, delay) + fourth * math.exp(smoothness) / math.sqrt(batch_size)


def theorem_4_1(
    times: ArrayLike,
    rate: ArrayLike,
    delay: float,
    epsilon: float,
    *,
    decay: float | None = None,
    constants: tuple[float, float] = (1.0, 1.0),
) -> Floats:
    r"""Linear regression by ASGD with $\eta = \epsilon/\tau^2$, in the time of the SDDE.

    $$E|X(t) - x_*|^2 \le C_5\, e^{-2\lambda(t-\tau)} + C_6 \frac{\epsilon}{\lambda\tau^2}, \qquad 0 < \lambda < -V$$

    rate   $\tilde A$, whose dominant root is $V$; $V < 0$ (stability in the mean) is checked
    decay  $\lambda$; by default 99 % of $-V$, because the constants grow without bound towards it
    """
    bound = -dominant_root(rate, delay)
    chosen = 0.99 * bound if decay is None else decay
    if bound <= 0 or not 0 < chosen < bound:
        raise ConfigError(f"theorem 4.1 needs a decay between 0 and -V = {bound:.6g}, and not {chosen:.6g}")
    if not (delay > 0 and epsilon > 0):
        raise ConfigError(
            f"theorem 4.1 does not hold for a delay of {delay} and an epsilon of {epsilon}: both must be positive"
        )
    fifth, sixth = constants
    t = np.asarray(times, dtype=np.float64)
    return np.asarray(fifth * np.exp(-2 * chosen * (t - delay)) + sixth * epsilon / (chosen * delay**2))


def theorem_4_2(
    times: ArrayLike,
    *,
    convexity: float,
    smoothness: float,
    radius: float,
    noise: float,
    interval: float,
    delay: float = 0.0,
) -> Floats:
    r"""Bound for a strongly convex loss with the learning rates $\eta_k = 1/(\mu k)$, for $t > 1$.

    $$E|X(t) - x_*|^2 \le \frac{(\delta + 1)\,(H + 2L^2D^2\tau) \ln t}{(t-1)\,\mu^2}, \qquad H = E\,\mathrm{Tr}\,
    \sigma\sigma^T + 2\mu L D^2$$

    convexity  $\mu$, and ``smoothness`` $L$
    radius     $D$: the path must stay in this ball, an assumption that is not checked, and that normal noise violates
    noise      $E\,\mathrm{Tr}\,\sigma\sigma^T$
    interval   $\delta$, the time of an update: $t = k\delta$
    delay      $\tau$, the longest, in the same time
    """
    check_delay(delay)
    if not 0 < convexity <= smoothness:
        raise ConfigError(f"a convexity of {convexity} does not fit a smoothness of {smoothness}: 0 < mu <= L")
    t = np.asarray(times, dtype=np.float64)
    if not (t > 1).all():
        raise ConfigError(f"theorem 4.2 is for times above 1, and not for {t.min():g}")
    height = noise + 2 * convexity * smoothness * radius**2 + 2 * smoothness**2 * radius**2 * delay
    return np.asarray((interval + 1) * height * np.log(t) / ((t - 1) * convexity**2))


def corollary_4_3(
    times: ArrayLike, *, convexity: float, smoothness: float, radius: float, noise: float, interval: float
) -> Floats:
    r"""Without a delay, $(\delta+1) H \ln t / ((t-1)\mu^2)$: ``theorem_4_2`` with $\tau = 0$."""
    return theorem_4_2(
        times, convexity=convexity, smoothness=smoothness, radius=radius, noise=noise, interval=interval
    )  # fmt: skip


@dataclass(frozen=True)
class TimeToEpsilon:
    """Time until the expected squared error is at most ``epsilon``: in updates, in the time of the SDDE, in seconds.

    ``step`` is the learning rate.
    """

    epsilon: float
    step: float
    updates: int
    time: float
    seconds: float | None


def paper_time_to_epsilon(
    epsilon: float, rate: float, delay: int, updates_per_second: float | None = None
) -> TimeToEpsilon:
    r"""The time of Theorem 4.1 with all constants 1: $t \ge \tau + \ln(1/\epsilon) / (2\lambda)$ at $\lambda = -V$.

    This is the time of the SDDE. The paper compares it with numbers of iterations, but an update takes the time $\eta$,
    and $\eta = \epsilon/\tau^2$ is small: with $\tau = l\eta$ it is $\eta = (\epsilon/l^2)^{1/3}$, and $k = t/\eta$.
    """
    if not 0 < epsilon < 1:
        raise ConfigError(f"an epsilon of {epsilon} is not possible: between 0 and 1")
    if delay < 1:
        raise ConfigError(f"theorem 4.1 divides by the delay: a delay of {delay} updates is not possible, at least 1")
    step = (epsilon / delay**2) ** (1 / 3)
    decay = -dominant_root(rate, delay * step)
    if decay <= 0:
        raise ConfigError(
            f"a learning rate of {step:.6g} is not stable in the mean at a rate of {rate} and a delay of {delay}"
        )
    time = delay * step + math.log(1 / epsilon) / (2 * decay)
    return _in_all_units(epsilon, step, math.ceil(time / step), updates_per_second)


def time_to_epsilon(
    epsilon: float,
    *,
    curvature: float,
    step: float,
    delays: Delays,
    noise: float,
    start: float,
    momentum: float = 0.0,
    updates_per_second: float | None = None,
) -> TimeToEpsilon:
    r"""Time until $E\,x_k^2 \le \epsilon$, along one direction of a quadratic. Exact, from the moments.

    curvature  $\lambda$ of the direction: the smallest is the slowest
    step       $\eta$, the learning rate; ``noise`` is $\sigma$, the standard deviation of a stochastic gradient
    start      the initial distance from the optimum

    The time of the SDDE is $k\eta$. An epsilon below the stationary variance is never reached and is refused; so
    is a learning rate that is not stable in mean square.
    """
    limit = mean_square_critical_step(delays, momentum)
    if not 0 < step * curvature < limit:
        raise ConfigError(
            f"a learning rate of {step:.6g} at a curvature of {curvature:.6g} is not stable in mean square with "
            f"these delays: at most {limit / curvature if curvature > 0 else math.nan:.6g} (in the mean, "
            f"{critical_step(delays, momentum) / curvature if curvature > 0 else math.nan:.6g})"
        )
    floor = discrete_stationary_variance(step * curvature, delays, step * noise, momentum)
    if not epsilon > floor:
        raise ConfigError(
            f"an epsilon of {epsilon:.6g} is never reached: at a learning rate of {step:.6g} gradient noise "
            f"causes a variance of {floor:.6g}"
        )
    shrinking = -2 * math.log(spectral_radius(step * curvature, delays, momentum))
    horizon = 256 + 2 * max(0.0, math.log(max(start**2, epsilon) / (epsilon - floor))) / shrinking
    while horizon <= MOST_UPDATES:
        moments = recursion_moments(
            step * curvature, delays, step * noise, start=start, updates=int(horizon), momentum=momentum
        )
        above = np.flatnonzero(moments.mean**2 + moments.variance > epsilon)
        lasting = int(above[-1]) + 1 if len(above) else 0
        if lasting <= 0.75 * horizon:
            return _in_all_units(epsilon, step, lasting, updates_per_second)
        horizon *= 4
    raise ConfigError(
        f"an epsilon of {epsilon:.6g} is not reached in {MOST_UPDATES} updates at a learning rate of {step:.6g}"
    )


def _in_all_units(epsilon: float, step: float, updates: int, updates_per_second: float | None) -> TimeToEpsilon:
    if updates_per_second is not None and not updates_per_second > 0:
        raise ConfigError(f"updates_per_second={updates_per_second} is not possible: more than 0")
    seconds = None if updates_per_second is None else updates / updates_per_second
    return TimeToEpsilon(epsilon, step, updates, updates * step, seconds)


def _discretised(updates: int, delay: int) -> float:
    return float(updates**-0.5 + delay * updates**-1.5)


def _check_fine(updates: int, needed: float, formula: str) -> None:
    if updates < 1 or needed > updates:
        raise ConfigError(f"{updates} updates are too few: {formula} = {needed:g} must not be above their number")
