"""What another strategy would have made of a recorded run's time: its workers' durations drive the simulator."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.messages import Arrived, Event, Halt, Instruction, Joined, Left, Recall, Start, Step, Ticket
from paceline.delays import Empirical
from paceline.engine.loop import Loop, NoLearner, seldom_collecting
from paceline.fleets.simulated.fleet import Network, SimulatedFleet
from paceline.strategies.checks import check_fits
from paceline.trace.measure import INSTANT, MeasureReader, Measures
from paceline.trace.record import Billed, Computed, Fact, Trace, TraceWriter

MOST_DURATIONS = 20_000_000  # of one worker: 160 MB


@dataclass
class Durations:
    """What one worker took for its mini-batches, in the order in which it went through them."""

    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    scaled: int = 0  # of them: known of some of the blocks only, and scaled up to all
    cut: int = 0  # not among them: stopped or cut short, so that nobody knows what they would have taken


@dataclass(frozen=True)
class Prospect:
    """A strategy on the recorded fleet, in numbers."""

    label: str
    measures: Measures

    @property
    def gradients(self) -> int:
        """How many contributions its updates used."""
        return sum(worker.contributions for worker in self.measures.workers)


class Survey:
    """All that a what-if needs of a trace, read once: durations, who left and joined, and the measures."""

    def __init__(self, trace: Trace) -> None:
        about = trace.about
        self.latency = float(about.get("transfer_seconds", 0.0))
        self.durations = {worker: Durations() for worker in range(int(about.get("workers", 0)))}
        self.changes: list[Left | Joined] = []
        self._started: dict[Ticket, float] = {}
        self._recalled: dict[Ticket, float] = {}
        self._besides: dict[Ticket, float] = {}  # of pieces whose messages and labels take other times
        reader = MeasureReader(about)
        follow = reader.follow
        with seldom_collecting():
            for fact in trace:
                if (measuring := follow.get(type(fact))) is not None:
                    measuring(fact)
                self._follow(fact, reader.now)
        self.measures = reader.measures()

    def _follow(self, fact: Fact, now: float) -> None:
        kind = type(fact)
        if kind is Start:
            self._started[fact.ticket] = now  # type: ignore[union-attr]
        elif kind is Step:
            pass
        elif isinstance(fact, Arrived):
            self._arrived(fact)
        elif isinstance(fact, Billed):
            self._besides[fact.ticket] = fact.download + fact.relabelling + fact.upload
        elif isinstance(fact, Recall):
            self._recalled[fact.ticket] = now
        elif isinstance(fact, Halt):
            for known in (self._started, self._recalled, self._besides):
                known.pop(fact.ticket, None)
            self._of(fact.ticket.worker).cut += 1
        elif isinstance(fact, Left | Joined) and fact.at > 0:
            self.changes.append(fact)

    def _arrived(self, fact: Arrived) -> None:
        ticket, now = fact.ticket, fact.at
        at_once = bool(self._recalled) and now - self._recalled.pop(ticket, -1.0) < INSTANT
        own = self._of(ticket.worker)
        besides = self._besides.pop(ticket, 2 * self.latency) if self._besides else 2 * self.latency
        seconds = now - self._started.pop(ticket) - besides
        if not fact.done or at_once or seconds <= 0:
            own.cut += 1
            return
        own.scaled += fact.done < ticket.work.units
        whole, count = seconds * ticket.work.units / fact.done, ticket.work.mini_batches
        if count > MOST_DURATIONS - len(own.seconds):
            raise ConfigError(
                f"worker {ticket.worker} went through more than {MOST_DURATIONS:,} mini-batches in the recorded run: "
                "too many to be gone through again"
            )
        own.seconds.extend(repeat(whole / count, count))  # of a piece of several mini-batches only the sum is known

    def _of(self, worker: int) -> Durations:
        if (own := self.durations.get(worker)) is None:
            own = self.durations[worker] = Durations()
        return own


def surveyed(recorded: "Trace | Survey") -> Survey:
    return recorded if isinstance(recorded, Survey) else Survey(recorded)


def durations_of(trace: "Trace | Survey") -> Mapping[int, Durations]:
    """The durations of each worker's mini-batches, without transfers and labels."""
    return surveyed(trace).durations


def recorded_fleet(trace: "Trace | Survey") -> SimulatedFleet:
    """The workers of a recorded run on the simulator's clock: each takes what it took, again and again in that order.

    They leave and join when they did. How many pieces of work are not known in full is for ``doubts`` to say.
    """
    survey = surveyed(trace)
    delays: list[Empirical] = []
    for worker, own in sorted(survey.durations.items()):
        if not own.seconds:
            raise ConfigError(
                f"worker {worker} finished nothing in the recorded run ({own.cut} pieces of its work were cut short): "
                f"what it takes is not known"
            )
        delays.append(Empirical(own.seconds, in_order=True))
    return SimulatedFleet(delays, network=Network(latency=survey.latency), changes=survey.changes)


def doubts(trace: "Trace | Survey") -> list[str]:
    """What is known only in part, in words."""
    told: list[str] = []
    for worker, own in sorted(durations_of(trace).items()):
        total = len(own.seconds) + own.cut
        if own.cut:
            told.append(
                f"worker {worker}: {own.cut} of {total} pieces of work were cut short; what they would have taken is "
                f"not known, and the durations used for it may be too short"
            )
        elif own.scaled:
            told.append(f"worker {worker}: {own.scaled} of {total} durations are known of some blocks, and scaled up")
    return told


def what_if(
    trace: "Trace | Survey", strategies: Mapping[str, Strategy], *, batch_size: int | None = None, seed: int = 0
) -> Sequence[Prospect]:
    """Each strategy for as long as the recorded run lasted, on its workers' durations."""
    survey = surveyed(trace)
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
    crew = fleet.open(seed)
    writer = _Measuring(crew.about)
    crew.announce = writer.note
    with seldom_collecting():
        for _ in Loop(strategy, crew, NoLearner(), writer, seconds):
            pass
    return writer.reader.measures()


class _Measuring(TraceWriter):
    """Takes the place of a trace."""

    def __init__(self, about: Mapping[str, object]) -> None:
        super().__init__(None, about)
        self.reader = MeasureReader(about)

    def record(self, events: Iterable[Event], instructions: Iterable[Instruction]) -> None:
        follow = self.reader.follow
        for facts in (events, instructions):
            for fact in facts:
                if (measuring := follow.get(type(fact))) is not None:
                    measuring(fact)

    def note(self, fact: Billed | Computed) -> None:
        if (measuring := self.reader.follow.get(type(fact))) is not None:
            measuring(fact)
