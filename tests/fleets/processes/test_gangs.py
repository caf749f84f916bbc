"""Workers of several ranks: they compute what one process would, and live and die as one worker."""

import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.callbacks.base import WorkerEvent
from paceline.core.errors import ConfigError, WorkerFailed
from paceline.core.messages import Arrived
from paceline.fleets.processes.fork_server import FORK_SERVER
from paceline.learning.workload import workload_of
from support.digits import digits, digits_task, linear, weights
from support.processes import PATIENCE
from support.ranks import (
    StruckRank,
    Tied,
    averaged,
    killed,
    layers,
    mean_and_more,
    nothing,
    of_pairs,
    other_shapes,
    other_types,
    raised,
    sharded,
    stopped,
)

GANGS = pl.ProcessFleet(2, threads=1, ranks_per_worker=2)
SOON = pl.SilenceTimeout(factor=5.0, at_least=2.0, at_first=60.0)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def train(task: pl.Task, fleet: Any, strategy: Any = None, updates: int = 6, **options: Any) -> pl.Run:
    return pl.train(
        task, strategy=strategy or pl.Synchronous(), fleet=fleet, optimizer=sgd, stop=pl.Stop(updates=updates),
        batch_size=16, progress=False, **options,
    )  # fmt: skip


TASKS: dict[str, Callable[[], pl.Task]] = {
    "losses of samples": lambda: digits_task(layers()),
    "class weights": lambda: digits_task(layers(), nn.CrossEntropyLoss(torch.arange(1.0, 11.0, dtype=torch.float64))),
    "a step that logs": lambda: pl.Task(layers(), step=mean_and_more, train=digits()[0], test=digits()[1]),
    "tied and unused": lambda: digits_task(Tied()),
}


@pytest.mark.parametrize("name", TASKS)
def test_two_ranks_compute_what_one_process_does(name: str) -> None:
    """Three ranks have unequal parts of a block of 4 samples."""
    strategy = pl.LiveCompensation(2, blocks=4)
    alone = train(TASKS[name](), replace(GANGS, ranks_per_worker=1), strategy)
    for ranks in (2, 3):
        together = train(TASKS[name](), replace(GANGS, ranks_per_worker=ranks), strategy)
        assert torch.allclose(weights(alone.model), weights(together.model), rtol=1e-12, atol=1e-14)
        for one, other in zip(alone.history, together.history, strict=True):
            assert one.training_loss == pytest.approx(other.training_loss, rel=1e-12, nan_ok=True)
            assert one.metrics == pytest.approx(other.metrics, rel=1e-9, nan_ok=True)


def test_a_run_of_gangs_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    """Each rank draws its own dropout; statistics are averaged over ranks; late workers are recalled between blocks."""
    task = digits_task(layers(nn.BatchNorm1d(20, dtype=torch.float64), nn.Dropout(0.3)))
    strategy = pl.LiveCompensation(1, blocks=4)
    fleet = replace(GANGS, slow={1: 3.0})
    run = train(task, fleet, strategy, updates=12, directory=tmp_path)
    found = pl.replay(tmp_path, task, strategy=strategy, fleet=fleet, optimizer=sgd, batch_size=16)
    assert (found.differences, found.compared, found.same) == ({}, True, True)
    assert any(fact.done < 4 for fact in run.trace if isinstance(fact, Arrived))


