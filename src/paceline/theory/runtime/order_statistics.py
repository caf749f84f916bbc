"""Expected time of the ``rank``-th fastest of several workers: means of order statistics, for different workers too.

A round of workers that start together ends when the $K$-th of them is done, at the order statistic $X_{(K)}$ of their
durations. If it waits for all, that is the slowest, $X_{(N)}$.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlog1py, xlogy

from paceline.core.errors import ConfigError
from paceline.delays import Constant, Distribution, Empirical, Pareto, ShiftedExponential
from paceline.theory.estimate import Estimate, Source

Floats = NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
AT_ONCE = 1 << 16  # values of the function in memory at a time, about
MOST_PIECES = 4096  # refinement ends there, in case rounding errors prevent agreement


def integrate(function: Callable[[Floats], Floats], edges: Sequence[float], relative: float) -> tuple[Floats, float]:
    """The integral from the first edge to the last, and an estimate of its error; ``relative``: to the largest value.

    function  from points to an array (points, values); smooth between the edges
    edges     in increasing order. Pieces between them are halved until the halves agree with the whole.
    """
    lows, highs = np.asarray(edges[:-1], dtype=np.float64), np.asarray(edges[1:], dtype=np.float64)
    wholes = _gauss(function, lows, highs)
    total, error = np.zeros(wholes.shape[1]), 0.0
    while True:
        middles = (lows + highs) / 2
        halves = _gauss(function, np.concatenate([lows, middles]), np.concatenate([middles, highs]))
        left, right = halves[: len(lows)], halves[len(lows) :]
        better = left + right
        errors = np.abs(better - wholes).max(axis=1)
        scale = np.abs(total + better.sum(axis=0)).max()
        agreed = (errors <= relative * scale / max(16, len(lows))) | (len(lows) > MOST_PIECES + len(edges))
        total += better[agreed].sum(axis=0)
        error += float(errors[agreed].sum())
        rest = ~agreed
        if not rest.any():
            return total, error
        lows, highs = np.concatenate([lows[rest], middles[rest]]), np.concatenate([middles[rest], highs[rest]])
        wholes = np.concatenate([left[rest], right[rest]])


def _gauss(function: Callable[[Floats], Floats], lows: Floats, highs: Floats) -> Floats:
    """Gauss-Legendre quadrature on each piece."""
    found = []
    values_of_a_point = 1
    begin = 0
    while begin < len(lows):
        pieces = slice(begin, begin + max(1, AT_ONCE // (len(NODES) * values_of_a_point)))
        half = (highs[pieces] - lows[pieces]) / 2
        points = (lows[pieces] + half)[:, None] + half[:, None] * NODES
        values = function(points.ravel()).reshape(*points.shape, -1)
        found.append(half[:, None] * np.einsum("n,pnv->pv", WEIGHTS, values))
        values_of_a_point = values.shape[2]
        begin = pieces.stop
    return np.concatenate(found)


NEGLIGIBLE = 1e-10  # probability at which the integral is cut off
ACCURACY = 1e-9  # of an integral, relative


@dataclass(frozen=True)
class OrderMeans:
    """The means of order statistics, with their source."""

    means: Floats
    source: Source
    error: float | None = None


def exponential_order_statistic(shift: float, mean: float, workers: int, rank: int) -> tuple[float, float]:
    r"""Mean and variance of the time of the ``rank``-th ($K$) of $N$ equal workers, $X = a + \mathrm{Exp}(b)$. Exact.

    $$E X_{(K)} = a + b\,(H_N - H_{N-K}), \qquad \mathrm{Var}\,X_{(K)} = b^2\,(H^{(2)}_N - H^{(2)}_{N-K})$$

    since the gaps between successive order statistics of exponentials are independent exponentials (Rényi, 1953).

    shift, mean  $a$ and $b$;  workers, rank  $N$ and $K$
    """
    _check_rank(rank, workers)
    left = range(workers - rank + 1, workers + 1)
    return shift + mean * sum(1 / n for n in left), mean**2 * sum(1 / n**2 for n in left)


def pareto_order_statistic(minimum: float, shape: float, workers: int, rank: int) -> float:
    r"""The mean time of the ``rank``-th ($K$) of $N$ equal workers with $P(X > x) = (m/x)^a$. Exact.

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

    where the number of workers that are done is a sum of independent Bernoulli variables of probabilities $F_i(t)$. It
    is ``exact`` for equal workers with exponential or Pareto delays (closed forms) and for constant or measured
    durations (finite sums).
    """
    _check_rank(rank, len(delays))
    return _means(delays, range(1, rank + 1), lambda seconds: fewer_done(delays, rank, seconds))


def order_statistic_mean(delays: Sequence[Distribution], rank: int) -> Estimate:
    r"""$E X_{(K)}$ only; for the slowest ($K = N$) of a large fleet much cheaper than ``order_statistic_means``."""
    _check_rank(rank, len(delays))
    found = _means(delays, range(rank, rank + 1), lambda seconds: 1 - round_cdf(delays, rank, seconds)[:, None])
    return Estimate(float(found.means[0]), found.source, found.error)


def fewer_done(delays: Sequence[Distribution], rank: int, seconds: Floats) -> Floats:
    r"""$P(\text{fewer than } k \text{ are done by } t)$ for $k = 1, \dots,$ ``rank``: an array (times, rank)."""
    exactly = np.zeros((len(seconds), rank))  # probability that this many are done, of the workers so far
    exactly[:, 0] = 1.0
    for delay, count in Counter(delays).items():
        alike = _binomial(delay.cdf(seconds), count, rank)
        before, exactly = exactly, exactly * alike[:, :1]
        for more in range(1, alike.shape[1]):
            exactly[:, more:] += before[:, : rank - more] * alike[:, more, None]
    return np.cumsum(exactly, axis=1)


def round_cdf(delays: Sequence[Distribution], rank: int, seconds: Floats) -> Floats:
    r"""$P(X_{(K)} \le t)$, the probability that a round with this ``rank`` ($K$) is over."""
    if rank < len(delays):
        return np.asarray(1 - fewer_done(delays, rank, seconds)[:, -1])
    product = np.ones(len(seconds))
    for delay, count in Counter(delays).items():
        product *= delay.cdf(seconds) ** count
    return product


def _binomial(share: Floats, count: int, most: int) -> Floats:
    """Binomial probabilities of 0, 1, ... (fewer than ``most``) of ``count`` workers, precise for small ones too."""
    done = np.arange(min(count + 1, most))
    ways = gammaln(count + 1) - gammaln(done + 1) - gammaln(count - done + 1)
    share = share[:, None]
    return np.asarray(np.exp(ways + xlogy(done, share) + xlog1py(count - done, -share)))


def beginnings_and_jumps(delay: Distribution) -> tuple[float, ...]:
    """The points at which a distribution function is not smooth."""
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


def _means(delays: Sequence[Distribution], ranks: range, waiting: Callable[[Floats], Floats]) -> OrderMeans:
    """In closed form if there is one. ``waiting``: the probability that a rank is not done yet, (times, ranks)."""
    first, workers = delays[0], len(delays)
    if len(set(delays)) == 1:
        if isinstance(first, ShiftedExponential):
            shift, mean = first.shift, first.mean
            return _exact([exponential_order_statistic(shift, mean, workers, rank)[0] for rank in ranks])
        if isinstance(first, Pareto):
            return _exact([pareto_order_statistic(first.minimum, first.shape, workers, rank) for rank in ranks])
        if workers == 1:
            return _exact([first.mean_seconds])
    if all(isinstance(delay, Constant | Empirical) for delay in delays):
        values = np.unique([value for delay in set(delays) for value in beginnings_and_jumps(delay)])
        return _exact(values[0] + np.diff(values) @ waiting(values[:-1]))  # from each value to the next
    return OrderMeans(*_integral(delays, ranks, waiting))


def _exact(means: Sequence[float] | Floats) -> OrderMeans:
    return OrderMeans(np.asarray(means), "exact")


def _integral(
    delays: Sequence[Distribution], ranks: range, waiting: Callable[[Floats], Floats]
) -> tuple[Floats, Source, float]:
    """Integrate over the logarithm of time, up to a negligible rest."""
    kinds = set(delays)
    medians = np.sort([delay.median for delay in kinds])
    begin, end = medians[0] * ACCURACY, medians[-1]
    while any(float(delay.cdf(np.array([end]))[0]) < 1 - NEGLIGIBLE for delay in kinds):
        end *= 1.5
    kinks = {each for delay in kinds for each in beginnings_and_jumps(delay)}
    kinks |= {*medians[:: 1 + len(medians) // 50].tolist()}
    tails = _tails(delays, ranks, end, waiting(np.array([end]))[0])
    finite = np.isfinite(tails)
    if not finite.any():
        return tails, "exact", 0.0

    def weighted(logarithms: Floats) -> Floats:
        seconds = np.exp(logarithms)
        return np.asarray(waiting(seconds)[:, finite] * seconds[:, None])

    integrals, error = integrate(
        weighted, np.log([begin, *sorted(each for each in kinks if begin < each < end), end]).tolist(), ACCURACY
    )
    tails[finite] += begin + integrals
    return tails, "quadrature", error


def _tails(delays: Sequence[Distribution], ranks: range, end: float, waiting: Floats) -> Floats:
    r"""The rest of the integral after $T$: $T\,P(X_{(k)} > T) / (a - 1)$ for a tail $\propto t^{-a}$.

    $X_{(k)} > T$ needs $N - k + 1$ workers that are not done. The heaviest tails dominate, and their
    exponents add up to $a$.
    """
    shapes = np.sort([delay.shape if isinstance(delay, Pareto) else math.inf for delay in delays])
    exponents = np.cumsum(shapes)[len(delays) - np.array(ranks)]
    with np.errstate(divide="ignore"):
        return np.where(exponents > 1, end * waiting / np.abs(exponents - 1), math.inf)


def _check_rank(rank: int, workers: int) -> None:
    if not 1 <= rank <= workers:
        raise ConfigError(f"there is no {rank}th of {workers} workers: choose 1 to {workers}")
