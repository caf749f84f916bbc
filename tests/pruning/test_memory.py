"""Counts, scores, and who is kept by them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline as pl
from paceline.pruning.memory import CHUNK, Counting, Scores, keep_any, keep_highest, keep_lowest, only_kept
from paceline.pruning.schedule import Schedule

ALWAYS = Schedule(1, 1, 1, window=1000)
losses_of_a_batch = st.lists(st.floats(0, 100, width=32), min_size=1, max_size=40)
counts_of_samples = st.lists(st.integers(0, 6), min_size=1, max_size=60)


def counting(samples: int, tolerance: float = 0.0) -> Counting:
    return Counting(ALWAYS, samples, samples, tolerance, "random", highest=False)


def stand_out(losses: list[float], tolerance: float = 0.0) -> list[bool]:
    values = np.array(losses, dtype=np.float32)
    mean = float(np.mean(values, dtype=np.float64))
    above: list[bool] = counting(len(losses), tolerance).observe(np.arange(len(losses)), values, mean).tolist()
    return above


@given(losses_of_a_batch)
def test_of_a_batch_at_least_one_and_not_all_stand_out_unless_all_are_equal(losses: list[float]) -> None:
    """I3, at tolerance 0."""
    total = sum(stand_out(losses))
    if len(set(losses)) == 1:
        assert total == len(losses)
    elif max(losses) - min(losses) > 1e-4 * max(losses):  # not only by what rounding hides
        assert 1 <= total <= len(losses) - 1
    assert 0 <= sum(stand_out(losses, tolerance=0.5)) <= len(losses)


@given(losses_of_a_batch, st.integers(-6, 6))
def test_the_scale_of_the_losses_does_not_matter(losses: list[float], power: int) -> None:
    """I9, for factors that leave the digits alone."""
    losses = [float(np.float32(round(loss, 2))) for loss in losses]
    assert stand_out([loss * 2.0**power for loss in losses]) == stand_out(losses)


def test_a_tolerance_moves_the_threshold() -> None:
    assert stand_out([1.0, 2.0, 3.0]) == [False, True, True]
    assert stand_out([1.0, 2.0, 3.0], tolerance=0.5) == [False, False, True]
    assert stand_out([1.0, 2.0, 3.0], tolerance=0.6) == [False, False, False]
    assert stand_out([1.0, 2.0, 3.0], tolerance=-0.5) == [True, True, True]


@given(counts_of_samples, st.data())
def test_those_kept_have_no_higher_counts_than_those_pruned(listed: list[int], data: st.DataObject) -> None:
    """I2 and I4; ties by index are a stable sort."""
    counts = np.array(listed, dtype=np.uint16)
    keep = data.draw(st.integers(1, len(listed)))
    kept = keep_lowest(counts, keep, np.random.default_rng(0))
    assert kept.sum() == keep
    if keep < len(listed):
        assert counts[kept].max() <= counts[~kept].min()
    by_index = keep_lowest(counts, keep, None)
    assert np.flatnonzero(by_index).tolist() == sorted(np.argsort(counts, kind="stable")[:keep].tolist())
    highest = keep_highest(counts, keep, None)
    assert highest.sum() == keep
    assert counts[highest].sum() == np.sort(counts)[::-1][:keep].sum()


def test_the_last_places_are_drawn_evenly_among_equals() -> None:
    """2000 draws of 10 out of 40 equals (seed 0): each about 500 times, to 15 %."""
    counts = np.array([0] * 5 + [1] * 40 + [2] * 5, dtype=np.uint16)
    generator = np.random.default_rng(0)
    times = np.sum([keep_lowest(counts, 15, generator) for _ in range(2000)], axis=0)
    assert times[:5].tolist() == [2000] * 5
    assert times[45:].tolist() == [0] * 5
    assert times[5:45].tolist() == pytest.approx([500] * 40, rel=0.15)


def test_many_samples_are_handled_by_pieces() -> None:
    samples = 2 * CHUNK + 77
    counts = np.random.default_rng(1).integers(0, 5, samples).astype(np.uint16)
    kept = keep_lowest(counts, samples * 7 // 10, np.random.default_rng(2))
    assert kept.sum() == samples * 7 // 10
    assert counts[kept].max() <= counts[~kept].min()
    order = np.random.default_rng(3).permutation(samples).astype(np.int32)
    assert only_kept(order.copy(), kept).tolist() == order[kept[order]].tolist()
    assert keep_any(samples, 100, np.random.default_rng(4)).sum() == 100


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_counts_never_exceed_the_epochs_since_the_reset(seed: int) -> None:
    """I5."""
    generator = np.random.default_rng(seed)
    memory = Counting(Schedule(2, 2, 1, window=4), 12, 8, 0.0, "random", highest=False)
    since = 0
    for epoch in range(1, 15):
        kept = memory.enter(epoch, generator)
        since = 0 if epoch % 4 == 0 else since
        assert memory.counts.max() <= since
        assert (kept is not None) == (epoch % 4 >= 2 and epoch % 2 == 0)
        seen = np.arange(12) if kept is None else np.flatnonzero(kept)
        losses = generator.random(len(seen)).astype(np.float32)
        before = memory.counts.copy()
        memory.count(seen, memory.observe(seen, losses, float(losses.mean())))
        assert set(np.flatnonzero(memory.counts - before)) <= set(seen)
        if kept is not None:
            assert (memory.counts[~kept] == before[~kept]).all()  # no loss, no count
        since += 1


def test_soft_pruning_skips_well_learnt_samples_alone_and_only_when_they_were_seen() -> None:
    memory = Scores(2000, fraction=0.5, until=9)
    generator = np.random.default_rng(0)
    assert memory.enter(1, generator) is None
    memory.observe(np.arange(1500), np.linspace(0, 2, 1500, dtype=np.float32), 1.0)
    kept = memory.enter(2, generator)
    assert kept is not None
    assert kept[750:].all()  # of a high loss, or never seen
    assert 325 <= kept[:750].sum() <= 425  # about half: binomial, 3.6 standard deviations
    weights = memory.weights(np.arange(2000))
    assert set(weights[:750].tolist()) == {2.0}
    assert set(weights[750:].tolist()) == {1.0}
    assert memory.enter(10, generator) is None
    assert set(memory.weights(np.arange(2000)).tolist()) == {1.0}


def test_soft_pruning_is_unbiased() -> None:
    """The weighted sum over the kept samples, averaged over 3000 epochs (seed 1), is the sum over all, to 1 %."""
    values = np.random.default_rng(0).random(60).astype(np.float32)
    memory, generator = Scores(60, fraction=0.7, until=None), np.random.default_rng(1)
    memory.observe(np.arange(60), values, 0.5)
    sums = []
    for epoch in range(2, 3002):
        kept = memory.enter(epoch, generator)
        assert kept is not None
        sums.append(float((values * memory.weights(np.arange(60)))[kept].sum()))
    assert np.mean(sums) == pytest.approx(values.sum(), rel=0.01)


def test_soft_pruning_does_not_weigh_batches_of_train() -> None:
    with pytest.raises(pl.ConfigError, match=r"train\(\) cannot use SoftPruning"):
        pl.SoftPruning(samples=8, fraction=0.5).open([np.arange(8)], 2, 0)
