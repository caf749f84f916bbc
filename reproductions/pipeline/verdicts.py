r"""Whether an order holds, does not, or cannot be told: by a 95 % interval of a paired difference.

Two methods share their seed (first weights, mini-batches, delays) or their test samples, so what is lucky for one is
lucky for the other; only the difference counts. Three ways to an interval, by what there is:

    over_seeds    differences of three seeds or more: Student's t. It speaks of the method
    over_samples  which test samples two models get right, for fewer seeds: McNemar's. It speaks of these trained
                  models, and not of what another seed would give
    over_counts   only how many each gets right: two proportions as if they had no samples in common, which is wider

A claim "above a bound" holds if the whole interval is above it, does not if the whole interval is below it, and else
cannot be told.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from paceline.comparison.paired import CONFIDENCE, difference

FEW = 3  # seeds from which on they are the test: of two, Student's interval is 13 times their spread
NORMAL = float(ndtri((1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class Difference:
    """A mean difference, where it lies with a confidence of 95 %, and how that was found."""

    mean: float
    low: float
    high: float
    how: str

    def above(self, bound: float = 0.0) -> bool | None:
        return True if self.low > bound else False if self.high <= bound else None

    def at_most(self, bound: float) -> bool | None:
        above = self.above(bound)
        return None if above is None else not above

    def within(self, reach: float) -> bool | None:
        """Are both equal, but for so much?"""
        inside, outside = -reach <= self.low and self.high <= reach, self.low > reach or self.high < -reach
        return True if inside else False if outside else None

    @property
    def words(self) -> str:
        return f"{self.how}: {self.mean:.3g}, 95 % interval {self.low:.3g} to {self.high:.3g}"

    def less(self, other: "Difference") -> "Difference":
        """How much larger this difference is than another, if both have nothing in common."""
        reach, mean = math.hypot(self.high - self.mean, other.high - other.mean), self.mean - other.mean
        return Difference(mean, mean - reach, mean + reach, f"{self.how}, less another")


def over_seeds(differences: Sequence[float]) -> Difference | None:
    """Of paired differences, one a seed. None for fewer than two, or if one is not finite."""
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return None
    found = difference([0.0] * len(differences), differences)
    assert found is not None
    return Difference(found.mean, found.low, found.high, f"paired over {len(differences)} seeds")


def over_samples(ones: NDArray[np.bool_], others: NDArray[np.bool_]) -> Difference:
    r"""By how many points the ones are more often right than the others, on the same samples.

    With $b$ samples that only the ones get right, $c$ that only the others do, and $n$ in all, the difference is
    $(b - c)/n$ with the variance $(b + c - (b - c)^2/n)/n^2$ (McNemar; Agresti, *Categorical Data Analysis*, 2013,
    Sec. 11.1).
    """
    if ones.shape != others.shape or ones.ndim != 1 or not len(ones):
        raise ValueError(f"samples of the shapes {ones.shape} and {others.shape} cannot be paired")
    only_ones, only_others = int((ones & ~others).sum()), int((others & ~ones).sum())
    count = len(ones)
    mean = (only_ones - only_others) / count
    deviation = math.sqrt(max(only_ones + only_others - count * mean**2, 0.0)) / count
    reach = NORMAL * deviation + 1 / count  # the last is for continuity
    how = f"McNemar over {count:,} test samples ({only_ones} against {only_others}), points"
    return Difference(100 * mean, 100 * (mean - reach), 100 * (mean + reach), how)


def over_counts(one: float, other: float, samples: int) -> Difference:
    """By how many points one accuracy in percent is above another, each on so many test samples."""
    mean = one - other
    variance = sum(share * (100 - share) for share in (one, other)) / samples
    reach = NORMAL * math.sqrt(variance) + 100 / samples
    how = f"one seed, two proportions of {samples:,} test samples, points"
    return Difference(mean, mean - reach, mean + reach, how)


def paired(ones: Sequence[float], others: Sequence[float], samples: int) -> Difference:
    """Accuracies in percent, one a seed, by how many points the ones are above the others: by seeds if they are enough.

    Else by counts; two seeds count as twice the samples.
    """
    differences = [one - other for one, other in zip(ones, others, strict=True)]
    if len(differences) >= FEW and (found := over_seeds(differences)) is not None:
        return found
    return over_counts(fmean(ones), fmean(others), samples * len(differences))
