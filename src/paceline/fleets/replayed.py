"""The workers of a recorded run, as its trace tells of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived, Event, Joined, Ticket
from paceline.fleets.base import Fleet, InlineWorker, Repeatable, RepeatableTrainers
from paceline.trace.format import WorkCost
from paceline.trace.reading import Trace

if TYPE_CHECKING:
    from paceline.learning.gradients.lazy import Contributions
    from paceline.learning.models.local_work import Bench, Pieces
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
        if not isinstance(self.fleet, Repeatable):
            raise ConfigError(f"{type(self.fleet).__name__} cannot be replayed: it has no inline()")
        inline, contributions = self.fleet.inline(workload, seed)
        return ReplayedWorkers(self.trace, inline), contributions

    def hire_trainers(self, bench: "Bench") -> "tuple[ReplayedWorkers, Pieces]":
        if not isinstance(self.fleet, RepeatableTrainers):
            raise ConfigError(
                f"{type(self.fleet).__name__} cannot be replayed where workers train models of their own: it has no "
                "understudy_trainers()"
            )
        inline, pieces = self.fleet.understudy_trainers(bench)
        return ReplayedWorkers(self.trace, inline), pieces


class ReplayedWorkers:
    """Tells the recorded events again. What happened at one instant is told together.

    ``announce`` is told again how long a piece took that was billed: the trace tells that too.
    """

    def __init__(self, trace: Trace, inline: InlineWorker) -> None:
        self.about: Mapping[str, object] = {name: v for name, v in trace.about.items() if name != "paceline_trace"}
        self._moments = moments(trace)
        self._understudy = inline
        self._billed = {fact.ticket: fact for fact in trace if isinstance(fact, WorkCost)}
        self.announce: Callable[[WorkCost], None] = lambda billed: None

    def wait(self) -> Sequence[Event]:
        events = next(self._moments, ())
        for event in events:
            if isinstance(event, Arrived):
                self._understudy.hand_in(event.ticket, event.done)
            elif isinstance(event, Joined):
                self._understudy.join(event.worker)
        return events

    def start(self, ticket: Ticket) -> None:
        """The trace tells what comes of it."""
        if ticket in self._billed:
            self.announce(self._billed.pop(ticket))

    def halt(self, ticket: Ticket) -> None:
        self._understudy.halt(ticket)

    def recall(self, ticket: Ticket) -> None:
        """The trace tells how much of it comes."""

    def wake_at(self, at: float) -> None:
        """The trace tells when it rang."""

    def close(self) -> None:
        self._understudy.close()


def moments(trace: Trace) -> Iterator[Sequence[Event]]:
    """Events of one instant that nothing was decided between.

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
    if together:
        yield together
