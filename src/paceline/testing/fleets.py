"""The contract of a fleet, as a pytest suite to subclass.

    class TestMyFleet(FleetContract):
        fleet = MyFleet(workers=4)

        def lose(self, group, worker):
            group.kill(worker)

Each test trains a small model with one of ``strategies`` and looks at what the fleet reported, and when.
"""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.messages import Arrived, Event, Halt, Joined, Left, Recall, Start, Step, Ticket
from paceline.fleets.base import Fleet, FollowsSteps, WorkerGroup
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.fastest_k import FastestK
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.synchronous import Synchronous

if TYPE_CHECKING:
    from paceline.engine.result import Run
    from paceline.learning.contributions import Contributions
    from paceline.learning.task import Task
    from paceline.learning.workload import Workload

LR = 0.05
PATIENCE = 60.0  # seconds: of a fleet that has said nothing by then, no more is expected
_MADE: "dict[tuple[type, Strategy, int | None], tuple[Spied, Run]]" = {}


class FleetContract:
    """What every fleet promises. Subclass it, and name the subclass ``Test...``.

    fleet       at least three workers; the faster a mini-batch, the better
    updates     how many each test makes
    strategies  with which every promise is tried
    """

    fleet: Fleet
    updates: int = 25
    strategies: Sequence[Strategy] = (
        Synchronous(),
        Asynchronous(),
        FastestK(quorum=2),
        FastestK(quorum=2, stop_late=False),
        LiveCompensation(quorum=2, blocks=4),
        LiveCompensation(quorum=2, blocks=2, recall=False),
    )

    def lose(self, group: Any, worker: int) -> None:
        """Make a worker vanish: by default the process in ``group.pids`` is killed."""
        os.kill(group.pids[worker], signal.SIGKILL)

    def test_everybody_joins_at_time_zero(self) -> None:
        spied, _ = self._run(Synchronous())
        first = spied.reported[0]
        assert [*first] == [Joined(0.0, worker) for worker in range(self.fleet.workers)]

    def test_the_clock_never_goes_back(self) -> None:
        for strategy in self._all():
            spied, _ = self._run(strategy)
            times = [event.at for events in spied.reported for event in events]
            assert times == sorted(times), f"{strategy}: the clock went back"
            assert all(len({event.at for event in events}) == 1 for events in spied.reported)

    def test_what_arrives_was_asked_for(self) -> None:
        for strategy in self._all():
            spied, _ = self._run(strategy)
            _check_arrivals(spied.log, strategy)

    def test_a_contribution_is_the_gradient_at_the_version_of_its_ticket(self) -> None:
        from paceline.testing.retraced import retrace

        for strategy in self._all():
            spied, run = self._run(strategy)
            expected = retrace(run.trace, spied.draws, _task(), LR, self.updates)
            for name, weights in run.model.state_dict().items():
                difference = float((weights - expected.state_dict()[name]).abs().max())
                assert difference < 1e-10, f"{strategy}: {name} differs by {difference} from what the trace leads to"

    def test_the_strategy_decides_the_same_given_the_same_events(self) -> None:
        for strategy in self._all():
            spied, run = self._run(strategy)
            again = Coordinator(strategy)
            decided = [each for events in spied.reported for each in again.receive(*events)]
            recorded = [fact for fact in run.trace if not isinstance(fact, Event)]
            assert decided == recorded, f"{strategy}: given the same events again, it decided otherwise"

    def test_a_lost_worker_becomes_left_and_training_goes_on(self) -> None:
        for strategy in self._all():
            spied, run = self._run(strategy, lose=1)
            events = [event for events in spied.reported for event in events]
            assert any(isinstance(event, Left) and event.worker == 1 for event in events), f"{strategy}: no Left"
            assert run.history[-1].updates >= self.updates, f"{strategy}: {run.ended}, {run.problem}"
            _check_arrivals(spied.log, strategy)

    def _all(self) -> Sequence[Strategy]:
        workers = range(self.fleet.workers)
        return (*self.strategies, Grouped([workers[:1], workers[1:]]), Grouped([workers[:1], workers[1:]], FastestK(1)))

    def _run(self, strategy: Strategy, lose: int | None = None) -> "tuple[Spied, Run]":
        """Several tests look at the same run."""
        key = type(self), strategy, lose
        if key not in _MADE:
            _MADE[key] = self._make_run(strategy, lose)
        return _MADE[key]

    def _make_run(self, strategy: Strategy, lose: int | None) -> "tuple[Spied, Run]":
        import torch

        from paceline.engine.limits import Every, Stop
        from paceline.engine.train import train
        from paceline.testing.retraced import WrittenDown

        written = WrittenDown()
        spied = Spied(self.fleet, self, lose, written.draws)
        task, stop = _task(), Stop(updates=self.updates)
        if lose is not None:  # it continues until the loss is reported, however long that takes
            task, stop = replace(task, evaluate=spied.evaluate), Stop(target=0.5)
        run = train(
            task, strategy=strategy, fleet=spied, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR),
            batch_size=8, sampling=written, stop=stop, every=Every(updates=self.updates), progress=False,
        )  # fmt: skip
        return spied, run


