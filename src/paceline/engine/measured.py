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

    learner   is told of the work, and learns nothing
    seconds   of simulated time after which it ends by itself; None for never
    """

    def __init__(
        self,
        strategy: Strategy,
        fleet: SimulatedFleet,
        learner: NoLearner | None = None,
        *,
        seconds: float | None = None,
        message_bytes: int = 0,
        sizes: BatchSizes | None = None,
        seed: int = 0,
    ) -> None:
        workers = fleet.open(seed, message_bytes, sizes=sizes)
        self._reader = MeasureReader(workers.about)
        self._trace = NoTrace(workers.about, self._reader)
        workers.announce = self._trace.note
        unequal = None if sizes is None else sizes.unequal
        self._loop = Loop(strategy, workers, learner or NoLearner(), self._trace, seconds, sizes=unequal)

    def __iter__(self) -> Iterator[Stepped]:
        with seldom_collecting():
            yield from self._loop

    def measures(self) -> Measures:
        return self._reader.measures(self._trace.history)


class CountedWork(NoLearner):
    """Counts the pieces of work that were assigned."""

    def __init__(self) -> None:
        self.assigned = 0

    def start(self, ticket: Ticket) -> None:
        self.assigned += 1
