"""How fast any rule can be on workers of fixed speeds: the lower bound of Tyurin & Richtárik, 2023."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.errors import ConfigError


@dataclass(frozen=True)
class TimeBound:
    """A lower bound on a time, up to a constant factor that is the same for all fleets.

    seconds  the bound, with 1 in place of the theorem's unknown constant: only ratios of two bounds mean anything
    workers  how many of the fastest workers attain it; all of them where data are unlike
    """

    seconds: float
    workers: int


def time_lower_bound(
    seconds: Sequence[float], *, smoothness: float, gap: float, noise: float, accuracy: float, unlike: bool = False
) -> TimeBound:
    r"""The least time in which any parallel method makes gradients small, on workers of fixed speeds.

    Workers that see the same distribution of data (``unlike=False``):

    $$T = \Omega\left(\min_{m \le n} \left(\frac1m \sum_{i=1}^{m} \frac{1}{\tau_i}\right)^{-1}
    \left(\frac{L\Delta}{\varepsilon} + \frac{\sigma^2 L\Delta}{m\,\varepsilon^2}\right)\right),$$

    and workers that each see their own (``unlike=True``):

    $$T = \Omega\left(\tau_n \frac{L\Delta}{\varepsilon}
    + \left(\frac1n \sum_{i=1}^{n} \tau_i\right) \frac{\sigma^2 L\Delta}{n\,\varepsilon^2}\right).$$

    ``seconds``     $\tau_1 \le \dots \le \tau_n$, what each worker takes for one stochastic gradient, always the same
    ``smoothness``  $L$, the Lipschitz constant of the gradient of the loss, which may be non-convex
    ``gap``         $\Delta$, the loss at the start less its infimum
    ``noise``       $\sigma^2$, a bound on the variance of a stochastic gradient
    ``accuracy``    $\varepsilon$: the expected square of the gradient's norm is to be at most this

    It holds for methods whose iterates stay where coordinates have been seen to be non-zero (all of this library's) on
    the worst loss with these constants. The theorem's constant factor is universal and not given: ``seconds`` of the
    result has 1 instead. So it tells how one fleet compares with another, or which of the fastest workers are worth
    waiting for, not how long a run takes. ``Rennala`` attains the first bound and ``Malenia`` the second, each with a
    ``batch`` of about $\sigma^2/\varepsilon$, up to a constant again; ``Ringmaster`` attains the first.

    Tyurin & Richtárik, *Optimal Time Complexities of Parallel Stochastic Optimization Methods Under a Fixed Computation
    Model*, NeurIPS 2023; both forms as Tyurin repeats them in *Bridging the Gap Between Homogeneous and Heterogeneous
    Asynchronous Optimization Is Surprisingly Difficult*, Eqs. 2 and 3.
    """
    times = sorted(float(each) for each in seconds)
    if not times or not all(0 < each < math.inf for each in times):
        raise ConfigError(f"seconds={list(seconds)[:8]} are not possible: give a positive, finite time for each worker")
    for name, value, least in (("smoothness", smoothness, 0.0), ("gap", gap, 0.0), ("accuracy", accuracy, 0.0)):
        if not least < value < math.inf:
            raise ConfigError(f"{name}={value} is not possible: a finite number above 0")
    if not 0 <= noise < math.inf:
        raise ConfigError(f"noise={noise} is not possible: a finite number of at least 0 (nearest 0)")
    steps, number = smoothness * gap / accuracy, len(times)
    if unlike:
        return TimeBound(times[-1] * steps + sum(times) / number * noise * steps / (number * accuracy), number)
    speed, best = 0.0, TimeBound(math.inf, 0)
    for fastest, each in enumerate(times, start=1):
        speed += 1 / each
        bound = fastest / speed * (steps + noise * steps / (fastest * accuracy))
        if bound < best.seconds:
            best = TimeBound(bound, fastest)
    return best


def yardstick(seconds: Sequence[float], *, updates: float, noise: float, unlike: bool = False) -> TimeBound:
    r"""The same bound in seconds, its unknown factor taken from what the synchronous rule needed on this task.

    In theory the synchronous rule on $n$ workers needs $U = c\,\frac{L\Delta}{\varepsilon} (1 + \frac{r}{n})$
    updates, where $r = \sigma^2/\varepsilon$ is how many gradients have to be averaged until their noise is as small as
    the gradient that is left. So of ``updates`` ($U$) that were counted and ``noise`` ($r$) that was measured,
    $c L\Delta/\varepsilon = U / (1 + r/n)$ follows, and with it ``time_lower_bound`` in seconds.

    It tells how far a rule is from the best that is possible **on workers of fixed speeds, if the task behaves like the
    worst one of its kind**. No task does exactly: a rule that makes more of a gradient than the synchronous one may be
    faster than this bound. Workers whose speeds change or that come and go are taken at their mean.
    """
    if not 0 < updates < math.inf:
        raise ConfigError(f"updates={updates} are not possible: a finite number above 0")
    if not 0 <= noise < math.inf:
        raise ConfigError(f"noise={noise} is not possible: a finite number of at least 0 (nearest 0)")
    rounds = updates / (1 + noise / max(1, len(seconds)))
    return time_lower_bound(seconds, smoothness=rounds, gap=1.0, noise=noise, accuracy=1.0, unlike=unlike)
