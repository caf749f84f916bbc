"""What another strategy would have made of a recorded run's time: its workers' durations drive the simulator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.messages import Joined, Left
from paceline.delays import Empirical
from paceline.engine.loop import Loop, NoLearner, seldom_collecting
from paceline.fleets.simulated.fleet import Network, SimulatedFleet
from paceline.trace.durations import DurationReader, doubts
from paceline.trace.history import Observer
from paceline.trace.measure import MeasureReader, Measures
from paceline.trace.reading import Trace
from paceline.trace.writing import NoTrace


@dataclass(frozen=True)
class Prospect:
    """A strategy on the recorded fleet, in numbers."""

    label: str
    measures: Measures

    @property
    def gradients(self) -> int:
        """How many contributions its updates used."""
        return sum(worker.contributions for worker in self.measures.workers)


class Survey(Observer):
    """All that can be asked of a recorded run's time, read once: durations, who left and joined, and the measures."""

    def __init__(self, trace: Trace) -> None:
        about = trace.about
        self.latency = float(about.get("transfer_seconds", 0.0))
        self.notes: list[str] = list(about.get("notes", ()))  # what is known of the run only in part
        self.changes: list[Left | Joined] = []
        durations, measuring = DurationReader(about), MeasureReader(about)
        with seldom_collecting():
            history = trace.follow(durations, measuring, self)
        self.durations = durations.by_worker
        self.measures = measuring.measures(history)

    def doubts(self) -> list[str]:
        """What has to be known to read numbers that rest on this run."""
        return [*self.notes, *doubts(self.durations)]

    def changed(self, event: Joined | Left) -> None:
        if event.at > 0:
            self.changes.append(event)


def recorded_fleet(survey: Survey, *, in_order: bool = True) -> SimulatedFleet:
    """The workers of a recorded run on the simulator's clock, who leave and join when they did.

    Each takes for its mini-batches what it took in the run: again and again ``in_order``, or drawn at random. How many
    durations are not known in full is for ``Survey.doubts`` to say.
    """
    delays: list[Empirical] = []
    for worker, own in sorted(survey.durations.items()):
        if not own.seconds:
            raise ConfigError(
                f"worker {worker} finished nothing in the recorded run ({own.cut} pieces of its work were cut short): "
                "what it takes is not known; record a longer run"
            )
        delays.append(Empirical(own.seconds, in_order))
    if not delays:
        raise ConfigError("the trace has no finished work of any worker: record a longer run")
    return SimulatedFleet(delays, network=Network(latency=survey.latency), changes=survey.changes)


def what_if(
    survey: Survey, strategies: Mapping[str, Strategy], *, batch_size: int | None = None, seed: int = 0
) -> Sequence[Prospect]:
    """Each strategy for as long as the recorded run lasted, on its workers' durations."""
    fleet, recorded = recorded_fleet(survey), survey.measures
    if not recorded.seconds:
        raise ConfigError("the recorded run took no time: there is nothing to compare")
    found: list[Prospect] = []
    for label, strategy in strategies.items():
        check_fits(strategy, fleet.workers, batch_size)
        found.append(Prospect(label, _simulated(strategy, fleet, recorded.seconds, seed)))
    return found


def _simulated(strategy: Strategy, fleet: SimulatedFleet, seconds: float, seed: int) -> Measures:
    """Measure a simulated run while it goes on: its trace is written nowhere."""
    workers = fleet.open(seed)
    measuring = MeasureReader(workers.about)
    trace = NoTrace(workers.about, measuring)
    workers.announce = trace.note
    with seldom_collecting():
        for _ in Loop(strategy, workers, NoLearner(), trace, seconds):
            pass
    return measuring.measures(trace.history)
