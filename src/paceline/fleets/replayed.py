"""The workers of a recorded run, as its trace tells of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived, Event, Joined, Step, Ticket
from paceline.fleets.base import Fleet, InlineWorker, Placeable, PlacedWorker, Replayable
from paceline.trace.format import MachineWorkers, NonFinite, WorkCost
from paceline.trace.reading import Trace

if TYPE_CHECKING:
    from paceline.learning.contributions import Contributions
    from paceline.learning.workload import Workload


@dataclass(frozen=True)
class Replayed:
    """The same fleet once more: its events are those of the trace, its work is done in this process."""

    fleet: Fleet
    trace: Trace

    @property
    def workers(self) -> int:
        return self.fleet.workers

    def launch(self, workload: "Workload", seed: int) -> "tuple[ReplayedWorkers, Contributions]":
        worker, contributions = self.inline(workload, seed)
        return ReplayedWorkers(self.trace, worker), contributions

    def inline(self, workload: "Workload", seed: int) -> "tuple[InlineWorker, Contributions]":
        if not isinstance(self.fleet, Replayable):
            raise ConfigError(f"{type(self.fleet).__name__} cannot be replayed: it has no inline(workload, seed)")
        machines = next((fact for fact in self.trace if isinstance(fact, MachineWorkers)), None)
        if machines is not None and isinstance(self.fleet, Placeable):
            worker, contributions = self.fleet.inline_on(machines, workload, seed)
            worker.leave_out(left_out(self.trace))
            return worker, contributions
        return self.fleet.inline(workload, seed)


class ReplayedWorkers:
    """Tells the recorded events again. What happened at one instant is told together.

    ``announce`` is told the cost of a ticket again, where the trace has it: when it starts, or on machines, where that
    is known later, before the next event.
    """

    def __init__(self, trace: Trace, worker: InlineWorker) -> None:
        self.about: Mapping[str, object] = {name: v for name, v in trace.about.items() if name != "paceline_trace"}
        self._moments = moments(trace)
        self._worker = worker
        later = "workers_a_machine" in trace.about
        self._later = _costs_before_events(trace) if later else iter(())
        self._costs = {} if later else {fact.ticket: fact for fact in trace if isinstance(fact, WorkCost)}
        self.announce: Callable[[WorkCost | MachineWorkers], None] = lambda fact: None

    def wait(self) -> Sequence[Event]:
        events = next(self._moments, ())
        while isinstance(events, MachineWorkers):
            if isinstance(self._worker, PlacedWorker):
                self._worker.place(events)
            self.announce(events)
            events = next(self._moments, ())
        for costs in islice(self._later, len(events)):
            for cost in costs:
                self.announce(cost)
        for event in events:
            if isinstance(event, Arrived):
                self._worker.hand_in(event.ticket, event.done)
            elif isinstance(event, Joined):
                self._worker.join(event.worker)
        return events

    def start(self, ticket: Ticket) -> None:
        """The trace tells what comes of it."""
        if ticket in self._costs:
            self.announce(self._costs.pop(ticket))

    def halt(self, ticket: Ticket) -> None:
        self._worker.halt(ticket)

    def recall(self, ticket: Ticket) -> None:
        """The trace tells how much of it comes."""

    def wake_at(self, at: float) -> None:
        """The trace tells when it rang."""

    def close(self) -> None:
        self._worker.close()


def left_out(trace: Trace) -> dict[int, list[Ticket]]:
    """What each update of a recorded run left out, by the number of the update."""
    updates, found = 0, dict[int, list[Ticket]]()
    for fact in trace:
        if isinstance(fact, Step):
            updates += 1
        elif isinstance(fact, NonFinite):
            found.setdefault(updates - 1, []).append(fact.ticket)
    return found


def _costs_before_events(trace: Trace) -> Iterator[Sequence[WorkCost]]:
    """For each event the costs that were told since the event before it."""
    told: list[WorkCost] = []
    for fact in trace:
        if isinstance(fact, WorkCost):
            told.append(fact)
        elif isinstance(fact, Event):
            yield told
            told = []


def moments(trace: Trace) -> Iterator[Sequence[Event] | MachineWorkers]:
    """Events of one instant that nothing was decided between; and where workers are from now on.

    Whether they were told one by one makes no difference: a strategy that answered nothing to the first of them sees
    the same ledger when it is asked after the last.
    """
    together: list[Event] = []
    for fact in trace:
        if isinstance(fact, Event) and together and fact.at == together[0].at:
            together.append(fact)
            continue
        if together:
            yield together
        together = [fact] if isinstance(fact, Event) else []
        if isinstance(fact, MachineWorkers):
            yield fact
    if together:
        yield together
