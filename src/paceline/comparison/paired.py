"""Two strategies compared seed by seed: with the same seed they have the same mini-batches and the same delays.

What differs between two seeds (how lucky the delays and the first weights are) is the same for both strategies of a
pair, and does not count.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean over the seeds, and where it lies with a confidence of 95 % (Student's t)."""

    mean: float
    low: float
    high: float
    seeds: int

    def includes(self, value: float) -> bool:
        return self.low <= value <= self.high

    def table(self) -> dict[str, Any]:
        return {"mean": self.mean, "low": self.low, "high": self.high, "seeds": self.seeds}


def ratio(ones: Sequence[float], others: Sequence[float]) -> Interval | None:
    """How many times the ones the others are: the geometric mean of their ratios. None for fewer than two pairs.

    A pair in which one is not finite, or not positive, does not count.
    """
    logs = [math.log(other / one) for one, other in _pairs(ones, others) if one > 0 and other > 0]
    found = _interval(logs)
    if found is None:
        return None
    low, high = (_exponential(each) for each in (found.low, found.high))
    return Interval(_exponential(found.mean), low, high, found.seeds)


def difference(ones: Sequence[float], others: Sequence[float]) -> Interval | None:
    """By how much the others are larger than the ones, in the mean. None for fewer than two pairs."""
    return _interval([other - one for one, other in _pairs(ones, others)])


def _pairs(ones: Sequence[float], others: Sequence[float]) -> list[tuple[float, float]]:
    both = zip(ones, others, strict=True)
    return [(one, other) for one, other in both if math.isfinite(one) and math.isfinite(other)]


def _interval(values: Sequence[float]) -> Interval | None:
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean, count = fmean(values), len(values)
    reach = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / math.sqrt(count)
    return Interval(mean, mean - reach, mean + reach, count)


def _exponential(value: float) -> float:
    return math.exp(min(value, 700.0))
