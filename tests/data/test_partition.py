"""How samples are dealt out: nothing twice, nothing left, and the stated classes to each."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

import paceline as pl
from paceline.data.partition import Indices, Partition, deal
from support.digits import Noted, digits, digits_task, train


class Labels:
    """Samples of which only the labels matter."""

    def __init__(self, labels: Sequence[int] | NDArray[Any]) -> None:
        self._labels = np.asarray(labels)

    def __len__(self) -> int:
        return len(self._labels)

    def targets(self) -> NDArray[Any]:
        return self._labels


def shards(partition: Partition, labels: Sequence[int] | NDArray[Any], workers: int, seed: int = 0) -> list[Indices]:
    return list(partition.shards(Labels(labels), workers, np.random.default_rng(seed)))


def assert_all_dealt_once(dealt: Sequence[Indices], samples: int) -> None:
    assert sorted(np.concatenate(dealt).tolist()) == list(range(samples))


labels_of = st.lists(st.integers(0, 6), min_size=30, max_size=120)
seeds = st.integers(0, 2**32)


@given(labels=labels_of, workers=st.integers(1, 12), seed=seeds)
def test_equal_deals_everything_once_in_even_shards(labels: list[int], workers: int, seed: int) -> None:
    dealt = shards(pl.Equal(), labels, workers, seed)
    assert len(dealt) == workers
    assert_all_dealt_once(dealt, len(labels))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_equal_is_iid() -> None:
    """Ten classes in order, 1000 samples each, 10 workers (seed 0): every worker has 70 to 130 of every class."""
    labels = np.repeat(np.arange(10), 1000)
    for shard in shards(pl.Equal(), labels, 10):
        counts = np.bincount(labels[shard], minlength=10)
        assert counts.min() > 70
        assert counts.max() < 130


@given(classes=st.integers(1, 8), each=st.integers(8, 24), data=st.data(), seed=seeds)
def test_pathological_with_as_many_workers_as_classes(classes: int, each: int, data: st.DataObject, seed: int) -> None:
    """Worker i has the classes i..i+c-1, each class is on exactly c workers, and evenly split between them."""
    c = data.draw(st.integers(1, classes))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))
    dealt = shards(pl.Pathological(c), labels, classes, seed)
    assert_all_dealt_once(dealt, len(labels))
    counts = np.array([np.bincount(labels[shard], minlength=classes) for shard in dealt])
    for worker in range(classes):
        assert set(np.flatnonzero(counts[worker])) == {(worker + k) % classes for k in range(c)}
    assert ((counts > 0).sum(axis=0) == c).all()
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1


@given(classes=st.integers(1, 7), workers=st.integers(1, 12), data=st.data(), seed=seeds)
def test_pathological_gives_every_worker_c_classes(classes: int, workers: int, data: st.DataObject, seed: int) -> None:
    c = data.draw(st.integers(math.ceil(classes / workers), classes))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), 40))
    dealt = shards(pl.Pathological(c), labels, workers, seed)
    assert_all_dealt_once(dealt, len(labels))
    assert [len(np.unique(labels[shard])) for shard in dealt] == [c] * workers


def test_pathological_on_a_balanced_set_gives_equal_shards() -> None:
    labels = np.repeat(np.arange(10), 500)
    for c in (1, 2, 3, 10):
        sizes = [len(shard) for shard in shards(pl.Pathological(c), labels, 10)]
        assert max(sizes) - min(sizes) <= c
        assert sum(sizes) == 5000


def test_pathological_labels_need_not_be_consecutive() -> None:
    dealt = shards(pl.Pathological(1), [7, 7, -1, -1, 100, 100], 3)
    assert [sorted(shard.tolist()) for shard in dealt] == [[2, 3], [0, 1], [4, 5]]


@given(labels=labels_of, workers=st.integers(1, 8), alpha=st.floats(0.05, 100), seed=seeds)
def test_dirichlet_deals_everything_once(labels: list[int], workers: int, alpha: float, seed: int) -> None:
    dealt = shards(pl.Dirichlet(alpha), labels, workers, seed)
    assert len(dealt) == workers
    assert_all_dealt_once(dealt, len(labels))


def test_dirichlet_is_skewed_for_a_small_alpha_and_even_for_a_large_one() -> None:
    """The largest share that one of 10 workers has of a class, on average over 10 classes (seed 0)."""
    labels = np.repeat(np.arange(10), 1000)
    largest = []
    for alpha in (0.1, 1.0, 1000.0):
        counts = np.array([np.bincount(labels[s], minlength=10) for s in shards(pl.Dirichlet(alpha), labels, 10)])
        largest.append(counts.max(axis=0).mean() / 1000)
    assert largest[0] > 0.5
    assert 0.2 < largest[1] < 0.45
    assert largest[2] < 0.12


@pytest.mark.parametrize("partition", [pl.Equal(), pl.Pathological(2), pl.Dirichlet(1.0)], ids=repr)
def test_the_same_stream_deals_the_same_and_another_differently(partition: Partition) -> None:
    labels = np.repeat(np.arange(10), 50)
    one, two, other = ([shard.tolist() for shard in shards(partition, labels, 10, seed)] for seed in (1, 1, 2))
    assert one == two
    assert one != other
    assert {shard.dtype for shard in shards(partition, labels, 10)} == {np.dtype(np.int64)}


def test_a_partition_reads_the_labels_of_a_dataset_as_of_tensors() -> None:
    (x, y), _ = digits()
    task = digits_task()
    pairs = pl.Task(model=task.model, loss=task.loss, train=TensorDataset(x, y))
    one, two = (
        pl.Pathological(2).shards(each.training_samples(), 10, np.random.default_rng(0)) for each in (task, pairs)
    )
    assert [shard.tolist() for shard in one] == [shard.tolist() for shard in two]


# Refusals


@pytest.mark.parametrize("c", [0, 4])
def test_more_classes_than_there_are_and_none_are_refused(c: int) -> None:
    with pytest.raises(pl.ConfigError, match=r"does not fit 3 classes: choose 1 to 3"):
        shards(pl.Pathological(c), [0, 1, 2] * 4, 3)


def test_too_few_classes_a_worker_are_refused_with_the_number_needed() -> None:
    with pytest.raises(pl.ConfigError, match=r"2 workers need at least 5 each for 10"):
        shards(pl.Pathological(2), list(range(10)) * 4, 2)


def test_classes_are_needed_to_deal_them_out() -> None:
    for partition in (pl.Pathological(1), pl.Dirichlet(1.0)):
        with pytest.raises(pl.ConfigError, match="one class label per sample"):
            shards(partition, np.linspace(0, 1, 20), 2)
        with pytest.raises(pl.ConfigError, match="one class label per sample"):
            shards(partition, np.zeros((20, 2), dtype=np.int64), 2)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(pl.ConfigError, match="alpha must be positive and finite"):
        pl.Dirichlet(alpha)


@pytest.mark.parametrize(
    ("samples", "workers", "batch", "message"),
    [
        (10, 2, 11, "the data set has 10 samples, fewer than one batch of 11"),
        (10, 3, 4, "with 3 samples, fewer than one batch of 4"),
        (10, 11, 1, "leaves worker 10 empty"),
        (10, 2, 0, "batch_size=0 is not possible"),
    ],
)
def test_a_worker_that_could_not_fill_a_batch_is_refused(samples: int, workers: int, batch: int, message: str) -> None:
    with pytest.raises(pl.ConfigError, match=message):
        deal(pl.Equal(), Labels([0] * samples), workers, batch, np.random.default_rng(0))


def test_a_worker_with_exactly_one_batch_is_fine() -> None:
    assert [len(shard) for shard in deal(pl.Equal(), Labels([0] * 12), 3, 4, np.random.default_rng(0))] == [4, 4, 4]


class Dealt:
    """A partition of one's own."""

    def __init__(self, *given: list[int]) -> None:
        self._given = given

    def shards(self, samples: object, workers: int, generator: np.random.Generator) -> list[Indices]:
        return [np.array(shard, dtype=np.int64) for shard in self._given]


