"""The samplers: orders, epochs, states, pickles, loaders with workers, and what is refused."""

import io
import pickle
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler, TensorDataset

import paceline as pl
from paceline.pruning.samplers import PruningSampler

SAMPLES, BATCH = 60, 8


def fine(samples: int = SAMPLES, **options: Any) -> pl.FinePruning:
    chosen: dict[str, Any] = {"window": 6, "start": 2, "block": 2, "count": 1, "fraction": 0.3, **options}
    return pl.FinePruning(samples=samples, **chosen)


def random(samples: int = SAMPLES, **options: Any) -> pl.RandomPruning:
    chosen: dict[str, Any] = {"window": 6, "start": 2, "block": 2, "count": 1, "fraction": 0.3, **options}
    return pl.RandomPruning(samples=samples, **chosen)


def soft(samples: int = SAMPLES, **options: Any) -> pl.SoftPruning:
    return pl.SoftPruning(samples=samples, **{"fraction": 0.5, **options})


MAKERS: list[Callable[..., PruningSampler]] = [fine, random, soft]


def losses_of(indices: torch.Tensor, epoch: int) -> torch.Tensor:
    """Made up: some samples are always worse, and it changes with time."""
    return (indices * 37 % 23).float() / 23 + torch.sin(indices + 3.0 * epoch).abs() / (1 + epoch)


def go_through(sampler: PruningSampler, epochs: Iterator[int] | range) -> list[list[int]]:
    """Train, as it were; the batches in order."""
    batches: list[list[int]] = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        for batch in BatchSampler(sampler, BATCH, drop_last=False):
            sampler.observe(torch.tensor(batch), losses_of(torch.tensor(batch), epoch))
            batches.append(batch)
    return batches


def test_it_is_a_sampler_and_all_that_torch_asks_of_one() -> None:
    assert isinstance(fine(), Sampler)
    loader = DataLoader(TensorDataset(torch.arange(SAMPLES)), batch_size=BATCH, sampler=fine())
    assert len(loader) == 8
    assert sorted(int(x) for (batch,) in loader for x in batch) == list(range(SAMPLES))


