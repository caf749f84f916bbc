"""Worker processes that train models of their own: whatever happens to one, what it had handed in is what goes on."""

import logging
import os
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import paceline as pl
from paceline import delays
from paceline.core.messages import Arrived, Event, Halt, Joined, Left, Step, Ticket
from paceline.fleets.processes.channel import READY, RECORD
from paceline.fleets.processes.group import ProcessWorkers, WorkerHandle
from paceline.learning.arena.arena import Layout, Promise, Report
from paceline.learning.gradients.distributed import DistributedGradients, MemoryMachine
from paceline.learning.model_state import ModelState
from paceline.learning.models.shared import NO_INDICES
from paceline.trace.format import NonFinite
from paceline.trace.reading import Trace
from support import faults
from support.digits import digits_task, weights
from support.local_models import mlp, sgd
from support.until import Until

EC = pl.EnsembleCompression
SOON = pl.SilenceTimeout(factor=5.0, at_least=1.5, at_first=60.0)
FAULTS = [faults.die, faults.die_before_telling, faults.die_after_handing_in]
STRATEGIES = [
    pl.ModelAveraging(4),
    pl.ModelAveraging(4, waits=pl.FastestK(2)),
    pl.ModelAveraging(4, waits=pl.Grouped([[0, 1], [2]])),
    EC(4, compression_steps=2),
]


def task(model: nn.Module) -> pl.Task:
    return replace(digits_task(model), evaluate=lambda model: {"loss": 0.0})


def struck(fault: faults.Fault, marks: Path, at: int, **layers: Any) -> pl.Task:
    marks.mkdir(exist_ok=True)
    return task(faults.Struck(mlp(**layers), fault, marks, at=at))


def train(task: pl.Task, strategy: pl.strategy.Strategy, fleet: Any, updates: int, **options: Any) -> pl.Run:
    return pl.train(
        task, strategy=strategy, fleet=fleet, optimizer=sgd(momentum=0.9), stop=pl.Stop(updates=updates), batch_size=16,
        progress=False, **options,
    )  # fmt: skip


def of_type(trace: Trace, kind: type) -> list[Any]:
    return [fact for fact in trace if isinstance(fact, kind)]


@pytest.mark.parametrize("strategy", [pl.ModelAveraging(4), EC(4, compression_steps=2)], ids=lambda s: type(s).__name__)
def test_a_replacement_goes_on_as_if_nothing_had_happened(strategy: pl.strategy.Strategy, tmp_path: Path) -> None:
    """Killed with SIGKILL in the middle of its third piece: model, momentum and dropout are those of its second."""
    fault = struck(faults.die, tmp_path / "marks", at=10, dropout=0.3)
    run = train(fault, strategy, pl.ProcessFleet(1, threads=1), 5)
    assert len(of_type(run.trace, Left)) == len(of_type(run.trace, Halt)) == 1
    undisturbed = train(task(mlp(dropout=0.3)), strategy, pl.SimulatedFleet(pl.delays.Constant(1.0), workers=1), 5)
    assert torch.equal(weights(run.model), weights(undisturbed.model))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_killed_worker_is_replaced_and_the_run_follows_from_its_trace(
    strategy: pl.strategy.Strategy, tmp_path: Path
) -> None:
    number = STRATEGIES.index(strategy)
    fault = struck(FAULTS[number % len(FAULTS)], tmp_path / "marks", at=6)
    fleet = pl.ProcessFleet(3, threads=1, slow=dict.fromkeys(range(3), pl.delays.Constant(0.02)))
    seen = Until("left", "joined", updates=4)
    run = train(fault, strategy, fleet, 10**6, directory=tmp_path / "run", callbacks=[seen])
    assert (run.ended, run.non_finite) == ("seen", [])
    (left,) = of_type(run.trace, Left)
    assert [joined.worker for joined in of_type(run.trace, Joined)[3:]] == [left.worker]
    used = [ticket for step in of_type(run.trace, Step) for ticket in step.weights]
    assert len(used) == len(set(used))
    found = pl.replay(
        tmp_path / "run", fault, strategy=strategy, fleet=fleet, optimizer=sgd(momentum=0.9), batch_size=16
    )
    assert (found.departure, found.differences, found.compared) == (None, {}, True)