@pytest.mark.parametrize(
    "given_shards",
    [
        ([0, 1], [1, 2], [3, 4]),  # a sample twice
        ([0, 1], [2, 99], [3, 4]),  # a sample that is not there
        ([0, 1], [2, -1], [3, 4]),
        ([0, 1], [2, 3]),  # a worker too few
    ],
)
def test_a_partition_of_ones_own_that_deals_the_impossible_is_refused(given_shards: tuple[list[int], ...]) -> None:
    with pytest.raises(pl.ConfigError):
        deal(Dealt(*given_shards), Labels([0] * 8), 3, 2, np.random.default_rng(0))


def test_the_partition_of_a_run_depends_on_its_seed_only() -> None:
    """Neither on the strategy nor on the delays: the same workers train on the same samples."""
    seen = []
    for strategy, delay, seed in (
        (pl.Synchronous(), pl.delays.Constant(1.0), 1),
        (pl.Asynchronous(), pl.delays.LogNormal(1.0, 1.0), 1),
        (pl.Synchronous(), pl.delays.Constant(1.0), 2),
    ):
        recorded = Noted()
        fleet = pl.SimulatedFleet(delay, workers=4)
        train(digits_task(), strategy, fleet, updates=3, batch_size=375, sampling=recorded, seed=seed)
        seen.append([frozenset(recorded.draws[worker][0]) for worker in range(4)])
    assert seen[0] == seen[1] != seen[2]
    assert torch.tensor(sorted(sample for shard in seen[0] for sample in shard)).equal(torch.arange(1500))
