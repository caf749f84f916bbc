"""Mini-batches: one stream a worker, what was put back comes first, and nothing is lost."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline as pl
from paceline.data.batches import Batches, Sampling
from paceline.data.partition import Indices

seeds = st.integers(0, 2**32)


def shards_of(*sizes: int) -> list[Indices]:
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end, dtype=np.int64) for end, size in zip(ends, sizes, strict=True)]


def opened(sampling: Sampling, sizes: Sequence[int], batch: int, seed: int = 0) -> Batches:
    return sampling.open(shards_of(*sizes), batch, seed)


@given(size=st.integers(4, 40), batch=st.integers(1, 4), seed=seeds)
def test_shuffled_goes_through_the_shard_once_an_epoch_in_a_new_order(size: int, batch: int, seed: int) -> None:
    """An incomplete last batch is left out: an epoch has floor(size / batch) batches without repetition."""
    batches = opened(pl.Shuffled(), [size], batch, seed)
    for _ in range(3):
        epoch = np.concatenate([batches.draw(0) for _ in range(size // batch)])
        assert len(np.unique(epoch)) == len(epoch) == size // batch * batch
        assert set(epoch.tolist()) <= set(range(size))


def test_shuffled_has_another_order_each_epoch() -> None:
    batches = opened(pl.Shuffled(), [100], 100)
    first, second = batches.draw(0).tolist(), batches.draw(0).tolist()
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))


@given(size=st.integers(4, 40), batch=st.integers(1, 4), seed=seeds)
def test_resampled_draws_distinct_samples_of_the_shard(size: int, batch: int, seed: int) -> None:
    batches = opened(pl.Resampled(), [3, size], batch=min(batch, 3), seed=seed)
    for _ in range(20):
        drawn = batches.draw(1)
        assert len(set(drawn.tolist())) == len(drawn) == min(batch, 3)
        assert drawn.min() >= 3
        assert drawn.max() < 3 + size


def test_resampled_draws_every_sample_equally_often() -> None:
    """4000 batches of 5 out of 20 (seed 0): each sample 1000 times, to 10 %; and afresh, so batches overlap."""
    batches = opened(pl.Resampled(), [20], 5)
    drawn = [batches.draw(0).tolist() for _ in range(4000)]
    counts = Counter(sample for batch in drawn for sample in batch)
    assert [counts[sample] for sample in range(20)] == pytest.approx([1000] * 20, rel=0.1)
    assert set(drawn[0]) | set(drawn[1]) | set(drawn[2]) | set(drawn[3]) != set(range(20))


@pytest.mark.parametrize("sampling", [pl.Shuffled(), pl.Resampled()], ids=repr)
def test_every_worker_has_a_stream_of_its_own(sampling: Sampling) -> None:
    """What worker 1 draws does not depend on how often the others drew before it."""
    one, two, other = (
        opened(sampling, [50] * 3, 8, 1),
        opened(sampling, [50] * 3, 8, 1),
        opened(sampling, [50] * 3, 8, 2),
    )
    for _ in range(7):
        one.draw(0)
    drawn = [batches.draw(1).tolist() for batches in (one, two, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [sample - 50 for sample in drawn[0]] != two.draw(0).tolist()


def test_a_batch_that_was_put_back_is_drawn_again() -> None:
    batches = opened(pl.Shuffled(), [40], 8)
    first = batches.draw(0)
    batches.put_back(0, first)
    assert batches.draw(0).tolist() == first.tolist()
    assert not set(batches.draw(0).tolist()) & set(first.tolist())


def test_what_was_put_back_in_part_is_drawn_first_and_the_rest_stays_in_order() -> None:
    """The sequence that a worker goes through is the same as without putting back, only cut differently."""
    plain, cut = opened(pl.Shuffled(), [400], 8), opened(pl.Shuffled(), [400], 8)
    sequence = np.concatenate([plain.draw(0) for _ in range(10)]).tolist()
    used: list[int] = []
    for done in (8, 2, 0, 6, 4, 8, 8, 0, 2):
        batch = cut.draw(0)
        assert len(batch) == 8
        used += batch[:done].tolist()
        cut.put_back(0, batch[done:])
    assert used == sequence[: len(used)]


@given(seed=seeds, done=st.lists(st.integers(0, 4), min_size=5, max_size=40))
def test_nothing_is_lost_or_used_twice_within_an_epoch(seed: int, done: list[int]) -> None:
    batches = opened(pl.Shuffled(), [400], 4, seed)
    used = Counter[int]()
    for units in done:
        batch = batches.draw(0)
        assert len(batch) == 4
        used.update(batch[:units].tolist())
        batches.put_back(0, batch[units:])
    assert sum(used.values()) == sum(done)
    assert max(used.values(), default=0) <= 1


def test_two_batches_that_were_put_back_are_both_drawn_before_anything_new() -> None:
    batches = opened(pl.Shuffled(), [40], 8)
    first, second = batches.draw(0), batches.draw(0)
    batches.put_back(0, first)
    batches.put_back(0, second)
    again = {frozenset(batches.draw(0).tolist()) for _ in range(2)}
    assert again == {frozenset(first.tolist()), frozenset(second.tolist())}


def test_what_one_worker_puts_back_only_that_worker_draws() -> None:
    batches, plain = opened(pl.Shuffled(), [40, 40], 8), opened(pl.Shuffled(), [40, 40], 8)
    batches.put_back(0, batches.draw(0))
    assert batches.draw(1).tolist() == plain.draw(1).tolist()
