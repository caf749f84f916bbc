"""Pruning in ``train``: under every strategy each worker prunes its own shard, by losses that come with gradients."""

import copy
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import paceline as pl
from paceline.config.file import parse_config, write_config
from paceline.data.partition import Indices
from paceline.pruning.record import Trends, read_pruning
from paceline.pruning.rules import FineRule, RandomRule
from paceline.pruning.schedule import Schedule
from paceline.pruning.shards import PrunedShards
from paceline.storage.checkpoint import read_checkpoint, write_checkpoint
from support.digits import digits_task, rows

SCHEDULE: dict[str, Any] = {"window": 6, "start": 2, "block": 2, "count": 1, "fraction": 0.3}
WORKERS, BATCH = 4, 16
STRATEGIES = [
    pl.Synchronous(),
    pl.Asynchronous(),
    pl.FastestK(3),
    pl.FastestK(3, stop_late=False),
    pl.LiveCompensation(3, blocks=4),
    pl.LiveCompensation(3, blocks=4, recall=False),
    pl.Grouped([[0, 1], [2, 3]], pl.FastestK(1)),
    pl.ModelAveraging(every=4),
    pl.EnsembleCompression(every=4, relabel=0.5),
]


def train(sampling: Any, strategy: pl.strategy.Strategy = STRATEGIES[0], **options: Any) -> pl.Run:
    chosen: dict[str, Any] = {"stop": pl.Stop(epochs=6), **options}
    return pl.train(
        digits_task(),
        strategy=strategy,
        fleet=pl.SimulatedFleet(pl.delays.ShiftedExponential(0.05, 0.02), workers=WORKERS),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=BATCH,
        sampling=sampling,
        seed=3,
        progress=False,
        **chosen,
    )


def sampler(**options: Any) -> pl.FinePruning:
    return pl.FinePruning(samples=len(digits_task().training_samples()), **{**SCHEDULE, **options})


def test_a_loss_with_class_weights_tells_no_losses_to_choose_by() -> None:
    weighted = replace(digits_task(), loss=nn.CrossEntropyLoss(weight=torch.linspace(1, 2, 10)))
    with pytest.raises(pl.ConfigError, match="not the mean of its samples' losses: let the loss, or the step, return"):
        pl.train(
            weighted, strategy="ssgd", fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2),
            stop=pl.Stop(updates=1), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            sampling=sampler(), progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_every_strategy_prunes(strategy: pl.strategy.Strategy) -> None:
    run = train(sampler(), strategy)
    record = run.pruning
    assert run.ended == "epochs"
    assert record is not None
    assert record.times_pruned.max() == 2  # in epochs 2 and 4
    assert record.times_stood_out.sum() > 0
    pruned = [(held, kept) for _, epoch, held, kept in record.passes if epoch % 6 >= 2 and epoch % 2 == 0]
    assert pruned
    assert all(kept == held - round(0.3 * held) for held, kept in pruned)
    assert all(held == kept for _, epoch, held, kept in record.passes if epoch % 6 < 2 or epoch % 2)
    assert run.summary()["pruned_share"] == pytest.approx(0.3 * len(pruned) / len(record.passes), abs=0.001)
    assert run.history[-1].loss < run.history[0].loss


