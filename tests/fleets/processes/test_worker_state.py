"""Optimizers' state that stays with the workers: what is exact, what begins anew, and what is refused."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline as pl
from paceline.core.messages import Halt, Left, Start
from paceline.storage import saved_models
from paceline.storage.checkpoint import read_checkpoint
from paceline.trace.format import FreshState
from support import faults
from support.digits import digits_task, weights
from support.local_models import mlp
from support.resumable import Case, dropout, replayed, sgd

HELD = pl.ProcessFleet(workers=3, threads=1, state="worker")
CASE = Case(pl.ModelAveraging(2), HELD, model=dropout, optimizer=sgd(momentum=0.9))


@pytest.fixture(autouse=True)
def architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_models, "_save_architecture", lambda *arguments: None)  # takes longer than the runs


def fresh(run: pl.Run) -> list[int]:
    return [fact.ticket.worker for fact in run.trace if isinstance(fact, FreshState)]


def test_where_nobody_is_lost_the_bits_are_those_of_a_server_that_keeps_it(tmp_path: Path) -> None:
    kept = CASE.run(tmp_path / "worker", pl.Stop(updates=4))
    sent = replace(CASE, fleet=replace(HELD, state="server")).run(tmp_path / "server", pl.Stop(updates=4))
    assert torch.equal(weights(kept.model), weights(sent.model))
    assert fresh(kept) == []
    states = [
        read_checkpoint(tmp_path / name / "checkpoint.safetensors")["server"]["trainers"][0]["aside"]["optimizer"]
        for name in ("worker", "server")
    ]
    assert [bool(state["state"]) for state in states] == [False, True]


def test_a_resumed_run_begins_with_fresh_optimizers_says_so_and_is_replayed_exactly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    CASE.run(tmp_path, pl.Stop(updates=2))
    with caplog.at_level(logging.WARNING, logger="paceline"):
        run = CASE.run(tmp_path, pl.Stop(updates=4), resume=True)
    assert sorted(fresh(run)) == [0, 1, 2]
    assert sum("begins with a fresh optimizer" in record.getMessage() for record in caplog.records) == 3
    found = replayed(CASE, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_a_killed_worker_begins_with_a_fresh_optimizer(tmp_path: Path) -> None:
    (marks := tmp_path / "marks").mkdir()
    alone = replace(HELD, workers=1)  # so that the run waits for the replacement
    model = faults.Struck(mlp(), faults.die, marks, at=6)  # in the second piece of a worker
    task = replace(digits_task(model), evaluate=lambda model: {"loss": 0.0})
    rule, optimizer = pl.ModelAveraging(4), sgd(momentum=0.9)
    run = pl.train(
        task, strategy=rule, fleet=alone, optimizer=optimizer, stop=pl.Stop(updates=5), batch_size=16,
        directory=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert fresh(run) == [fact.worker for fact in run.trace if isinstance(fact, Left)] == [0]
    found = pl.replay(tmp_path / "run", task, strategy=rule, fleet=alone, optimizer=optimizer, batch_size=16)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_halted_work_takes_the_state_with_it_in_a_replay_too(tmp_path: Path) -> None:
    slow = {2: pl.delays.Constant(0.2)}
    case = replace(CASE, strategy=pl.ModelAveraging(2, pl.FastestK(2)), fleet=replace(HELD, slow=slow))
    run = case.run(tmp_path, pl.Stop(updates=6))
    halted = [fact.ticket.worker for fact in run.trace if isinstance(fact, Halt)]
    assert halted
    later = [fact.ticket for fact in run.trace if isinstance(fact, Start)]
    assert {fact.ticket for fact in run.trace if isinstance(fact, FreshState)} <= {*later}
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (pl.Synchronous(), "state='worker' is about workers that train models of their own, and these hand in grad"),
        (pl.ModelAveraging(2, momentum="averaged"), "and momentum='averaged' averages it on the server: use 'server'"),
    ],
)
def test_what_cannot_keep_it_with_the_workers_is_refused(strategy: pl.strategy.Strategy, said: str) -> None:
    task = pl.Task(nn.Linear(4, 2), nn.functional.cross_entropy, (torch.rand(32, 4), torch.randint(2, (32,))))
    with pytest.raises(pl.ConfigError, match=said):
        pl.train(task, strategy=strategy, fleet=HELD, optimizer=torch.optim.SGD, stop=pl.Stop(updates=1), batch_size=4)
    with pytest.raises(pl.ConfigError, match="state='disk' is unknown: 'server' or 'worker'"):
        pl.ProcessFleet(2, state="disk")  # type: ignore[arg-type]
