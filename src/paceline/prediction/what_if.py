"""What another strategy would have made of a recorded run's time: its workers' durations drive the simulator."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import build
from paceline.core.messages import Joined, Left, Ticket
from paceline.data.sizes import read_sizes
from paceline.delays import Delay, Empirical, PerSample
from paceline.engine.arguments import simulated_sizes
from paceline.engine.loop import NoLearner, seldom_collecting
from paceline.engine.measured import MeasuredSimulation
from paceline.fleets.simulated.cluster import Machines
from paceline.fleets.simulated.fleet import Network, SimulatedFleet
from paceline.strategies.traits import deals_sizes
from paceline.trace.durations import DurationReader, Durations, doubts, fixed_seconds
from paceline.trace.history import Observer
from paceline.trace.measure import MeasureReader, Measures
from paceline.trace.reading import Trace

FEW = 1_000_000  # mini-batches, which take a few seconds to simulate


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
        self.machines = build(Machines, about["machines"], "the trace: machines") if "machines" in about else None
        self.prices: list[float] = list(about.get("prices", ()))
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
    """The workers of a recorded run on the simulator's clock, who leave and join when they did, on the same machines.

    Each takes for its mini-batches what it took in the run: again and again ``in_order``, or drawn at random. How many
    durations are not known in full is for ``Survey.doubts`` to say.
    """
    delays: list[Delay] = []
    for worker, own in sorted(survey.durations.items()):
        if not own.seconds:
            raise ConfigError(
                f"worker {worker} finished nothing in the recorded run ({own.cut} pieces of its work were cut short): "
                "what it takes is not known; record a longer run"
            )
        delays.append(_delay(own, in_order))
    if not delays:
        raise ConfigError("the trace has no finished work of any worker: record a longer run")
    prices = survey.prices if len(survey.prices) == len(delays) else ()
    network = Network() if survey.machines is not None else Network(latency=survey.latency)
    return SimulatedFleet(delays, network=network, changes=survey.changes, machines=survey.machines, prices=prices)


def _delay(own: Durations, in_order: bool) -> Delay:
    """Where mini-batches had sizes of their own: a fixed part, if it can be told, and the rest for each sample."""
    if not own.samples:
        return Empirical(own.seconds, in_order)
    fixed = fixed_seconds(own) or 0.0
    pairs = zip(own.seconds, own.samples, strict=True)
    return PerSample(fixed, Empirical([(seconds - fixed) / size for seconds, size in pairs], in_order))


def recorded_sizes(survey: Survey) -> int | tuple[int, ...] | None:
    """The first sizes of the recorded workers' mini-batches; None where all had one, which a trace does not tell."""
    first = [own.samples[0] for _, own in sorted(survey.durations.items()) if own.samples]
    return read_sizes(first, len(first)) if first and len(first) == len(survey.durations) else None


def size_doubts(survey: Survey, strategies: Iterable[Strategy], batch_size: object = None) -> list[str]:
    """What is taken for granted where sizes differ from those of the recorded run, in words."""
    if isinstance(batch_size, int | None) and not any(map(deals_sizes, strategies)):
        return []
    unknown = [worker for worker, own in sorted(survey.durations.items()) if fixed_seconds(own) is None]
    if not unknown:
        return []
    who = "no worker" if len(unknown) == len(survey.durations) else f"not worker {', '.join(map(str, unknown))}"
    return [
        f"{who} had mini-batches of different sizes in the recorded run: durations are taken to be in proportion to "
        "the samples, without a fixed part"
    ]


def what_if(
    survey: Survey,
    strategies: Mapping[str, Strategy],
    *,
    batch_size: int | Sequence[int] | None = None,
    seed: int = 0,
) -> Sequence[Prospect]:
    """Each strategy for as long as the recorded run lasted, on its workers' durations.

    ``batch_size`` is that of the recorded run, where it is known. A strategy that goes through very many more
    mini-batches than the recorded run is refused.
    """
    fleet, recorded = recorded_fleet(survey), survey.measures
    if not recorded.seconds:
        raise ConfigError("the recorded run took no time: there is nothing to compare")
    found: list[Prospect] = []
    for label, strategy in strategies.items():
        sizes = simulated_sizes(strategy, fleet.workers, batch_size or recorded_sizes(survey))
        limit = _Limit(label, survey)
        simulation = MeasuredSimulation(strategy, fleet, limit, seconds=recorded.seconds, sizes=sizes, seed=seed)
        for _ in simulation:
            pass
        found.append(Prospect(label, simulation.measures()))
    return found


class _Limit(NoLearner):
    """Refuses a simulation that would take practically for ever.

    A worker that waited for an hour after one piece of work of a microsecond would do that work a billion times.
    """

    def __init__(self, label: str, survey: Survey) -> None:
        self._label = label
        self._recorded = sum(len(own.seconds) + own.cut for own in survey.durations.values())
        used = sum(worker.contributions for worker in survey.measures.workers)
        self._most = max(FEW, 4 * self._recorded, 1000 * used)
        self._left = self._most

    def start(self, ticket: Ticket) -> None:
        self._left -= ticket.work.mini_batches
        if self._left < 0:
            raise ConfigError(
                f"{self._label}: in as much time its workers would go through more than {self._most:,} mini-batches, "
                f"and went through {self._recorded:,} in the recorded run: that is too many to simulate"
            )
