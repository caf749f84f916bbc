"""Mini-batches of unequal sizes: shards in proportion, and one pass over all samples when sizes change on the way."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.core.errors import ConfigError
from paceline.data.batches import Batches, OfUnequalSizes, Resizable
from paceline.data.partition import Indices, deal, proportional
from paceline.randomness import stream


class Samples:
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def targets(self) -> Indices:
        return np.zeros(self._count, dtype=np.int64)


def dealt(count: int, sizes: list[int], seed: int = 0) -> list[Indices]:
    return list(deal(pl.Equal(), Samples(count), len(sizes), sizes, stream(seed, "partition")))


def opened(count: int, sizes: list[int], sampling: pl.Shuffled | pl.Resampled = pl.Shuffled()) -> Batches:
    batches = sampling.open(dealt(count, sizes), sizes[0], 0)
    assert isinstance(batches, OfUnequalSizes)
    batches.begin_with(sizes)
    return batches


def resize(batches: Batches, sizes: list[int]) -> None:
    assert isinstance(batches, Resizable)
    batches.resize(dict(enumerate(sizes)))


def one_round(batches: Batches, workers: int) -> list[int]:
    return [sample for worker in range(workers) for sample in batches.draw(worker).tolist()]


@given(st.integers(0, 10**6), st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(any))
def test_counts_are_in_proportion_and_none_is_lost(count: int, sizes: list[int]) -> None:
    found = proportional(count, sizes)
    assert sum(found) == count
    for own, size in zip(found, sizes, strict=True):
        assert abs(own - count * size / sum(sizes)) < 1
        assert own >= size or count < sum(sizes)


def test_shards_are_in_proportion_to_sizes_and_a_pass_is_one_over_all() -> None:
    sizes = [48, 48, 16]
    assert [len(shard) for shard in dealt(1120, sizes)] == [480, 480, 160]
    batches = opened(1120, sizes)
    for _ in range(3):
        epoch = [sample for _ in range(10) for sample in one_round(batches, 3)]
        assert sorted(epoch) == [*range(1120)]


@given(st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(0, 12), st.integers(0, 3))
def test_a_pass_in_which_sizes_change_is_still_one_over_all(sizes: list[int], after: int, twice: int) -> None:
    """Of the samples of a pass each is drawn once, but for those that do not fill a last mini-batch."""
    batches = opened(360, [10, 10, 10])
    drawn: list[int] = []
    for _ in range(after):
        drawn += one_round(batches, 3)
    resize(batches, sizes)
    left = 360 - len(drawn) if after < 12 else 360
    rounds = left // sum(sizes)
    if twice and rounds > twice:
        for _ in range(twice):
            drawn += one_round(batches, 3)
        left -= twice * sum(sizes)
        sizes = sizes[::-1]
        resize(batches, sizes)
        rounds = left // sum(sizes)
    for _ in range(max(0, rounds - 1)):  # by rounding a worker may have one mini-batch less than its share
        drawn += one_round(batches, 3)
    assert max(Counter(drawn[360:] if after == 12 else drawn).values(), default=1) == 1


def test_shards_are_in_proportion_after_sizes_changed() -> None:
    batches = opened(1200, [20, 20, 20])
    one_round(batches, 3)
    resize(batches, [30, 20, 10])
    counts: Counter[int] = Counter()
    for _ in range(19 + 10 * 20):  # what is left of the pass, and ten more
        counts.update(one_round(batches, 3))
    assert {*counts} == {*range(1200)}
    assert max(counts.values()) - min(counts.values()) <= 2


def test_what_was_put_back_is_dealt_too() -> None:
    batches = opened(40, [10, 10])
    batches.put_back(0, batches.draw(0))
    one_round(batches, 2)
    batches.put_back(1, returned := batches.draw(1))
    resize(batches, [5, 5])
    rest = [sample for _ in range(2) for sample in one_round(batches, 2)]
    assert {*returned.tolist()} <= {*rest}


def test_a_worker_that_is_gone_has_nothing_and_the_others_all() -> None:
    batches = opened(60, [10, 10, 10])
    assert isinstance(batches, Resizable)
    batches.resize({0: 15, 2: 15})
    assert sorted(sample for _ in range(2) for worker in (0, 2) for sample in batches.draw(worker)) == [*range(60)]


def test_the_same_sizes_deal_nothing_anew() -> None:
    one, two = opened(400, [20, 20]), opened(400, [20, 20])
    resize(two, [20, 20])
    assert [one_round(one, 2) for _ in range(25)] == [one_round(two, 2) for _ in range(25)]


@pytest.mark.parametrize("sampling", [pl.Shuffled(), pl.Resampled()])
@pytest.mark.parametrize("drawn", [0, 3, 14])
def test_sizes_that_changed_are_restored(sampling: pl.Shuffled | pl.Resampled, drawn: int) -> None:
    batches = opened(300, [10, 10, 10], sampling)
    one_round(batches, 3)
    resize(batches, [17, 8, 5])
    for _ in range(drawn):
        one_round(batches, 3)
    again = sampling.open(dealt(300, [10, 10, 10]), 10, 0)
    again.restore(batches.state())  # type: ignore[attr-defined]
    assert [one_round(batches, 3) for _ in range(30)] == [one_round(again, 3) for _ in range(30)]
    resize(batches, [10, 10, 10])
    resize(again, [10, 10, 10])
    assert [one_round(batches, 3) for _ in range(30)] == [one_round(again, 3) for _ in range(30)]


def test_shards_that_cannot_fill_a_mini_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than one batch of 90"):
        dealt(80, [90, 5])
    with pytest.raises(ConfigError, match=r"leaves worker . with .* samples, fewer than one batch"):
        dealt(80, [60, 30])
