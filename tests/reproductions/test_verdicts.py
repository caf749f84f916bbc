"""Whether an order holds: intervals against plain implementations, and what they decide."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from reproductions.pipeline.claims import NOTHING, OPEN, WAITING, Claim, NotRun, by_test, made
from reproductions.pipeline.samples import packed, unpacked
from reproductions.pipeline.verdicts import Difference, over_counts, over_samples, over_seeds, paired


def test_seeds_are_compared_by_students_interval() -> None:
    values = [2.09, -0.6, -0.22, 0.8]
    found = over_seeds(values)
    assert found is not None
    plain = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high))
    assert over_seeds([1.0]) is None
    assert over_seeds([1.0, math.inf]) is None


def test_samples_are_compared_by_those_that_only_one_gets_right() -> None:
    """The variance is that of the differences 1, 0, -1 of single samples."""
    generator = np.random.default_rng(0)
    ones, others = generator.random(4_000) < 0.6, generator.random(4_000) < 0.55
    found = over_samples(ones, others)
    each = ones.astype(float) - others.astype(float)
    reach = 1.959964 * each.std() / math.sqrt(4_000) + 1 / 4_000
    assert found.mean == pytest.approx(100 * each.mean())
    assert found.high - found.mean == pytest.approx(100 * reach, rel=1e-6)
    same = over_samples(ones, ones)
    assert (same.mean, same.above()) == (0.0, None)
    with pytest.raises(ValueError, match="cannot be paired"):
        over_samples(ones, others[1:])


def test_the_interval_of_samples_has_its_confidence() -> None:
    """400 pairs of models of one true accuracy, with samples in common: at most about one in twenty is told apart."""
    generator = np.random.default_rng(1)
    told = 0
    for _ in range(400):
        easy = generator.random(500) < 0.7
        told += over_samples(*(easy & (generator.random(500) < 0.9) for _ in range(2))).above() is not None
    assert told <= 32  # 20 are expected; 3 deviations are 13


def test_counts_alone_are_wider_than_pairs() -> None:
    generator = np.random.default_rng(2)
    easy = generator.random(2_000) < 0.7
    ones, others = (easy & (generator.random(2_000) < 0.9) for _ in range(2))
    by_pairs, by_counts = over_samples(ones, others), over_counts(100 * ones.mean(), 100 * others.mean(), 2_000)
    assert by_counts.mean == pytest.approx(by_pairs.mean)
    assert by_counts.low < by_pairs.low < by_pairs.high < by_counts.high


def test_three_seeds_are_the_test_and_fewer_are_counted_by_samples() -> None:
    assert paired([50, 51, 52], [49, 50.5, 50], 1_000).how == "paired over 3 seeds"
    assert "2,000 test samples" in paired([50, 51], [49, 50.5], 1_000).how
    assert "1,000 test samples" in paired([50], [49], 1_000).how


@pytest.mark.parametrize(
    ("low", "high", "above", "within"),
    [
        (0.1, 0.5, True, True),
        (-0.1, 0.5, None, True),
        (-0.5, -0.1, False, True),
        (-2, 2, None, None),
        (3, 4, True, False),
    ],
)
def test_an_interval_decides_only_if_all_of_it_is_on_one_side(
    low: float, high: float, above: bool | None, within: bool | None
) -> None:
    found = Difference((low + high) / 2, low, high, "so")
    assert (found.above(), found.within(1.0)) == (above, within)
    assert found.at_most(0.0) is (None if above is None else not above)


def test_a_difference_of_differences_has_the_spread_of_both() -> None:
    found = Difference(5, 2, 8, "a").less(Difference(1, -3, 5, "b"))
    assert (found.mean, found.low, found.high) == (4, -1, 9)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1_000])
def test_what_samples_are_right_is_kept_as_text(count: int) -> None:
    values = np.random.default_rng(count).random(count) < 0.5
    assert (unpacked(packed(values), count) == values).all()


def test_a_claim_says_yes_no_or_that_it_cannot_be_told() -> None:
    for holds, paper in product((True, False, None), (None, "lower")):
        verdict = Claim("a", paper, 1.0, 0.0, holds).verdict
        assert verdict == {True: "yes", False: "no", None: NOTHING if paper is None else OPEN}[holds]
    claim = by_test("a", "lower", Difference(1, -1, 3, "paired over 3 seeds"), 0.0, None)
    assert claim.table()["test"] == "paired over 3 seeds: 1, 95 % interval -1 to 3"
    assert claim.table()["verdict"] == OPEN


def test_a_claim_whose_runs_are_missing_is_open_and_names_them() -> None:
    def make(name: str) -> Claim:
        raise NotRun("lenet-lgc-c3")

    claim = made("a", "above 0", 0.0, make)
    assert (claim.verdict, claim.note) == (WAITING, "not run yet: lenet-lgc-c3")
