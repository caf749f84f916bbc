"""Pruning on real processes: losses come back with the gradients, whoever computes them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline as pl
from paceline.core.messages import Left
from paceline.randomness import stream
from support import faults
from support.digits import digits_task, linear
from support.resumable import PASSES, PRUNING, Case, replayed, sgd

FLEET = pl.ProcessFleet(workers=3, threads=1)
STRATEGIES: Mapping[str, pl.strategy.Strategy] = {
    "synchronous": pl.Synchronous(),
    "asynchronous": pl.Asynchronous(),
    "fastest": pl.FastestK(2),
    "fastest, late ones finish": pl.FastestK(2, stop_late=False),
    "compensation": pl.LiveCompensation(2, blocks=4),
    "grouped": pl.Grouped([[0], [1, 2]]),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_prunes_on_processes(name: str, tmp_path: Path) -> None:
    """Made again in one process from its trace, the run comes to the same weights and the same record."""
    case = Case(STRATEGIES[name], FLEET, sampling=PRUNING)
    run = case.run(tmp_path, pl.Stop(updates=24))
    record = run.pruning
    assert record is not None
    passes = Counter(worker for worker, *_ in record.passes)
    assert all(kept == held - round(0.7 * held) for _, _, held, kept in record.passes)
    assert max(passes.values()) >= 2  # the second pass was chosen by the losses of the first
    assert record.times_stood_out.sum() > 0
    assert record.times_pruned.sum() == sum(held - kept for _, _, held, kept in record.passes)
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)
    assert found.run.pruning is not None
    assert found.run.pruning.times_stood_out.tolist() == record.times_stood_out.tolist()


def test_the_counts_are_those_of_the_losses_that_came_back(tmp_path: Path) -> None:
    """One pass of one worker, at the weights that all its gradients were computed at: a step of almost nothing."""
    pruning = pl.FinePruning(samples=400, **{**PASSES, "start": 19})
    case = Case(fleet=pl.ProcessFleet(workers=1), sampling=pruning, optimizer=sgd(1e-30))
    run = case.run(tmp_path, pl.Stop(updates=50))
    task = digits_task()
    inputs, targets = task.training_samples().fetch(np.arange(400))
    losses = torch.nn.functional.cross_entropy(linear()(inputs), targets, reduction="none").detach().numpy()
    order = stream(3, "batches").permutation(400).reshape(50, 8)  # the seed of the case
    expected = np.zeros(400, dtype=int)
    for batch in order:
        expected[batch] = losses[batch] >= losses[batch].mean()
    assert run.pruning is not None
    assert run.pruning.times_stood_out.tolist() == expected.tolist()


def test_the_shard_of_a_killed_worker_is_pruned_on_by_others(tmp_path: Path) -> None:
    """Its memory outlives it: whoever draws from the shard leaves out what its own losses say."""
    (tmp_path / "marks").mkdir()
    model = faults.Struck(linear(), faults.die, tmp_path / "marks", at=5)
    # judged without the model, which would strike the server itself
    task = replace(digits_task(model), evaluate=lambda model: {"loss": 0.0})
    arguments: dict[str, Any] = {
        "strategy": pl.Synchronous(), "fleet": replace(FLEET, replace=False), "optimizer": sgd(0.1),
        "sampling": pl.ReassignShards(pl.FinePruning(samples=1500, **PASSES)),
    }  # fmt: skip
    run = pl.train(task, **arguments, stop=pl.Stop(updates=40), directory=tmp_path / "run", progress=False)
    (left,) = (fact for fact in run.trace if isinstance(fact, Left))
    record = run.pruning
    assert record is not None
    # at its death it was in its second pass of four batches; then two draw for three, 34 updates long
    passes = Counter(worker for worker, *_ in record.passes)
    assert passes[left.worker] >= 6
    assert {(held, kept) for _, _, held, kept in record.passes} == {(500, 150)}
    found = pl.replay(tmp_path / "run", task, **arguments)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)
