r"""How long the fastest ``rank`` of several workers take: means of order statistics, of unlike workers too.

A round of workers that begin together ends with the $K$-th of them to be done, at the order statistic $X_{(K)}$ of
their durations. With everybody it is the slowest's, $X_{(N)}$.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from paceline.core.errors import ConfigError
from paceline.delays import Constant, Distribution, Empirical, Pareto, ShiftedExponential
from paceline.theory.estimate import Source
from paceline.theory.integral import integrate

Floats = NDArray[np.float64]
NEGLIGIBLE = 1e-10  # a probability so small that the integral ends there
ACCURACY = 1e-9  # of an integral, relative


@dataclass(frozen=True)
class OrderMeans:
    """The means of the first to the last order statistic asked for, and where they come from."""

    means: Floats
    source: Source
    error: float = 0.0


def exponential_order_statistic(shift: float, mean: float, workers: int, rank: int) -> tuple[float, float]:
    r"""Mean and variance of the time of the ``rank``-th ($K$) of $N$ like workers, $X = a + \mathrm{Exp}(b)$. Exact.

    $$E X_{(K)} = a + b\,(H_N - H_{N-K}), \qquad \mathrm{Var}\,X_{(K)} = b^2\,(H^{(2)}_N - H^{(2)}_{N-K})$$

    since the gaps between successive order statistics of exponentials are independent exponentials (Rényi, 1953).

    shift, mean  $a$ and $b$;  workers, rank  $N$ and $K$
    """
    _check_rank(rank, workers)
    left = range(workers - rank + 1, workers + 1)
    return shift + mean * sum(1 / n for n in left), mean**2 * sum(1 / n**2 for n in left)


def pareto_order_statistic(minimum: float, shape: float, workers: int, rank: int) -> float:
    r"""The mean time of the ``rank``-th ($K$) of $N$ like workers with $P(X > x) = (m/x)^a$. Exact.

    $$E X_{(K)} = m\,\frac{N!}{(N-K)!}\,\frac{\Gamma(N-K+1-1/a)}{\Gamma(N+1-1/a)}$$

    It is infinite unless $a\,(N-K+1) > 1$.
    """
    _check_rank(rank, workers)
    slower = workers - rank
    if shape * (slower + 1) <= 1:
        return math.inf
    logarithm = gammaln(workers + 1) - gammaln(slower + 1) + gammaln(slower + 1 - 1 / shape)
    return float(minimum * np.exp(logarithm - gammaln(workers + 1 - 1 / shape)))


def order_statistic_means(delays: Sequence[Distribution], rank: int) -> OrderMeans:
    r"""$E X_{(1)}, \dots, E X_{(K)}$ of independent workers, each with a delay of its own, up to ``rank`` ($K$).

    $$E X_{(k)} = \int_0^\infty P(\text{fewer than } k \text{ are done by } t)\,dt,$$

    where the number that is done is a sum of independent yes-or-no draws with the probabilities $F_i(t)$. Like workers
    with exponential or Pareto delays have closed forms, constants and measured durations finite sums: ``exact``.
    """
    _check_rank(rank, len(delays))
    first, alike = delays[0], len(set(delays)) == 1
    if alike and isinstance(first, ShiftedExponential):
        means = [exponential_order_statistic(first.shift, first.mean, len(delays), k + 1)[0] for k in range(rank)]
        return OrderMeans(np.array(means), "exact")
    if alike and isinstance(first, Pareto):
        means = [pareto_order_statistic(first.minimum, first.shape, len(delays), k + 1) for k in range(rank)]
        return OrderMeans(np.array(means), "exact")
    if len(delays) == 1:
        return OrderMeans(np.array([first.mean_seconds]), "exact")
    if all(isinstance(delay, Constant | Empirical) for delay in delays):
        return OrderMeans(_sum_over_values(delays, rank), "exact")
    means, error = _integral(delays, rank)
    return OrderMeans(means, "quadrature", error)


def fewer_done(delays: Sequence[Distribution], rank: int, seconds: Floats) -> Floats:
    r"""$P(\text{fewer than } k \text{ workers are done by } t)$ for $k = 1, \dots,$ ``rank``: an array (times, rank)."""
    counts = Counter(delays)
    done = [(np.atleast_1d(delay.cdf(seconds)), count) for delay, count in counts.items()]
    if rank == len(delays) == 1:
        return 1 - done[0][0][:, None]
    # the generating function of how many are done, on the unit circle; its coefficients are the probabilities
    circle = np.exp(-2j * np.pi * np.arange(len(delays) + 1) / (len(delays) + 1))
    values = np.ones((len(done[0][0]), len(circle)), dtype=complex)
    for share, count in done:
        values *= (1 + share[:, None] * (circle - 1)) ** count
    below = np.cumsum(np.fft.ifft(values, axis=1).real, axis=1)[:, :rank].clip(0.0, 1.0)
    if rank == len(delays):  # the slowest: without the rounding that a tail would not forgive
        with np.errstate(divide="ignore"):
            below[:, -1] = -np.expm1(sum(count * np.log(share) for share, count in done))
    return below


def round_cdf(delays: Sequence[Distribution], rank: int, seconds: Floats) -> Floats:
    r"""$P(X_{(K)} \le t)$: a round with this ``rank`` ($K$) is over by then."""
    return np.asarray(1 - fewer_done(delays, rank, seconds)[:, -1])


def beginnings_and_jumps(delay: Distribution) -> tuple[float, ...]:
    """Where a distribution function is not smooth."""
    match delay:
        case Constant(value):
            return (value,)
        case ShiftedExponential(shift=shift):
            return (shift,) if shift > 0 else ()
        case Pareto(minimum=minimum):
            return (minimum,)
        case Empirical(values=values):
            return tuple(sorted(set(values)))
    return ()


def latest(delays: Sequence[Distribution], negligible: float = NEGLIGIBLE) -> float:
    """A time by which each worker is done, but for a negligible probability."""
    seconds = max(delay.median for delay in delays)
    while any(float(delay.cdf(np.array([seconds]))[0]) < 1 - negligible for delay in set(delays)):
        seconds *= 1.5
    return seconds


def _sum_over_values(delays: Sequence[Distribution], rank: int) -> Floats:
    values = np.unique([value for delay in set(delays) for value in beginnings_and_jumps(delay)])
    waiting = fewer_done(delays, rank, values[:-1])  # from each value to the next
    return np.asarray(values[0] + np.diff(values) @ waiting)


def _integral(delays: Sequence[Distribution], rank: int) -> tuple[Floats, float]:
    """Over the logarithm of time, in which every scale is alike, from when somebody may be done to a negligible rest."""
    kinds = set(delays)
    end, begin = latest(delays), min(delay.median for delay in kinds)
    while any(float(delay.cdf(np.array([begin]))[0]) > 1e-14 for delay in kinds) and begin > end * 1e-12:
        begin /= 1.5
    kinks = {each for delay in kinds for each in (delay.median, *beginnings_and_jumps(delay)) if begin < each < end}
    tails = _tails(delays, rank, end)
    finite = np.isfinite(tails)

    def waiting(logarithms: Floats) -> Floats:
        seconds = np.exp(logarithms)
        return np.asarray(fewer_done(delays, rank, seconds)[:, finite] * seconds[:, None])

    means = np.full(rank, math.inf)
    integrals, error = integrate(waiting, np.log([begin, *sorted(kinks), end]).tolist(), ACCURACY)
    means[finite] = begin + integrals + tails[finite]
    return means, error


def _tails(delays: Sequence[Distribution], rank: int, end: float) -> Floats:
    r"""What comes after the integral's end $T$: $T\,P(X_{(k)} > T) / (a - 1)$ for a tail $\propto t^{-a}$.

    $X_{(k)} > T$ needs $N - k + 1$ workers that are not done: the heaviest tails, whose exponents add up to $a$.
    """
    shapes = sorted(delay.shape if isinstance(delay, Pareto) else math.inf for delay in delays)
    exponents = np.array([sum(shapes[: len(shapes) - k]) for k in range(rank)])
    rest = fewer_done(delays, rank, np.array([end]))[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        tails = np.where(np.isfinite(exponents), end * rest / (exponents - 1), 0.0)
    return np.where(exponents > 1, tails, math.inf)


def _check_rank(rank: int, workers: int) -> None:
    if not 1 <= rank <= workers:
        raise ConfigError(f"there is no {rank}th of {workers} workers: choose 1 to {workers}")