class UntilReplaced(pl.Callback):
    """Ends the run when a worker has left and joined again."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def on_worker(self, event: WorkerEvent) -> str | None:
        self.told.append((event.kind, event.worker))
        return "replaced" if [kind for kind, _ in self.told][-2:] == ["left", "joined"] else None


@pytest.mark.parametrize("fault", [killed, stopped])
def test_a_worker_is_lost_with_any_of_its_ranks_and_replaced_as_one(fault: Callable[[], None], tmp_path: Path) -> None:
    """A stopped rank lets the others wait in a collective, until the worker has been silent for too long."""
    task = replace(digits_task(StruckRank(linear(), fault, tmp_path / "mark")), evaluate=lambda model: {"loss": 0.0})
    until = UntilReplaced()
    train(task, replace(GANGS, deadline=SOON), pl.Synchronous(), updates=10**6, callbacks=[until])
    (_, left), (_, joined) = until.told[-2:]
    assert until.told == [("joined", 0), ("joined", 1), ("left", left), ("joined", left)]
    assert joined == left
    psutil.wait_procs(psutil.Process(FORK_SERVER.pid).children(recursive=True), timeout=PATIENCE)
    assert psutil.Process(FORK_SERVER.pid).children(recursive=True) == []


def test_an_error_of_one_rank_is_that_of_the_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = replace(digits_task(StruckRank(linear(), raised, tmp_path / "mark")), evaluate=lambda model: {"loss": 0.0})
    run = train(task, replace(GANGS, min_workers=2, replace=False), updates=10**6)
    assert run.ended == "too few workers"
    assert re.search(r"(?s)raised an error while it ran t\d+:\s+rank 1: Traceback.*ValueError: only here", caplog.text)


def test_a_task_sets_up_its_model_with_ddp_or_fsdp2() -> None:
    """Both average over ranks; where classes have weights, the mean is one by these, over all ranks."""
    task = digits_task(layers(), nn.CrossEntropyLoss(torch.arange(1.0, 11.0, dtype=torch.float64)))
    strategy = pl.LiveCompensation(2, blocks=2)
    alone = train(task, replace(GANGS, ranks_per_worker=1), strategy, updates=4)
    for parallel in (averaged, sharded):
        together = train(replace(task, parallel=parallel), GANGS, strategy, updates=4)
        assert torch.allclose(weights(alone.model), weights(together.model), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            replace(digits_task(), parallel=other_shapes),
            "rank 1: ConfigError: parallel returned a module with 2 trained",
        ),
        (
            replace(digits_task(), parallel=other_types),
            "ConfigError: rank 1 has another model than rank 0: parameter 0",
        ),
        (replace(digits_task(), parallel=nothing), "ConfigError: parallel returned NoneType"),
        (digits_task(loss=of_pairs), "ConfigError: ranks_per_worker=2 needs a loss that is a mean over samples"),
    ],
)
def test_ranks_that_cannot_compute_together_say_so_in_one_line(task: pl.Task, said: str) -> None:
    with pytest.raises(WorkerFailed, match=said) as found:
        train(task, GANGS)
    assert len(str(found.value).splitlines()) == 2  # which worker, and why


def test_what_a_gang_cannot_do_is_refused_before_it_starts() -> None:
    with pytest.raises(ConfigError, match="ranks_per_worker=2 is for workers that hand in gradients"):
        train(digits_task(), GANGS, pl.ModelAveraging(4))
    with pytest.raises(ConfigError, match="ranks_per_worker=0 is not possible"):
        replace(GANGS, ranks_per_worker=0)
    with pytest.raises(ConfigError, match="2 devices for 2 workers of 2 ranks each: give one for each"):
        replace(GANGS, devices=["cpu", "cpu"])
    with pytest.raises(ConfigError, match="parallel=3 is no function"):
        replace(digits_task(), parallel=3)  # type: ignore[arg-type]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where other programs of the user are to listen. A fork server keeps the environment that it was started in."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    FORK_SERVER.close()
    yield
    FORK_SERVER.close()


def keys_of(address: Any) -> bytes:
    """What a ``TCPStore`` at an address answers to a stranger who asks how many keys it has."""
    with socket.create_connection((address.ip, address.port), timeout=5) as stranger:
        stranger.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\7")
        stranger.settimeout(0.5)
        try:
            return stranger.recv(8)
        except OSError:
            return b""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_ranks_meet_where_others_of_the_machine_cannot_and_listen_there_alone(start: str, elsewhere: None) -> None:
    fleet = replace(GANGS, workers=1, min_workers=1, start=start)
    group, _ = fleet.launch(workload_of(digits_task(), [], 32), seed=0)
    with closing(group):
        group.wait()
        ranks = [psutil.Process(group.pids[0]), *psutil.Process(group.pids[0]).children()]
        found = [each.laddr for rank in ranks for each in rank.net_connections() if each.status == psutil.CONN_LISTEN]
        assert len(ranks) == 2
        assert {address.ip for address in found} == {"127.0.0.1"}
        assert [keys_of(address) for address in found] == [b""] * len(found)


def test_that_parallel_has_no_effect_on_one_rank_is_said(caplog: pytest.LogCaptureFixture) -> None:
    train(replace(digits_task(), parallel=averaged), pl.ProcessFleet(1, threads=1), updates=1)
    assert "parallel= has no effect" in caplog.text