@pytest.mark.parametrize("nothing", [{"fraction": 0.0}, {"count": 0}, {"start": 6}], ids=str)
@pytest.mark.parametrize("strategy", [STRATEGIES[0], STRATEGIES[4]], ids=repr)
def test_without_pruning_it_is_bit_for_bit_regular_training(
    strategy: pl.strategy.Strategy, nothing: dict[str, Any]
) -> None:
    """I1."""
    regular, watched = train(pl.Shuffled(), strategy), train(sampler(**nothing), strategy)
    assert rows(regular) == rows(watched)
    for one, other in zip(regular.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_epochs_end_when_what_is_used_and_what_is_skipped_make_them_up() -> None:
    """Six epochs, of which 2 and 4 are pruned; the batches are whole ones."""
    run, whole = train(sampler(), stop=pl.Stop(epochs=5)), train(pl.Shuffled(), stop=pl.Stop(epochs=5))
    assert run.ended == whole.ended == "epochs"
    assert run.pruning is not None
    sizes = Counter[int]()
    for _, epoch, _, kept in run.pruning.passes:
        sizes[epoch] += kept // BATCH * BATCH
    assert run.history[-1].samples == sum(sizes[epoch] for epoch in range(1, 6)) < whole.history[-1].samples


def open_shards(rule: Any, *sizes: int, batch: int = 4) -> tuple[PrunedShards, list[Indices]]:
    shards = np.split(np.random.default_rng(0).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    batches = rule.open(shards, batch, 5)
    assert isinstance(batches, PrunedShards)
    return batches, [shard.astype(np.int64) for shard in shards]


def test_a_worker_leaves_out_those_of_its_shard_that_stood_out() -> None:
    batches, shards = open_shards(FineRule(Schedule(2, 1, 1, window=9), fraction=0.5, ties="index"), 20, 12)
    bad = set(shards[0][:10].tolist())
    for _ in range(5):
        drawn = batches.draw(0)
        batches.observe(0, drawn, np.array([2.0 if i in bad else 1.0 for i in drawn], dtype=np.float32))
    for epoch in range(3):
        drawn = np.concatenate([batches.draw(0) for _ in range(2)])  # ten are kept: two whole batches
        assert not set(drawn.tolist()) & bad, epoch
    assert set(np.concatenate([batches.draw(1) for _ in range(3)]).tolist()) == set(shards[1].tolist())
    assert batches.record.times_stood_out[shards[1]].max() == 0
    assert set(np.flatnonzero(batches.record.times_pruned).tolist()) == bad
    assert batches.skipped == 3 * (20 - 8)


def test_the_control_draws_anew_each_time_and_losses_do_not_matter() -> None:
    batches, shards = open_shards(RandomRule(Schedule(1, 1, 1, window=99), fraction=0.5), 200, batch=10)
    epochs = []
    for _ in range(3):
        drawn = [batches.draw(0) for _ in range(10)]
        for each in drawn:
            batches.observe(0, each, np.ones(10, dtype=np.float32))
        epochs.append(set(np.concatenate(drawn).tolist()))
    assert len(epochs[0] & epochs[1]) < 80
    assert epochs[1] != epochs[2]
    assert batches.record.times_pruned[shards[0]].sum() == 300


def go_on(batches: PrunedShards, steps: range) -> list[list[int]]:
    """Draw for both workers, sometimes put a part back, and observe made-up losses."""
    drawn = []
    for step in steps:
        worker = step % 3 % 2
        indices = batches.draw(worker)
        if step % 5 == 4:
            batches.put_back(worker, indices[1:])
            indices = indices[:1]
        losses = np.sin(indices + 0.1 * step) + indices % 7
        batches.observe(worker, indices, losses.astype(np.float32))
        drawn.append(indices.tolist())
    return drawn


@pytest.mark.parametrize(
    "rule",
    [FineRule(Schedule(2, 2, 1, window=5), fraction=0.4), RandomRule(Schedule(1, 1, 1, window=9), fraction=0.5)],
    ids=lambda rule: type(rule).__name__,
)
@settings(max_examples=20)
@given(stop=st.integers(0, 79))
def test_a_state_goes_on_exactly_where_it_was_taken(rule: Any, stop: int) -> None:
    """After any draw, through a file; what is drawn, skipped and recorded is the same."""
    whole, _ = open_shards(rule, 22, 17)
    expected = go_on(whole, range(80))
    first, _ = open_shards(rule, 22, 17)
    before = go_on(first, range(stop))
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "state", first.state())
        state = read_checkpoint(Path(folder) / "state")
    resumed, _ = open_shards(rule, 22, 17)
    resumed.restore(state)
    assert resumed.skipped == first.skipped
    assert before + go_on(resumed, range(stop, 80)) == expected
    assert resumed.skipped == whole.skipped
    assert resumed.record.passes == whole.record.passes
    assert resumed.record.trends == whole.record.trends
    for name, array in whole.record.arrays().items():
        assert (resumed.record.arrays()[name] == array).all(), name


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["batches"]["sequences"][0]["memory"].update(counts=np.zeros(3, dtype=np.uint16)),
        lambda state: state["batches"]["sequences"][0].update(kept=np.zeros(9, dtype=np.uint8)),
        lambda state: state["batches"]["sequences"][0].update(place=99),
        lambda state: state["batches"]["sequences"][0].update(epoch=-1),
        lambda state: state["batches"]["sequences"].pop(),
        lambda state: state["record"].update(times_pruned=np.zeros(3, dtype=np.int32)),
    ],
)
def test_states_that_cannot_be_are_refused(change: Callable[[Any], None]) -> None:
    rule = FineRule(Schedule(1, 1, 1, window=9), fraction=0.5)
    batches, _ = open_shards(rule, 20, 20)
    go_on(batches, range(7))
    state: Any = copy.deepcopy(batches.state())
    change(state)
    with pytest.raises(ValueError, match=r"\w"):
        open_shards(rule, 20, 20)[0].restore(state)