@pytest.mark.parametrize("make", MAKERS)
def test_epochs_have_the_length_they_say_and_distinct_samples(make: Callable[..., PruningSampler]) -> None:
    """I2, and the lengths of the plan."""
    sampler = make()
    plan = sampler.plan(13)
    for epoch in range(13):
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert len(order) == len(sampler) == len(set(order)) == int(sampler.kept.sum())
        assert set(order) == set(np.flatnonzero(sampler.kept).tolist())
        assert len(order) == plan.size(epoch + 1) if plan.exact else len(order) <= plan.size(epoch + 1)
        assert len(BatchSampler(sampler, BATCH, drop_last=False)) == -(-len(order) // BATCH)
        sampler.observe(torch.tensor(order), losses_of(torch.tensor(order), epoch))
    if isinstance(sampler, pl.SoftPruning):
        assert len(sampler) < SAMPLES


@pytest.mark.parametrize("nothing", [{"fraction": 0.0}, {"count": 0}, {"start": 6}, {"until": 0}], ids=str)
def test_without_pruning_it_is_torchs_own_order(nothing: dict[str, Any]) -> None:
    """I1: index by index that of DistributedSampler, whatever the losses."""
    sampler = fine(seed=5, **nothing)
    own: DistributedSampler[int] = DistributedSampler(range(SAMPLES), num_replicas=1, rank=0, shuffle=True, seed=5)  # type: ignore[arg-type]
    for epoch in range(8):
        own.set_epoch(epoch)
        order = list(chain(*go_through(sampler, range(epoch, epoch + 1))))
        assert order == list(own)


def test_a_pruned_epoch_has_the_same_order_without_what_is_left_out() -> None:
    pruned, whole = fine(seed=3), fine(seed=3, fraction=0.0)
    for epoch in range(9):
        order, complete = (list(chain(*go_through(each, range(epoch, epoch + 1)))) for each in (pruned, whole))
        assert order == [index for index in complete if pruned.kept[index]]


def test_the_samples_that_stood_out_most_are_left_out() -> None:
    """I4, through the sampler; and a pruned sample's count stays as it is."""
    sampler = fine(window=8, start=4, block=1, count=1)
    go_through(sampler, range(3))
    counts = sampler.counts
    assert counts.max() == 3
    sampler.set_epoch(3)
    kept = sampler.kept
    assert kept.sum() == 42
    assert counts[kept].max() <= counts[~kept].min()
    go_through(sampler, range(3, 4))
    assert (sampler.counts[~kept] == counts[~kept]).all()
    sampler.set_epoch(7)  # epoch 8 begins a new window
    assert sampler.counts.max() == 0
    easy = fine(window=8, start=4, block=1, count=1, prune="low")
    go_through(easy, range(3))
    easy.set_epoch(3)
    assert counts[easy.kept].min() >= counts[~easy.kept].max()


def test_ties_are_broken_by_the_seed_or_by_index() -> None:
    orders = {}
    choices: dict[str, dict[str, Any]] = {"a": {"seed": 1}, "b": {"seed": 2}, "i": {"seed": 1, "ties": "index"}}
    for name, options in choices.items():
        sampler = fine(**options)
        sampler.set_epoch(1)  # nothing was observed: all are equal
        orders[name] = sampler.kept
    assert orders["a"].tolist() != orders["b"].tolist()
    assert orders["i"].tolist() == [True] * 42 + [False] * 18


@pytest.mark.parametrize("make", MAKERS)
@settings(max_examples=12)
@given(stop=st.integers(1, 60))
def test_a_state_goes_on_exactly_where_it_was_taken(make: Callable[..., PruningSampler], stop: int) -> None:
    """In the middle of any epoch, through torch.save with weights_only; the rest is the same, batch by batch."""
    whole = go_through(make(), range(8))
    sampler, before = make(), list[list[int]]()
    for epoch in range(8):
        sampler.set_epoch(epoch)
        for batch in BatchSampler(sampler, BATCH, drop_last=False):
            if len(before) == stop:
                break
            sampler.observe(torch.tensor(batch), losses_of(torch.tensor(batch), epoch))
            before.append(batch)
        if len(before) == stop:
            break
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    resumed = make()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert before + go_through(resumed, range(resumed.epoch, 8)) == whole


@pytest.mark.parametrize("make", MAKERS)
def test_it_can_be_pickled_in_the_middle_of_an_epoch(make: Callable[..., PruningSampler]) -> None:
    sampler = make(seed=9)
    go_through(sampler, range(4))
    sampler.set_epoch(4)
    first = list(sampler)[:20]
    sampler.observe(first, losses_of(torch.tensor(first), 4).numpy())
    copied, other = (pickle.loads(pickle.dumps(sampler)) for _ in range(2))
    assert not set(copied) & set(first)
    assert go_through(copied, range(4, 9)) == go_through(other, range(4, 9))


def test_a_state_is_a_copy() -> None:
    sampler = fine()
    state = sampler.state_dict()
    go_through(sampler, range(3))
    assert int((state["marks"] != 2).sum()) == 0
    assert int(state["memory"]["counts"].sum()) == 0


def test_it_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(4)
    np.random.seed(4)
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()
    for make in MAKERS:
        go_through(make(), range(6))
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert str(np.random.get_state()) == str(numpy_before)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_with_and_without_workers_see_the_same(workers: int) -> None:
    """Three epochs through WithIndices, with weights; the same batches as the sampler alone."""
    data = pl.WithIndices(TensorDataset(torch.arange(SAMPLES) * 10, torch.arange(SAMPLES) % 3))
    sampler, alone = fine(), go_through(fine(), range(3))
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, **options)
    seen = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for indices, (inputs, targets) in loader:
            assert torch.equal(inputs, indices * 10)
            assert torch.equal(targets, indices % 3)
            assert sampler.weights(indices).tolist() == [1.0] * len(indices)
            sampler.observe(indices, losses_of(indices, epoch).requires_grad_())
            seen.append(indices.tolist())
    assert seen == alone


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # which torchdata calls
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_loaders_resume_in_the_middle_of_an_epoch(workers: int) -> None:
    """The state of the loader itself brings the rest of the epoch. Without workers it is exact in every respect; with
    them it was taken before the last batches were observed, so the sampler's own state is the one to keep.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = pl.WithIndices(TensorDataset(torch.arange(SAMPLES)))
    whole = go_through(fine(), range(6))

    def train(sampler: PruningSampler, state: Any, batches: int) -> tuple[list[list[int]], Any]:
        loader: StatefulDataLoader[Any] = StatefulDataLoader(
            data, batch_size=BATCH, sampler=sampler, num_workers=workers
        )
        if state is not None:
            loader.load_state_dict(state)
        done: list[list[int]] = []
        for epoch in range(sampler.epoch, 6):
            sampler.set_epoch(epoch)
            for indices, _ in loader:
                sampler.observe(indices, losses_of(indices, epoch))
                done.append(indices.tolist())
                if len(done) == batches:
                    return done, loader.state_dict()
        return done, None

    first, state = train(fine(), None, 11)  # 8 + 3 of 6 batches
    if workers == 0:
        # the epoch is in the state, which the loader hands to the sampler when it begins
        again = fine()
        again.set_epoch(1)
        assert first + train(again, state, 1000)[0] == whole
    sampler = fine()
    first, _ = train(sampler, None, 11)
    own = fine()
    own.load_state_dict(sampler.state_dict())
    assert first + train(own, None, 1000)[0] == whole


def test_an_iterator_knows_how_many_are_left() -> None:
    sampler = fine()
    iterator: Any = iter(sampler)
    begun = [next(iterator) for _ in range(13)]
    assert iterator.state_dict() == {"left": SAMPLES - 13}
    again: Any = iter(sampler)
    again.load_state_dict(iterator.state_dict())
    assert begun + list(again) == list(sampler)
    assert list(again) == []


def test_looking_at_an_epoch_twice_without_observing_is_fine() -> None:
    sampler = fine()
    assert list(sampler) == list(sampler)


def test_soft_pruning_weighs_the_kept_of_the_well_learnt() -> None:
    sampler = soft(fraction=0.75)
    go_through(sampler, range(1))
    sampler.set_epoch(1)
    order = torch.tensor(list(sampler))
    weights = sampler.weights(order)
    assert set(weights.tolist()) == {1.0, 4.0}
    losses = losses_of(torch.arange(SAMPLES), 0)
    assert torch.equal(weights == 4, losses[order] < losses.mean())


# Ranks


@pytest.mark.parametrize("samples", [60, 61])
def test_ranks_have_the_same_plan_and_disjoint_shares_of_equal_length(samples: int) -> None:
    ranks = [fine(samples, rank=rank, ranks=3) for rank in range(3)]
    own: list[DistributedSampler[int]] = [
        DistributedSampler(range(samples), 3, rank, seed=0, drop_last=True)  # type: ignore[arg-type]
        for rank in range(3)
    ]
    for epoch in range(4):
        for sampler in ranks:
            sampler.set_epoch(epoch)
        shares = [list(sampler) for sampler in ranks]
        assert {len(share) for share in shares} == {len(ranks[0])} == {int(ranks[0].kept.sum()) // 3}
        together = list(chain(*shares))
        assert len(set(together)) == len(together)
        assert len(ranks[0].plan(4).steps(BATCH, ranks=3)) == 4
        if ranks[0].kept.all():
            for each in own:
                each.set_epoch(epoch)
            assert shares == [list(each) for each in own]


# Refusals


@pytest.mark.parametrize(
    ("indices", "losses", "message"),
    [
        ([0, 1], [1.0], "2 indices and 1 losses do not pair up"),
        ([0, 1], 1.5, 'per-sample losses come from reduction="none"'),
        ([0, 1], [1.0, float("nan")], "the loss of sample 1 is nan"),
        ([0, 1], [float("inf"), 1.0], "the loss of sample 0 is inf"),
        ([0, 60], [1.0, 2.0], "there is no sample 60: indices are 0 to 59"),
        ([-1, 0], [1.0, 2.0], "there is no sample -1: indices are 0 to 59"),
        ([0.5, 1], [1.0, 2.0], "indices are whole numbers"),
    ],
)
@pytest.mark.parametrize("make", MAKERS)
def test_losses_that_cannot_be_are_refused(
    make: Callable[..., PruningSampler], indices: list[float], losses: Any, message: str
) -> None:
    sampler = make()
    with pytest.raises(pl.ConfigError, match=message):
        sampler.observe(torch.tensor(indices), torch.tensor(losses))
    assert len(list(sampler)) == SAMPLES  # nothing was taken note of
    sampler.observe([], [])


def test_an_epoch_cannot_be_observed_twice() -> None:
    sampler = fine()
    sampler.observe([3, 4], [0.1, 0.2])
    with pytest.raises(pl.ConfigError, match=r"sample 4 was observed before in epoch 0: .* call set_epoch"):
        sampler.observe([5, 4], [0.1, 0.2])
    sampler = fine()
    go_through(sampler, range(1))
    assert sampler.epoch == 1
    with pytest.raises(pl.ConfigError, match=r"epoch 0 was iterated before: call set_epoch\(1\)"):
        list(sampler)


def test_what_an_incomplete_last_batch_left_over_is_not_taken_for_an_epoch() -> None:
    """Without set_epoch, and with drop_last, a second pass would otherwise train on nothing and say nothing."""
    sampler = fine()
    loader = DataLoader(pl.WithIndices(range(SAMPLES)), batch_size=BATCH, sampler=sampler, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for indices, _ in loader:
            sampler.observe(indices, losses_of(indices, epoch))
        with pytest.raises(pl.ConfigError, match=f"epoch {epoch} was iterated before"):
            list(loader)


def test_epochs_do_not_go_back() -> None:
    sampler = fine()
    sampler.set_epoch(3)
    sampler.set_epoch(3)
    with pytest.raises(pl.ConfigError, match="epoch 2 is before the current epoch 3"):
        sampler.set_epoch(2)


def test_states_of_other_samplers_are_refused() -> None:
    state = fine().state_dict()
    for other, message in (
        (fine(61), "the state has samples=60, but this sampler has samples=61"),
        (fine(seed=1), "the state has seed=0, but this sampler has seed=1"),
        (random(), "the state has rule=FineRule, but this sampler has rule=RandomRule"),
    ):
        with pytest.raises(pl.ConfigError, match=message):
            other.load_state_dict(state)


def test_a_state_in_the_middle_of_an_epoch_is_of_its_rank() -> None:
    """Loaded by another rank it would give it a share of another length, and the processes would wait for ever."""
    first, second = (fine(rank=rank, ranks=2) for rank in range(2))
    second.load_state_dict(first.state_dict())  # nothing was observed yet: all know the same
    first.observe(list(first)[:4], [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(pl.ConfigError, match="by rank 0 of 2, but this is rank 1 of 2: each rank must load its own"):
        second.load_state_dict(first.state_dict())
    assert len(list(second)) == 30
    again = fine(rank=0, ranks=2)
    again.load_state_dict(first.state_dict())
    assert len(list(again)) == 26
    first.set_epoch(1)
    second.load_state_dict(first.state_dict())
    assert second.epoch == 1


def test_a_state_of_other_arrays_changes_nothing() -> None:
    sampler, state = fine(), fine().state_dict()
    state["memory"]["counts"] = torch.ones(SAMPLES, dtype=torch.uint16)
    state["marks"] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(pl.ConfigError, match=r"the state has marks of \(3,\) uint8, not \(60,\) uint8"):
        sampler.load_state_dict(state)
    assert sampler.counts.sum() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 60.5}, "samples=60.5 is not possible: a whole number"),
        ({"start": 1.5}, "start=1.5 is not possible: a whole number"),
        ({"samples": 0}, "samples=0 is not possible"),
        ({"samples": 2**31}, "samples=2147483648 is not possible: 1 to 2,147,483,647"),
        ({"seed": -1}, "seed=-1"),
        ({"rank": 2, "ranks": 2}, "rank=2 of ranks=2 is not possible: 0 to 1"),
    ],
)
def test_samplers_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.ConfigError, match=message):
        fine(**options)
    with pytest.raises(pl.ConfigError, match="RandomPruning has no counts"):
        _ = random().counts


def test_a_data_set_that_changes_its_length_is_detected() -> None:
    growing = list(range(10))
    data = pl.WithIndices(growing)
    loader = DataLoader(data, batch_size=2)
    assert next(indices.tolist() for indices, _ in loader) == [0, 1]
    assert data[3] == (3, 3)
    growing.append(10)
    for look in (lambda: len(data), lambda: data[3], lambda: data.__getitems__([1, 2])):
        with pytest.raises(pl.ConfigError, match="the dataset has 11 samples, but had 10"):
            look()


def test_with_indices_uses_a_batched_fetch_where_there_is_one() -> None:
    class Batched(list[int]):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [-index for index in indices]

    assert pl.WithIndices(Batched(range(9))).__getitems__([2, 5]) == [(2, -2), (5, -5)]


def test_half_precision_losses_and_narrow_indices_are_fine() -> None:
    sampler = fine()
    sampler.observe(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([1.0, 3.0], dtype=torch.bfloat16))
    sampler.observe(np.array([2, 3], dtype=np.uint8), np.array([1.0, 3.0]))
    assert sampler.counts[:4].tolist() == [0, 1, 0, 1]


def test_batches_are_looked_at_together_but_nothing_is_missed() -> None:
    """The first ones at once, later ones some at a time; whoever asks is told of all of them."""
    sampler = fine(samples=400)
    order = list(sampler)
    for begin in range(0, 400, 4):
        batch = torch.tensor(order[begin : begin + 4])
        sampler.observe(batch, torch.tensor([0.0, 0.0, 0.0, 1.0]))
        assert len(sampler._pending) <= max(0, begin // 4 - 8)
        if begin == 300:
            assert sampler._pending
            assert sampler.counts.sum() == 76
            assert not sampler._pending
    assert not sampler._pending  # the epoch is over
    assert sampler.counts.sum() == 100


def test_losses_that_change_after_they_were_observed_are_refused() -> None:
    sampler = fine(samples=400)
    for begin in range(0, 48, 4):
        losses = torch.rand(4)
        sampler.observe(torch.arange(begin, begin + 4), losses)
    losses.mul_(2)
    with pytest.raises(pl.ConfigError, match="losses were changed in place after they were observed"):
        sampler.state_dict()
    array = np.ones(2)
    sampler.observe([120, 121], array)
    array[:] = np.nan  # of arrays a copy was taken
    sampler.state_dict()


def test_a_sample_that_is_twice_in_batches_that_wait_is_found() -> None:
    sampler = fine(samples=400)
    for begin in range(0, 48, 4):
        sampler.observe(torch.arange(begin, begin + 4), torch.rand(4))
    sampler.observe([113, 114, 113], [1.0, 2.0, 3.0])
    with pytest.raises(pl.ConfigError, match="sample 113 was observed before"):
        sampler.set_epoch(1)
    assert sampler.counts[113] == 0
