"""Whatever happens to a worker process, training goes on, nothing is used twice, and every loss is in the trace."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline.core.messages import Arrived, Drop, Halt, Joined, Left, Start, Step, Ticket
from paceline.data.partition import Indices, Labelled
from paceline.learning.workload import workload_of
from paceline.testing.retraced import WrittenDown, retrace
from paceline.trace.format import NonFinite
from paceline.trace.reading import Trace
from support import faults
from support.digits import digits_task, linear
from support.processes import PATIENCE, reaped
from support.until import Until, UntilAll

TESTS = Path(__file__).parents[2]
LATE = pl.Stop(seconds=100.0)
SOON = pl.SilenceTimeout(factor=5.0, at_least=2.0, at_first=60.0)
STRATEGIES = [
    pl.Synchronous(),
    pl.Asynchronous(),
    pl.FastestK(2),
    pl.LiveCompensation(2, blocks=4),
    pl.Grouped([[0, 1], [2]]),
]


def struck(fault: faults.Fault, marks: Path, at: int = 3, times: int = 1) -> pl.Task:
    marks.mkdir(exist_ok=True)
    model = faults.Struck(linear(), fault, marks, at=at, times=times)
    # evaluated without the model, which would strike the server itself
    return replace(digits_task(model), evaluate=lambda model: {"loss": 0.0})


def train(task: pl.Task, strategy: pl.strategy.Strategy, fleet: Any, updates: int = 40, **options: Any) -> pl.Run:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    stop = options.pop("stop", pl.Stop(updates=updates))
    return pl.train(task, strategy=strategy, fleet=fleet, optimizer=sgd, stop=stop, progress=False, **options)


def check_conserved(trace: Trace) -> None:
    """Every ticket runs, is handed in at most once, and is settled at most once; who leaves has its ticket halted."""
    state: dict[Ticket, str] = {}
    running: dict[int, Ticket] = {}
    here: set[int] = set()

    def move(ticket: Ticket, before: str | None, after: str) -> None:
        assert state.get(ticket) == before, f"{ticket} is {state.get(ticket)}, and cannot become {after}"
        state[ticket] = after

    for fact in trace:
        if isinstance(fact, Joined):
            here.add(fact.worker)
        elif isinstance(fact, Left):
            here.remove(fact.worker)
        elif isinstance(fact, Start):
            assert fact.ticket.worker in here
            assert fact.ticket.worker not in running
            running[fact.ticket.worker] = fact.ticket
            move(fact.ticket, None, "running")
        elif isinstance(fact, Arrived | Halt):
            del running[fact.ticket.worker]
            move(fact.ticket, "running", "held" if isinstance(fact, Arrived) else "settled")
        elif isinstance(fact, Drop):
            move(fact.ticket, "held", "settled")
        elif isinstance(fact, Step):
            for ticket in fact.weights:
                move(ticket, "held", "held" if ticket in fact.keep else "settled")
        assert set(running) <= here | {fact.worker for fact in [fact] if isinstance(fact, Left)}


def of_type(trace: Trace, kind: type) -> list[Any]:
    return [fact for fact in trace if isinstance(fact, kind)]


# Death


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "fault",
    [faults.die, faults.die_while_handing_in, faults.die_before_telling, faults.die_after_handing_in],
    ids=lambda fault: fault.__name__,
)
def test_a_killed_worker_is_replaced(
    fault: faults.Fault, strategy: pl.strategy.Strategy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task, written = struck(fault, tmp_path / "marks"), WrittenDown()
    fleet = pl.ProcessFleet(3, slow={worker: pl.delays.Constant(0.005) for worker in range(3)})
    run = train(task, strategy, fleet, sampling=written, stop=LATE, callbacks=[Until("left", updates=40)])
    assert run.ended == "seen"
    assert run.non_finite == []  # nothing half-written was used
    (left,) = of_type(run.trace, Left)
    assert [joined.worker for joined in of_type(run.trace, Joined)[3:]] in ([left.worker], [])
    check_conserved(run.trace)
    assert f"worker {left.worker} was killed by SIGKILL while it" in caplog.text
    assert "a replacement is on its way" in caplog.text
    expected = retrace(run.trace, written.draws, replace(task, model=linear()), 0.1, run.history[-1].updates)
    for one, other in zip(run.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)


def test_what_was_handed_in_before_death_counts(tmp_path: Path) -> None:
    task = struck(faults.die_after_handing_in, tmp_path / "marks", at=0)
    run = train(task, pl.Synchronous(), pl.ProcessFleet(2, replace=False), 3)
    (left,) = of_type(run.trace, Left)
    first = next(step for step in of_type(run.trace, Step))
    assert {ticket.worker for ticket in first.weights} == {0, 1}
    assert left.worker in {ticket.worker for ticket in first.weights}


def test_death_is_noticed() -> None:
    """Of workers that have nothing to do, so that no deadline ends. How soon: benchmarks/process_costs.py."""
    group, _ = pl.ProcessFleet(3).launch(workload_of(digits_task(), [], 32), seed=0)
    with closing(group):
        group.wait()
        for number in range(12):  # four each: after five without work in between there is no replacement
            worker = number % 3
            os.kill(group.pids[worker], signal.SIGKILL)
            (left,) = group.wait()
            assert isinstance(left, Left)
            assert left.worker == worker
            (joined,) = group.wait()
            assert isinstance(joined, Joined)
            assert joined.at >= left.at


def test_all_workers_at_once(tmp_path: Path) -> None:
    task = struck(faults.die, tmp_path / "marks", times=3)
    run = train(task, pl.Synchronous(), pl.ProcessFleet(3), 30)
    assert run.ended == "updates"
    assert Counter(left.worker for left in of_type(run.trace, Left)) == {0: 1, 1: 1, 2: 1}
    check_conserved(run.trace)


# Those that are stopped, stuck, or broken


@pytest.mark.parametrize("fault", [faults.stop, faults.hang], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(
    "strategy", [pl.Synchronous(), pl.Asynchronous(), pl.FastestK(1)], ids=lambda s: type(s).__name__
)
def test_a_silent_worker_is_given_up_at_a_deadline_learnt_from_its_past(
    fault: faults.Fault, strategy: pl.strategy.Strategy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # each is the faster one in its turn: of a worker that is always too late nothing is learnt
    slow = {0: pl.delays.Empirical([0.01, 0.06], in_order=True), 1: pl.delays.Empirical([0.06, 0.01], in_order=True)}
    fleet = pl.ProcessFleet(2, slow=slow, deadline=SOON)
    task = struck(fault, tmp_path / "marks", at=9)
    run = train(task, strategy, fleet, stop=LATE, callbacks=[Until("left")])
    left, *_ = of_type(run.trace, Left)  # on a machine that stands still now and then, others may be given up too
    assert f"worker {left.worker} was silent for" in caplog.text
    assert ": the slowest of its last" in caplog.text
    assert run.ended == "seen"
    check_conserved(run.trace)


def test_a_worker_that_goes_on_in_time_is_kept(tmp_path: Path) -> None:
    task = struck(faults.stop_for_a_while, tmp_path / "marks", at=5)
    run = train(task, pl.Synchronous(), pl.ProcessFleet(2, deadline=replace(SOON, at_least=60.0)), 30)
    assert (run.ended, of_type(run.trace, Left)) == ("updates", [])
    assert max(seconds for _, seconds in run.trace.durations()) >= 0.3


@pytest.mark.parametrize("fault", [faults.fail, faults.leave], ids=lambda fault: fault.__name__)
def test_a_worker_that_raises_is_replaced_and_its_traceback_told(
    fault: faults.Fault, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Until("left", "joined", updates=20)
    run = train(struck(fault, tmp_path / "marks"), pl.Asynchronous(), pl.ProcessFleet(2), stop=LATE, callbacks=[seen])
    (left,) = of_type(run.trace, Left)
    assert f"worker {left.worker} raised an error while it ran t" in caplog.text
    assert f"in {fault.__name__}" in caplog.text
    assert run.ended == "seen"


def test_a_worker_that_keeps_raising_is_not_replaced_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handed_in, asked = tmp_path / "handed in", list[Tensor]()

    def unlucky(outputs: Tensor, targets: Tensor) -> Tensor:
        if (targets == 9).any():
            while not handed_in.exists():  # if nothing ever was, the run would end at once
                time.sleep(0.01)
            raise ValueError("no nines, please")
        asked.append(targets)
        if len(asked) > 1 and not torch.equal(asked[0], targets):  # another mini-batch
            handed_in.touch()
        return nn.functional.cross_entropy(outputs, targets)

    class NinesApart:
        def shards(self, samples: Labelled, workers: int, generator: np.random.Generator) -> list[Indices]:
            return [np.flatnonzero(samples.targets() != 9), np.flatnonzero(samples.targets() == 9)]

    task = replace(digits_task(loss=unlucky), evaluate=lambda model: {"loss": 0.0})
    fleet = pl.ProcessFleet(2, min_workers=2, slow={0: pl.delays.Constant(0.01)})
    run = train(task, pl.Asynchronous(), fleet, 10**6, partition=NinesApart())
    assert [left.worker for left in of_type(run.trace, Left)] == [1] * 5
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert sum("worker 1 raised an error while it ran" in each and "no nines, please" in each for each in told) == 5
    assert "; it is not replaced" in caplog.text
    assert run.ended == "too few workers"
    assert "no nines, please" in (run.problem or "")
    check_conserved(run.trace)


def test_contributions_that_are_not_finite_are_left_out() -> None:
    class Spoiling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.passes = linear(), 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.passes += 1
            outputs: Tensor = self.model(inputs) * (float("nan") if self.passes == 4 else 1.0)
            return outputs

    task = replace(digits_task(Spoiling()), evaluate=lambda model: {"loss": 0.0})
    run = train(task, pl.Asynchronous(), pl.ProcessFleet(3), stop=LATE, callbacks=[UntilAll(3, updates=5)])
    assert len(run.non_finite) == 3  # each worker's fourth
    assert len(of_type(run.trace, NonFinite)) == 3
    assert all(torch.isfinite(parameter).all() for parameter in run.model.parameters())
    check_conserved(run.trace)


# Too few


def test_below_the_minimum_the_run_stops_and_says_why(tmp_path: Path) -> None:
    fleet = pl.ProcessFleet(3, min_workers=3, replace=False)
    run = train(struck(faults.die, tmp_path / "marks"), pl.Synchronous(), fleet, 1000, directory=tmp_path / "run")
    assert run.ended == "too few workers"
    assert run.problem is not None
    assert "2 of 3 workers are left, and min_workers=3" in run.problem
    assert "was killed by SIGKILL" in run.problem
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert len(of_type(run.trace, Left)) == 1


def test_below_the_minimum_a_checkpoint_is_left_that_the_run_can_go_on_from(tmp_path: Path) -> None:
    fleet, task = pl.ProcessFleet(3, min_workers=3, replace=False), struck(faults.die, tmp_path / "marks")
    stopped = train(task, pl.Synchronous(), fleet, 1000, directory=tmp_path / "run")
    assert stopped.ended == "too few workers"
    reached = stopped.history[-1].updates
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    resumed = train(task, pl.Synchronous(), fleet, reached + 5, directory=tmp_path / "run", resume=True)
    assert resumed.ended == "updates"
    assert len(of_type(resumed.trace, Step)) == reached + 5  # nothing was made twice


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_nobody_left_is_no_deadlock(strategy: pl.strategy.Strategy, tmp_path: Path) -> None:
    task = struck(faults.die, tmp_path / "marks", times=3)
    run = train(task, strategy, pl.ProcessFleet(3, replace=False), 100_000)
    assert run.ended == "too few workers"
    assert len(of_type(run.trace, Left)) == 3
    check_conserved(run.trace)


# The parent


def test_the_parent_s_death_leaves_neither_process_nor_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "support.endless_processes"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TESTS)
    with reaped(parent):
        assert parent.stdout is not None
        assert parent.stdout.readline() == "trained\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) == 4  # the fork server and its three workers
        maps = [Path(f"/proc/{pid}/maps").read_text() for pid in (parent.pid, *(each.pid for each in family))]
        assert any("memfd:paceline" in text for text in maps)
        assert not any("/dev/shm" in text for text in maps)  # what they share has no name: it cannot outlive them
        os.kill(family[-1].pid, signal.SIGSTOP)  # even one that cannot do anything about it
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert alive == []


def test_ctrl_c_lets_the_workers_go() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-m", "support.endless_processes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, cwd=TESTS,
    )  # fmt: skip
    with reaped(parent):
        assert parent.stdout is not None
        assert parent.stdout.readline() == "trained\n"
        family = psutil.Process(parent.pid).children(recursive=True)
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to everybody
        _, errors = parent.communicate(timeout=PATIENCE)
    assert "KeyboardInterrupt" in errors
    assert "worker" not in errors
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert alive == []
