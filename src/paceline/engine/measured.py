"""Simulated runs of which only the measures are wanted: nothing is trained, and no trace is kept."""

from collections.abc import Iterator

from paceline.core.coordinator import Strategy
from paceline.core.messages import Ticket
from paceline.data.sizes import BatchSizes
from paceline.engine.loop import Loop, NoLearner, Stepped, seldom_collecting
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.trace.measure import MeasureReader, Measures
from paceline.trace.writing import NoTrace


class MeasuredSimulation:
    """Iterate over its updates, and stop when there are enough; then ask for ``measures()``.

    seconds   of simulated time after which it ends by itself; None for never
    """

    def __init__(
        self,
        strategy: Strategy,
        fleet: SimulatedFleet,
        *,
        seconds: float | None = None,
        message_bytes: int = 0,
        sizes: BatchSizes | None = None,
        seed: int = 0,
    ) -> None:
        workers = fleet.open(seed, message_bytes, sizes=sizes)
        self._assigned = _Assigned()
        self._reader = MeasureReader(workers.about)
        self._trace = NoTrace(workers.about, self._reader)
        workers.announce = self._trace.note
        unequal = None if sizes is None else sizes.unequal
        self._loop = Loop(strategy, workers, self._assigned, self._trace, seconds, sizes=unequal)

    def __iter__(self) -> Iterator[Stepped]:
        with seldom_collecting():
            yield from self._loop

    @property
    def assigned(self) -> int:
        """How many pieces of work were assigned so far."""
        return self._assigned.count

    def part(self, ticket: Ticket) -> float:
        """Which part of a piece of work was done: less than 1 where a recall ended it early."""
        return self._assigned.parts.get(ticket, 1.0)

    def measures(self) -> Measures:
        return self._reader.measures(self._trace.history)


class _Assigned(NoLearner):
    """Counts the pieces of work that were assigned, and notes what recalls left of them."""

    def __init__(self) -> None:
        self.count = 0
        self.parts: dict[Ticket, float] = {}

    def start(self, ticket: Ticket) -> None:
        self.count += 1

    def shorten(self, ticket: Ticket, done: int) -> None:
        self.parts[ticket] = done / ticket.work.units
