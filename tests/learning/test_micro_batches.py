"""Mini-batches that go through the model in pieces, and what a step logs in training."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import paceline as pl
from paceline.config.file import parse_config, write_config
from paceline.core.errors import ConfigError
from support.stepping import CASES, WORKERS, Case, by_hand, close, logging, mlp, sgd, simulated, table, trained

PROCESSES = pl.ProcessFleet(workers=WORKERS)
FLEETS = [pytest.param(simulated(), id="simulated"), pytest.param(PROCESSES, id="processes")]


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("name", ["losses of samples", "mean losses", "padded text in dicts", "unused parameters"])
def test_micro_batches_add_up_to_the_mini_batch(name: str, fleet: Any) -> None:
    """Pieces of 3, 2 and 2 samples: a mean counts for as many as it is of."""
    case = CASES[name]
    found = trained(case, fleet, batch_size=7, micro_batches=3)
    close(found.run.model, by_hand(case, found.drawn.draws), 1e-6)
    if fleet is not PROCESSES:
        assert found.run.evaluation == "exact: a mini-batch goes through the model in 3 micro-batches"


@pytest.mark.parametrize("fleet", FLEETS)
def test_micro_batches_of_blocks_and_of_local_models(fleet: Any) -> None:
    """A block of 4 samples goes through in pieces of 2, which is the most that 4 micro-batches of 8 allow."""
    sizes: list[int] = []

    def step(model: nn.Module, batch: Any) -> Any:
        sizes.append(len(batch[1]))
        return CASES["mean losses"].step(model, batch)

    for strategy in (pl.LiveCompensation(quorum=2, blocks=2), pl.ModelAveraging(every=2)):
        whole = trained(Case(), fleet, strategy=strategy, batch_size=8).run
        sizes.clear()
        split = trained(Case(step=step), fleet, strategy=strategy, batch_size=8, micro_batches=4).run
        close(split.model, whole.model, 1e-6)
        assert [row.training_loss for row in split.history[1:]] == pytest.approx(
            [row.training_loss for row in whole.history[1:]], rel=1e-5
        )
        if fleet is not PROCESSES:
            assert {*sizes} == {2, 64}  # the pieces, and all samples at once in evaluations


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize(
    ("strategy", "micro_batches"),
    [(pl.Synchronous(), 4), (pl.LiveCompensation(WORKERS, blocks=4), 1), (pl.ModelAveraging(every=2), 4)],
    ids=["micro-batches", "blocks", "models"],
)
def test_sparse_gradients_of_several_passes_are_those_of_dense_ones(
    fleet: Any, strategy: pl.strategy.Strategy, micro_batches: int
) -> None:
    """A sparse gradient refers to the numbers of the words that the embedding was given: they must stay."""
    words, labels = torch.arange(96).reshape(48, 2) * 7 % 20, torch.arange(48) % 2
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(20, 4, mode="mean", sparse=sparse), nn.Linear(4, 2)).double()
        run = pl.train(
            pl.Task(model, functional.cross_entropy, train=(words, labels)), strategy=strategy, fleet=fleet,
            optimizer=lambda p: torch.optim.SGD(p, lr=1.0), batch_size=8, micro_batches=micro_batches,
            stop=pl.Stop(updates=3), progress=False,
        )  # fmt: skip
        found.append(run.model)
    close(found[0], found[1], 1e-12)


@pytest.mark.parametrize("fleet", FLEETS)
def test_micro_batches_of_a_loss_with_class_weights(fleet: Any) -> None:
    """A piece counts for the class weights of its targets."""
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0]))
    task = pl.Task(Case().made(), loss, train=table())
    whole = trained(Case(), fleet, task=task, batch_size=7).run
    split = trained(Case(), fleet, task=task, batch_size=7, micro_batches=3).run
    close(split.model, whole.model, 1e-6)
    assert split.history[-1].training_loss == pytest.approx(whole.history[-1].training_loss, rel=1e-5)


@pytest.mark.parametrize("fleet", FLEETS)
def test_batch_normalisation_sees_one_micro_batch_at_a_time(fleet: Any) -> None:
    """As in any loop that accumulates gradients: its running statistics move with each piece."""
    case = CASES["batch normalisation"]
    found = trained(case, fleet, micro_batches=2, stop=pl.Stop(updates=1))
    model, x = case.made(), table()[0]
    drawn = [worker[0] for _, worker in sorted(found.drawn.draws.items())]
    after = []
    for batch in drawn:
        layer = nn.BatchNorm1d(8)
        for piece in (batch[:3], batch[3:]):
            layer(model[0](x[piece]))  # type: ignore[index]
        after.append(layer.running_mean)
    expected = torch.stack([each for each in after if each is not None]).mean(0)
    torch.testing.assert_close(found.run.model.state_dict()["1.running_mean"], expected)
    assert int(found.run.model.state_dict()["1.num_batches_tracked"]) == 2


def test_what_has_no_micro_batches_is_refused() -> None:
    task = pl.Task(mlp(), lambda outputs, targets: functional.cross_entropy(outputs, targets).exp(), train=table())
    for fleet in (simulated(), PROCESSES):
        with pytest.raises((ConfigError, pl.PacelineError), match="micro_batches=2 needs a loss that is a mean"):
            trained(Case(), fleet, task=task, micro_batches=2)
    with pytest.raises(ConfigError, match="distils an ensemble with whole mini-batches, not with micro_batches=2"):
        trained(
            Case(), simulated(), task=pl.Task(mlp(), functional.cross_entropy, train=table()), micro_batches=2,
            strategy=pl.EnsembleCompression(every=2, steps=4),
        )  # fmt: skip
    with pytest.raises(ConfigError, match="micro_batches=7 leaves some without a sample: mini-batches have at most 6"):
        trained(Case(), simulated(), micro_batches=7)
    with pytest.raises(ConfigError, match="micro_batches=0 is not possible: at least 1"):
        trained(Case(), simulated(), micro_batches=0)


def test_micro_batches_in_a_file() -> None:
    text = """
        batch_size = 8
        micro_batches = 4
        strategy = "ssgd"
        task = { data = "digits", model = "linear" }
        fleet = { kind = "processes", workers = 2 }
        optimizer = { name = "SGD", lr = 0.1 }
        stop = { updates = 2 }
    """
    config = parse_config(text, "file")
    assert config.micro_batches == 4
    assert parse_config(write_config(config), "again") == config
    assert "micro_batches" not in write_config(parse_config(text.replace("micro_batches = 4", ""), "file"))
    with pytest.raises(ConfigError, match="micro_batches=0 is not possible"):
        parse_config(text.replace("= 4", "= 0"), "file")


# What a step logs in training.


@pytest.mark.parametrize("strategy", [pl.Synchronous(), pl.ModelAveraging(every=2)], ids=["gradients", "models"])
@pytest.mark.parametrize(
    "fleet", [*FLEETS, pytest.param(simulated("exact"), id="exact")]
)  # joined passes, single ones, those of processes
def test_what_a_step_logs_in_training_is_averaged_since_the_last_row(fleet: Any, strategy: Any) -> None:
    case = Case(step=logging)
    every = pl.Every(updates=2)
    run = trained(case, fleet, strategy=strategy, every=every).run
    split = trained(case, fleet, strategy=strategy, every=every, micro_batches=3).run
    for found in (run, split):
        first, *rows = found.history
        assert math.isnan(first.metrics["train/right"])
        assert len(rows) == 2
        for row in rows:
            assert row.metrics["train/half"] == 0.5
            assert 0.2 < row.metrics["train/right"] < 0.9
    assert [*run.history[1].metrics] == ["loss", "right", "half", "train/right", "train/half"]
    for one, two in zip(run.history[1:], split.history[1:], strict=True):
        assert one.metrics["train/right"] == pytest.approx(two.metrics["train/right"], abs=1e-6)


def test_what_is_logged_in_training_is_that_of_the_samples_used() -> None:
    """One worker, one update: the mean over its mini-batch."""
    x, y = table()
    found = trained(Case(step=logging), simulated(workers=1), stop=pl.Stop(updates=1))
    batch = found.drawn.draws[0][0]
    right = (Case().made()(x[batch]).argmax(dim=1) == y[batch]).float().mean()
    assert found.run.history[-1].metrics["train/right"] == pytest.approx(float(right))


@pytest.mark.parametrize("strategy", [pl.LiveCompensation(quorum=1, blocks=2), pl.ModelAveraging(every=2)])
@pytest.mark.parametrize("fleet", FLEETS)
def test_a_run_with_a_step_is_resumed_to_the_bit(fleet: Any, strategy: Any, tmp_path: Path) -> None:
    """With everything that it logged, and what late workers handed in and is not used yet."""

    def run(updates: int, place: str) -> pl.Run:
        return pl.train(
            Case(step=logging).task(), strategy=strategy, fleet=fleet, optimizer=sgd, stop=pl.Stop(updates=updates),
            batch_size=6, micro_batches=2, progress=False, directory=tmp_path / place, resume=True,
            checkpoint=pl.Every(updates=1), every=pl.Every(updates=4),
        )  # fmt: skip

    run(3, "twice")
    resumed = run(8, "twice")
    at_once = run(8, "once")
    if fleet is not PROCESSES:
        for one, two in zip(resumed.model.parameters(), at_once.model.parameters(), strict=True):
            assert torch.equal(one, two)
        assert resumed.history[-1].metrics == at_once.history[-1].metrics
    assert resumed.history[-1].updates == 8
    assert 0.0 < resumed.history[-1].metrics["train/right"] < 1.0
    with pytest.raises(ConfigError, match="micro_batches"):
        pl.train(
            Case(step=logging).task(), strategy=strategy, fleet=fleet, optimizer=sgd, stop=pl.Stop(updates=9),
            batch_size=6, progress=False, directory=tmp_path / "once", resume=True, every=pl.Every(updates=4),
        )  # fmt: skip


def test_a_run_of_processes_with_a_step_is_replayed_to_the_bit(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "strategy": pl.LiveCompensation(quorum=1, blocks=2), "fleet": PROCESSES, "optimizer": sgd, "batch_size": 6,
        "micro_batches": 3,
    }  # fmt: skip
    task = CASES["dropout"]._replace(step=logging).task()
    pl.train(task, stop=pl.Stop(updates=6), progress=False, directory=tmp_path / "run", **asked)
    assert pl.replay(tmp_path / "run", task, **asked).same
