"""Intervals over seeds, in pairs: against values worked out by hand."""

import math

import pytest

from paceline.comparison.paired import difference, ratio


def test_ratios_are_geometric_means_with_students_interval() -> None:
    found = ratio([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert found is not None
    assert (found.mean, found.low, found.high, found.seeds) == pytest.approx((2.0, 2.0, 2.0, 3))
    found = ratio([1.0, 1.0, 1.0], [1.0, 2.0, 4.0])
    assert found is not None
    reach = 4.302653 * math.log(2) / math.sqrt(3)  # t of two degrees of freedom; the logarithms' deviation is log 2
    assert found.mean == pytest.approx(2.0)
    assert math.log(found.high) == pytest.approx(math.log(2) + reach, rel=1e-6)
    assert math.log(found.low) == pytest.approx(math.log(2) - reach, rel=1e-6)
    assert found.includes(1.0)


def test_what_all_seeds_share_does_not_widen_the_interval() -> None:
    slow_and_fast_seeds = [1.0, 10.0, 100.0, 1000.0]
    found = ratio(slow_and_fast_seeds, [1.21 * each for each in slow_and_fast_seeds])
    assert found is not None
    assert not found.includes(1.0)


def test_pairs_that_are_not_finite_do_not_count() -> None:
    assert ratio([1.0, 2.0, math.inf], [2.0, math.inf, 3.0]) is None
    found = difference([1.0, 2.0, 3.0, math.nan], [2.0, 4.0, math.inf, 1.0])
    assert found is not None
    assert (found.mean, found.seeds) == (1.5, 2)
    assert found.high - found.mean == pytest.approx(12.7062 * math.sqrt(0.5) / math.sqrt(2), rel=1e-5)


def test_one_pair_tells_nothing() -> None:
    assert ratio([1.0], [2.0]) is None
    assert difference([], []) is None