def _task() -> "Task":
    import torch

    from paceline.learning.task import Task

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    return Task(model, torch.nn.functional.mse_loss, (inputs, targets))


@dataclass
class Spied:
    """A fleet whose events are written down. After a few events it loses a worker, if it is to."""

    fleet: Fleet
    contract: FleetContract
    lose: int | None
    draws: dict[int, Any]
    reported: list[Sequence[Event]] = field(default_factory=list)
    log: list[Event | Start | Halt | Recall] = field(default_factory=list)
    lost_at: float | None = None  # on the clock of this process

    @property
    def workers(self) -> int:
        return self.fleet.workers

    def launch(self, workload: "Workload", seed: int) -> "tuple[SpiedGroup, Contributions]":
        group, contributions = self.fleet.launch(workload, seed)
        return SpiedGroup(group, self), contributions

    def evaluate(self, _: Any) -> dict[str, float]:
        """An accuracy of 1 once the loss is reported, or nobody is going to report it."""
        reported = any(
            isinstance(event, Left) and event.worker == self.lose for events in self.reported for event in events
        )
        given_up = self.lost_at is not None and time.monotonic() > self.lost_at + PATIENCE
        return {"loss": 0.0, "accuracy": float(reported or given_up)}


class SpiedGroup:
    """Writes down what is asked of a worker group, and what it reports."""

    def __init__(self, group: WorkerGroup, spied: Spied) -> None:
        self._group = group
        self._spied = spied
        self.about = group.about

    def wait(self) -> Sequence[Event]:
        spied = self._spied
        if len(spied.reported) == 2 and spied.lose is not None:
            spied.contract.lose(self._group, spied.lose)
            spied.lost_at = time.monotonic()
        events = self._group.wait()
        spied.reported.append(events)
        spied.log.extend(events)
        return events

    def stepped(self, step: Step) -> None:
        if isinstance(self._group, FollowsSteps):
            self._group.stepped(step)

    def start(self, ticket: Ticket) -> None:
        self._spied.log.append(Start(ticket))
        self._group.start(ticket)

    def halt(self, ticket: Ticket) -> None:
        self._spied.log.append(Halt(ticket))
        self._group.halt(ticket)

    def recall(self, ticket: Ticket) -> None:
        self._spied.log.append(Recall(ticket))
        self._group.recall(ticket)

    def wake_at(self, at: float) -> None:
        self._group.wake_at(at)

    def close(self) -> None:
        self._group.close()


def _check_arrivals(log: Sequence[Event | Start | Halt | Recall], strategy: Strategy) -> None:
    running: dict[int, Ticket] = {}
    recalled: set[Ticket] = set()
    for fact in log:
        if isinstance(fact, Start):
            running[fact.ticket.worker] = fact.ticket
        elif isinstance(fact, Recall):
            recalled.add(fact.ticket)
        elif isinstance(fact, Halt):
            running.pop(fact.ticket.worker, None)
        elif isinstance(fact, Arrived):
            ticket = fact.ticket
            assert running.pop(ticket.worker, None) == ticket, f"{strategy}: {fact} was not asked for, or came twice"
            assert 0 <= fact.done <= ticket.work.units
            assert fact.done == ticket.work.units or ticket in recalled, f"{strategy}: {fact} was not recalled"
