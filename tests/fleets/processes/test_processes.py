"""Worker processes: what they compute, what they may be given, and what they cost."""

import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Dataset

import paceline as pl
from paceline.core.errors import WorkerFailed
from paceline.core.messages import Arrived, Joined, Recall, Start, Ticket
from paceline.learning.workload import workload_of
from support.ddp import train_with_ddp
from support.digits import Noted, digits, digits_task
from support.until import UntilAll


def train(
    task: pl.Task,
    strategy: pl.strategy.Strategy,
    fleet: pl.ProcessFleet | pl.SimulatedFleet,
    updates: int,
    **options: Any,
) -> pl.Run:
    options = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1), "progress": False, **options}
    return pl.train(task, strategy=strategy, fleet=fleet, stop=pl.Stop(updates=updates), **options)


def weights(run: pl.Run) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def assert_close(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0.0, atol=tolerance)


def exact(workers: int) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, evaluation="exact")


# What they compute


def test_synchronous_equals_ddp_on_the_same_batches(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    (x, y), _ = digits()
    ways: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}]
    sampling, runs = Noted(), list[pl.Run]()
    for sgd in ways:
        optimizer = partial(torch.optim.SGD, **sgd)
        task = pl.Task(model, cross_entropy, (x.float(), y))
        sampling.draws.clear()
        runs.append(train(task, pl.Synchronous(), pl.ProcessFleet(2), 50, sampling=sampling, optimizer=optimizer))
    batches = [[torch.tensor(batch) for batch in sampling.draws[rank][:50]] for rank in range(2)]
    for run, expected in zip(runs, train_with_ddp(model, (x.float(), y), batches, ways, tmp_path), strict=True):
        assert_close(weights(run), expected, 1e-6)


def test_synchronous_equals_the_simulator_and_repeats_its_bits() -> None:
    runs = [train(digits_task(), pl.Synchronous(), pl.ProcessFleet(3, slow={0: 2.0}), 30) for _ in range(2)]
    assert_close(weights(runs[0]), weights(runs[1]), 0.0)
    assert_close(weights(runs[0]), weights(train(digits_task(), pl.Synchronous(), exact(3), 30)), 1e-12)