def test_a_worker_stopped_within_a_piece_is_given_up_and_a_long_piece_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Deadlines are for one mini-batch: a piece of 40 takes longer than that."""
    fleet = pl.ProcessFleet(2, slow={0: pl.delays.Constant(0.06), 1: pl.delays.Constant(0.06)}, deadline=SOON)
    run = train(struck(faults.stop, tmp_path / "marks", at=45), pl.ModelAveraging(40), fleet, 3)
    left = of_type(run.trace, Left)  # on a machine that stands still now and then, others may be given up too
    assert any(f"worker {each.worker} was silent for" in caplog.text for each in left)
    assert re.search(r"the slowest of its last \d+ mini-batches took 0\.\d+ s", caplog.text)
    assert 40 * max(seconds for _, seconds in run.trace.durations()) > SOON.at_least
    assert run.ended == "updates"


@pytest.mark.parametrize("strategy", [pl.ModelAveraging(4), EC(4, compression_steps=2)], ids=lambda s: type(s).__name__)
def test_a_model_that_is_not_finite_is_left_out_reported_and_reset(
    strategy: pl.strategy.Strategy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "paceline"):
        run = train(task(faults.SpoiltOnce(mlp(), tmp_path / "spoilt", at=6)), strategy, pl.ProcessFleet(3), 5)
    assert run.ended == "updates"
    assert [fact.ticket for fact in of_type(run.trace, NonFinite)] == list(run.non_finite)
    assert len(run.non_finite) == 1
    assert f"leaves out worker {run.non_finite[0].worker}: its model is not finite" in caplog.text
    assert bool(weights(run.model).isfinite().all())
    assert len(of_type(run.trace, Step)[-1].weights) == 3  # it is back


def test_what_user_code_raises_surfaces_with_its_worker() -> None:
    def unlucky(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ZeroDivisionError("on purpose")

    broken = replace(task(mlp()), loss=unlucky)
    with pytest.raises(pl.PacelineError, match=r"(?s)worker . raised an error while it ran t.*on purpose"):
        train(broken, pl.ModelAveraging(4), pl.ProcessFleet(2), 3)


def test_late_ones_are_halted_and_nothing_of_theirs_is_used() -> None:
    fleet = pl.ProcessFleet(3, slow={2: pl.delays.Constant(0.3)})
    run = train(task(mlp()), pl.ModelAveraging(50, waits=pl.FastestK(2)), fleet, 4)
    assert {ticket.worker for step in of_type(run.trace, Step) for ticket in step.weights} == {0, 1}
    halted = [fact.ticket for fact in of_type(run.trace, Halt)]
    assert {ticket.worker for ticket in halted} == {2}


def test_every_worker_begins_with_weights_of_its_own_and_the_ensemble_can_be_loaded(tmp_path: Path) -> None:
    run = pl.train(
        digits_task(mlp()), strategy=EC(10, "regression", steps=30), fleet=pl.ProcessFleet(3), optimizer=sgd(),
        directory=tmp_path / "run", progress=False,
    )  # fmt: skip
    members = [weights(member) for member in run.model.get_submodule("members").children()]
    assert len(members) == 3
    assert not torch.equal(members[0], members[1])
    assert run.costs is None  # real time: what took how long is in the trace
    loaded = pl.load(tmp_path / "run", trust=True)
    inputs = torch.randn(5, 64, dtype=torch.float64)
    run.model.eval()
    torch.testing.assert_close(loaded(inputs), run.model(inputs), check_dtype=False)


def test_a_fleet_that_cannot_train_models_is_refused() -> None:
    class GradientsOnly:
        workers = 2

        def launch(self, workload: Any, seed: int) -> Any:
            return simulated.launch(replace(workload, kind="gradient", aggregation=None), seed)

    simulated = pl.SimulatedFleet(delays.Constant(1.0), workers=2)

    with pytest.raises(pl.ConfigError, match="GradientsOnly cannot run ModelAveraging: its workers hand in gradients"):
        train(task(mlp()), pl.ModelAveraging(4), GradientsOnly(), 3)


# What contributions are told, and when. The processes are records in a pipe.


class Told:
    """Contributions that write down what they are told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))

    def promised(self, ticket: Ticket) -> Promise:
        return Promise(NO_INDICES, 0, 0)

    def new(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


class Here(list[WorkerHandle]):
    """A supervisor of workers all of whom are here."""

    sends_later = False

    @property
    def workers(self) -> list[WorkerHandle]:
        return self

    def is_starting(self, now: float) -> bool:
        return False

    def expected(self, now: float) -> list[WorkerHandle]:
        return self

    def shut_down(self) -> None:
        pass


class Pipe:
    """Two workers whose processes are this test."""

    def __init__(self) -> None:
        self.told = Told()
        reading, self._writing = os.pipe()
        self.handles = [self._worker(number) for number in range(2)]
        supervisor: Any = Here(self.handles)
        contributions: Any = self.told
        self.workers = ProcessWorkers(supervisor, contributions, reading, 0, minimum=0, replace=False, delays={})
        self.report((0, READY, 0), (1, READY, 0))
        assert self.tell() == [Joined(0.0, 0), Joined(0.0, 1)]
        self.tickets = [Ticket(number, number, 0) for number in range(2)]
        for ticket in self.tickets:
            self.workers.start(ticket)
        assert self.told.new() == [("forget_worker", 0), ("forget_worker", 1)]

    def _worker(self, number: int) -> WorkerHandle:
        channel: Any = SimpleNamespace(
            reported=Report(1, float(number), 1.0, 1.0), seconds=0.0, last_received=0, last_heartbeat=0,
            send=lambda order: None, notify=lambda: None,
        )  # fmt: skip
        process: Any = SimpleNamespace(sentinel=-1, has_ended=lambda: False, pid=1)
        handle = WorkerHandle(number, channel, pl.SilenceTimeout())
        handle.process = process
        return handle

    def report(self, *records: tuple[int, int, int]) -> None:
        os.write(self._writing, b"".join(RECORD.pack(*record) for record in records))

    def tell(self) -> list[Event]:
        return [replace(each, at=0.0) for each in self.workers.wait()]

    def close(self) -> None:
        self.workers.close()
        os.close(self._writing)


def test_what_was_handed_in_and_who_joined_is_known_when_the_loop_is_told_and_not_before() -> None:
    """Both were read at once; in a replay all that there is to go by is the order in which they were told."""
    pipe = Pipe()
    first, second = pipe.tickets
    pipe.report((0, 1, 0), (1, 1, 1), (0, READY, 0))
    assert pipe.tell() == [Arrived(0.0, first, 1)]
    written = [("written", first), ("written", second)]
    assert pipe.told.new() == [*written, ("hand_in", first, Report(1, 0.0, 1.0, 1.0))]
    assert pipe.tell() == [Arrived(0.0, second, 1)]
    assert pipe.told.new() == [("hand_in", second, Report(1, 1.0, 1.0, 1.0))]
    assert pipe.tell() == [Joined(0.0, 0)]
    assert pipe.told.new() == [("forget_worker", 0)]
    pipe.close()


def test_what_is_halted_before_the_loop_was_told_of_it_is_never_handed_in() -> None:
    pipe = Pipe()
    first, second = pipe.tickets
    pipe.report((0, 1, 0), (1, 1, 1), (1, READY, 0))
    assert pipe.tell() == [Arrived(0.0, first, 1)]
    pipe.told.new()
    pipe.workers.halt(second)
    assert pipe.tell() == [Joined(0.0, 1)]
    assert pipe.told.new() == [("halt", second), ("forget_worker", 1)]
    pipe.close()


def test_a_gradient_is_lost_with_the_machine_that_had_it_when_it_was_written() -> None:
    """The loop is told of it only when another machine is in its place, which does not have it."""
    state = ModelState(nn.Linear(2, 2))
    layout = Layout(state.parameters, state.buffers, 4)
    machine = MemoryMachine.in_memory([0], layout)
    gradients = DistributedGradients(state, layout, machines=[machine])
    for ticket, lost in ((Ticket(0, 0, 0), True), (Ticket(1, 0, 0), False)):
        gradients.promise(ticket, [np.arange(4)], 0)
        gradients.written(ticket)
        machine.incarnation += lost
        gradients.hand_in(ticket, Report(0, 0.0, 0.0, 0.0))
        assert gradients.evaluate({ticket: Fraction(1)}, ()).lost == [ticket] * lost
        gradients.settle([ticket])