def test_losses_that_are_not_finite_tell_nothing() -> None:
    batches, _ = open_shards(FineRule(Schedule(2, 1, 1, window=9), fraction=0.5), 8)
    drawn = batches.draw(0)
    batches.observe(0, drawn, np.array([1, np.inf, 1, 1], dtype=np.float32))
    batches.observe(0, drawn[:0], np.empty(0, dtype=np.float32))
    assert batches.record.times_stood_out.sum() == 0


def test_what_was_put_back_is_drawn_again() -> None:
    batches, _ = open_shards(FineRule(Schedule(2, 1, 1, window=9), fraction=0.5), 8)
    drawn = batches.draw(0)
    batches.put_back(0, drawn[1:])
    assert batches.draw(0)[:3].tolist() == drawn[1:].tolist()


def test_a_shard_that_pruning_leaves_too_small_is_refused() -> None:
    batches, _ = open_shards(FineRule(Schedule(1, 1, 1, window=9), fraction=0.6), 9)
    with pytest.raises(pl.ConfigError, match="pruning leaves worker 0 4 of 9 samples, fewer than one batch of 5"):
        FineRule(Schedule(1, 1, 1, window=9), fraction=0.6).open([np.arange(9)], 5, 0).draw(0)
    assert len(batches.draw(0)) == 4
    with pytest.raises(pl.ConfigError, match="the dataset has a sample 9, but FinePruning was made for 9"):
        pl.FinePruning(samples=9, **SCHEDULE).open([np.arange(10)], 2, 0)


def test_a_run_keeps_its_record(tmp_path: Path) -> None:
    run = train(sampler(), directory=tmp_path / "run")
    saved = read_pruning(tmp_path / "run")
    assert saved is not None
    assert run.pruning is not None
    assert saved.record.times_pruned.tolist() == run.pruning.times_pruned.tolist()
    assert saved.record.passes == run.pruning.passes
    assert [row[:2] for row in saved.record.trends] == [row[:2] for row in run.pruning.trends]
    assert saved.targets is not None
    assert len(saved.targets) == len(digits_task().training_samples())
    assert saved.inputs.shape == (40, 64)
    assert (
        run.pruning.times_pruned[saved.shown].tolist() == sorted(run.pruning.times_pruned.tolist(), reverse=True)[:40]
    )
    train(pl.Shuffled(), directory=tmp_path / "other")
    assert read_pruning(tmp_path / "other") is None


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pruning.safetensors").write_bytes(b"no")
    with pytest.raises(pl.ConfigError, match="cannot read"):
        read_pruning(tmp_path)


def test_data_sets_and_models_of_ones_own_can_be_pruned(tmp_path: Path) -> None:
    class Pairs:
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            return torch.tensor([index / 64, 1.0]), torch.tensor(index % 2)

    run = pl.train(
        pl.Task(nn.Linear(2, 2), nn.functional.cross_entropy, Pairs()),
        strategy=pl.Synchronous(),
        fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=2),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
        sampling=pl.FinePruning(samples=64, **SCHEDULE),
        stop=pl.Stop(epochs=4),
        directory=tmp_path / "run",
        progress=False,
    )
    saved = read_pruning(tmp_path / "run")
    assert run.pruning is not None
    assert saved is not None
    assert saved.targets is None
    assert saved.inputs.shape[1:] == (2,)


def test_a_file_can_ask_for_pruning() -> None:
    text = (Path(__file__).parents[2] / "examples" / "compare.toml").read_text()
    head, _, rest = text.partition("[sampling]")
    sampling = '[sampling]\nname = "fine-pruning"\nwindow = 6\nstart = 2\nblock = 2\ncount = 1\nfraction = 0.3\n'
    config = parse_config(head + sampling + rest.partition("\n\n")[2])
    assert config.sampling == FineRule(Schedule(2, 2, 1, window=6), fraction=0.3)
    assert parse_config(write_config(config)) == config
    with pytest.raises(pl.ConfigError, match="fraction=2"):
        parse_config(head + sampling.replace("0.3", "2") + rest.partition("\n\n")[2])


def test_losses_of_followed_samples_take_little_memory() -> None:
    rows = [(sample, epoch, sample / 7) for epoch in range(200) for sample in range(50)]
    tracemalloc.start()
    try:
        trends = Trends()
        for begin in range(0, len(rows), 5):
            trends += rows[begin : begin + 5]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 20 * len(rows)
    assert len(trends) == len(rows)
    assert [row[:2] for row in trends] == [row[:2] for row in rows]
    assert [row[2] for row in trends] == pytest.approx([row[2] for row in rows])