def test_batch_norm_and_dropout_are_as_in_the_simulator() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)).double()
    task = digits_task(model)
    assert_close(
        weights(train(task, pl.Synchronous(), pl.ProcessFleet(2), 10)),
        weights(train(task, pl.Synchronous(), exact(2), 10)), 1e-12,
    )  # fmt: skip
    dropout = digits_task(nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10)).double())
    assert_close(
        weights(train(dropout, pl.Synchronous(), pl.ProcessFleet(2), 10)),
        weights(train(dropout, pl.Synchronous(), exact(2), 10)), 1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("loss", [mse_loss, lambda a, b: ((a - b) ** 2).sum().sqrt()], ids=["mean", "norm of all"])
def test_datasets_and_losses_of_one_s_own(loss: Any) -> None:
    class Squares(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return torch.tensor([index / 64]), torch.tensor([(index / 64) ** 2])

    torch.manual_seed(0)
    task = pl.Task(nn.Linear(1, 1), loss, Squares())
    runs = [train(task, pl.Synchronous(), fleet, 8, batch_size=4) for fleet in (pl.ProcessFleet(2), exact(2))]
    assert_close(weights(runs[0]), weights(runs[1]), 1e-6)
    assert runs[0].history[-1].training_loss == pytest.approx(runs[1].history[-1].training_loss, rel=1e-4)


def test_mixed_precision_parameters_are_summed_each_in_its_own_type() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(64, 8), nn.Linear(8, 10, dtype=torch.float64)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.second(torch.tanh(self.first(inputs.float())).double())
            return outputs

    runs = [train(digits_task(Mixed()), pl.Asynchronous(), fleet, 1) for fleet in (pl.ProcessFleet(1), exact(1))]
    assert_close(weights(runs[0]), weights(runs[1]), 1e-6)


def test_samplers_that_watch_see_every_sample_s_loss() -> None:
    seen = [Noted(), Noted()]
    train(digits_task(), pl.Synchronous(), pl.ProcessFleet(2), 5, sampling=seen[0])
    train(digits_task(), pl.Synchronous(), exact(2), 5, sampling=seen[1])
    for worker in range(2):
        for (one, ours), (other, theirs) in zip(seen[0].losses[worker], seen[1].losses[worker], strict=True):
            assert one == other
            assert ours == pytest.approx(theirs, abs=1e-9)


def test_the_model_and_its_files_outlive_the_workers(tmp_path: Path) -> None:
    run = train(digits_task(), pl.Asynchronous(), pl.ProcessFleet(2), 20, directory=tmp_path / "run")
    from safetensors.torch import load_file

    assert_close(weights(run), load_file(tmp_path / "run" / "model.safetensors"), 0.0)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.add_(1.0)
    assert run.trace.about["clock"] == "real"


# What they may be given


def test_closures_and_lambdas_work() -> None:
    factor = 2.0
    task = digits_task(loss=lambda outputs, targets: factor * cross_entropy(outputs, targets))
    assert train(task, pl.Synchronous(), pl.ProcessFleet(2), 3).ended == "updates"


def test_what_cannot_be_sent_is_refused_with_the_reason() -> None:
    lock = threading.Lock()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        with lock:
            return cross_entropy(outputs, targets)

    with pytest.raises(pl.ConfigError, match=r"cannot be sent to worker processes: .*lock"):
        train(digits_task(loss=loss), pl.Synchronous(), pl.ProcessFleet(2), 3)


def test_what_user_code_raises_surfaces_with_the_worker_and_its_traceback() -> None:
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ZeroDivisionError("on purpose")

    task = replace(digits_task(loss=broken), evaluate=lambda model: {"loss": 0.0})
    with pytest.raises(WorkerFailed, match=r"(?s)worker \d raised an error while it ran t\d.*in broken.*on purpose"):
        train(task, pl.Synchronous(), pl.ProcessFleet(2), 3)


def test_what_cannot_be_unpacked_surfaces_too() -> None:
    home = os.getpid()

    class Homebody(nn.Linear):
        def __setstate__(self, state: dict[str, Any]) -> None:
            assert os.getpid() == home, "stays at home"
            super().__setstate__(state)  # type: ignore[no-untyped-call]

    with pytest.raises(WorkerFailed, match=r"(?s)worker \d raised an error while it started.*stays at home"):
        train(digits_task(Homebody(64, 10, dtype=torch.float64)), pl.Synchronous(), pl.ProcessFleet(2), 3)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"workers": 0}, "0 workers can do nothing"),
        ({"workers": 2, "threads": 0}, "threads=0"),
        ({"workers": 2, "min_workers": 3}, "min_workers=3 does not fit 2 workers"),
        ({"workers": 2, "slow": {2: 4.0}}, "slow names worker 2"),
        ({"workers": 2, "slow": {1: 0.5}}, "cannot be 0.5 times as slow"),
    ],
)
def test_impossible_fleets_are_refused(asked: dict[str, Any], why: str) -> None:
    with pytest.raises(pl.ConfigError, match=why):
        pl.ProcessFleet(**asked)


@pytest.mark.parametrize("asked", [{"factor": 1.0}, {"at_least": 0.0}, {"at_first": float("inf")}])
def test_impossible_deadlines_are_refused(asked: dict[str, float]) -> None:
    with pytest.raises(pl.ConfigError, match=next(iter(asked))):
        pl.SilenceTimeout(**asked)


# Time


def took(run: pl.Run, worker: int) -> float:
    return median(seconds for number, seconds in run.trace.durations() if number == worker)


def test_workers_can_be_made_slow() -> None:
    fleet = pl.ProcessFleet(3, slow={1: pl.delays.Constant(0.1), 2: pl.delays.Empirical([0.2, 0.3], in_order=True)})
    run = train(digits_task(), pl.Synchronous(), fleet, 6)
    durations: dict[int, list[float]] = {}
    for worker, seconds in run.trace.durations():
        durations.setdefault(worker, []).append(seconds)
    assert min(durations[1]) >= 0.1
    assert min(durations[2]) >= 0.2
    assert min(durations[2][1::2]) >= 0.3
    assert min(durations[0]) < min(durations[1])


def test_workers_may_be_ready_before_the_server_listens() -> None:
    """Then it hears of a process's birth, and from the process itself, at the same moment."""
    for _ in range(2):  # torch is loaded where processes come from only when the first are needed
        group, _ = pl.ProcessFleet(2).launch(workload_of(digits_task(), [], 32), seed=0)
        with closing(group):
            time.sleep(1.0)
            assert [event.worker for event in group.wait() if isinstance(event, Joined)] == [0, 1]
            assert group.pids.keys() == group.ready == {0, 1}


def test_a_factor_makes_a_worker_so_many_times_as_slow() -> None:
    def leisurely(outputs: Tensor, targets: Tensor) -> Tensor:
        time.sleep(0.02)
        return cross_entropy(outputs, targets)

    run = train(digits_task(loss=leisurely), pl.Synchronous(), pl.ProcessFleet(2, slow={1: 5.0}), 5)
    assert min(seconds for worker, seconds in run.trace.durations() if worker == 1) >= 5 * 0.02


def test_a_recalled_worker_hands_in_its_finished_blocks() -> None:
    # 10 blocks of 0.1 s; the others are done at once, so that worker 2 is recalled while it is at its first block
    fleet = pl.ProcessFleet(3, slow={2: pl.delays.Constant(1.0)})
    run = train(digits_task(), pl.LiveCompensation(2, blocks=10), fleet, 6, batch_size=20)
    recalled = {fact.ticket for fact in run.trace if isinstance(fact, Recall)}
    done = [fact.done for fact in run.trace if isinstance(fact, Arrived) and fact.ticket in recalled]
    assert min(done) < 10


def test_nobody_burns_the_processor_while_waiting() -> None:
    fleet = pl.ProcessFleet(2, slow={0: pl.delays.Constant(1.5), 1: pl.delays.Constant(1.5)})
    group, contributions = fleet.launch(workload_of(digits_task(), [], 32), seed=0)
    with closing(group):
        group.wait()
        pids = [*group.pids.values(), os.getpid()]
        before = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids]
        for worker in range(2):
            ticket = Ticket(worker, worker, 0)
            contributions.promise(ticket, (np.arange(32),), 0)
            group.start(ticket)
        assert [type(event) for _ in range(2) for event in group.wait()] == [Arrived, Arrived]
        used = [sum(psutil.Process(pid).cpu_times()[:2]) - ago for pid, ago in zip(pids, before, strict=True)]
    assert max(used) < 0.3  # of a second and a half


def test_workers_are_gone_after_the_run() -> None:
    def workers() -> set[int]:
        me = psutil.Process()
        alive = [child for child in me.children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
        return {child.pid for child in alive if not any("multiprocessing" in part for part in child.cmdline())}

    train(digits_task(), pl.Synchronous(), pl.ProcessFleet(2), 2)
    fork_server = workers()
    descriptors = psutil.Process().num_fds()
    for _ in range(3):
        train(digits_task(), pl.Asynchronous(), pl.ProcessFleet(3), 5)
    assert workers() == fork_server
    assert len(fork_server) == 1, [psutil.Process(pid).cmdline() for pid in fork_server]
    assert psutil.Process().num_fds() == descriptors


def test_tickets_name_the_version_that_was_downloaded() -> None:
    fleet = pl.ProcessFleet(3, slow={0: 4.0})
    run = train(digits_task(), pl.Asynchronous(), fleet, 10**6, callbacks=[UntilAll(3, updates=3)])
    made = 0
    for fact in run.trace:
        if isinstance(fact, Start):
            assert fact.ticket.version == made
        made += type(fact).__name__ == "Step"
    assert run.max_staleness >= 1
