"""What another strategy would have made of a recorded run's time: its workers' durations drive the simulator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.facts import Arrived, Event, Halt, Joined, Left, Recall, Start, Ticket
from paceline.delays import Empirical
from paceline.fleets.simulated import Network, SimulatedFleet
from paceline.reports.measure import INSTANT, Measures, measure
from paceline.run import Stop
from paceline.strategies.checks import check_fits
from paceline.trace import Billed, Trace
from paceline.training import simulate


@dataclass
class Durations:
    """What one worker took for its mini-batches, in the order in which it went through them."""

    seconds: list[float] = field(default_factory=list)
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


def durations_of(trace: Trace) -> Mapping[int, Durations]:
    """The durations of each worker's mini-batches, without transfers and labels."""
    transfers = 2 * float(trace.about.get("transfer_seconds", 0.0))
    besides: dict[Ticket, float] = {}  # of pieces whose messages and labels take other times
    found = {worker: Durations() for worker in range(int(trace.about.get("workers", 0)))}
    started: dict[Ticket, float] = {}
    recalled: dict[Ticket, float] = {}
    now = 0.0
    for fact in trace:
        now = fact.at if isinstance(fact, Event) else now
        if isinstance(fact, Start):
            started[fact.ticket] = now
        elif isinstance(fact, Billed):
            besides[fact.ticket] = fact.download + fact.relabelling + fact.upload
        elif isinstance(fact, Recall):
            recalled[fact.ticket] = now
        elif isinstance(fact, Halt):
            for known in (started, recalled, besides):
                known.pop(fact.ticket, None)
            found.setdefault(fact.ticket.worker, Durations()).cut += 1
        elif isinstance(fact, Arrived):
            ticket, at_once = fact.ticket, now - recalled.pop(fact.ticket, -1.0) < INSTANT
            own = found.setdefault(ticket.worker, Durations())
            seconds = now - started.pop(ticket) - besides.pop(ticket, transfers)
            if not fact.done or at_once or seconds <= 0:
                own.cut += 1
            else:
                own.scaled += fact.done < ticket.work.units
                whole, count = seconds * ticket.work.units / fact.done, ticket.work.mini_batches
                own.seconds += [whole / count] * count  # of a piece of several mini-batches only the sum is known
    return found


def recorded_fleet(trace: Trace) -> SimulatedFleet:
    """The workers of a recorded run on the simulator's clock: each takes what it took, again and again in that order.

    They leave and join when they did. How many pieces of work are not known in full is for ``doubts`` to say.
    """
    delays: list[Empirical] = []
    for worker, own in sorted(durations_of(trace).items()):
        if not own.seconds:
            raise ConfigError(
                f"worker {worker} finished nothing in the recorded run ({own.cut} pieces of its work were cut short): "
                f"what it takes is not known"
            )
        delays.append(Empirical(own.seconds, in_order=True))
    changes = [fact for fact in trace if isinstance(fact, Left | Joined) and fact.at > 0]
    latency = float(trace.about.get("transfer_seconds", 0.0))
    return SimulatedFleet(delays, network=Network(latency=latency), changes=changes)


def doubts(trace: Trace) -> list[str]:
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
    trace: Trace, strategies: Mapping[str, Strategy], *, batch_size: int | None = None, seed: int = 0
) -> Sequence[Prospect]:
    """Each strategy for as long as the recorded run lasted, on its workers' durations."""
    fleet, recorded = recorded_fleet(trace), measure(trace)
    if not recorded.seconds:
        raise ConfigError("the recorded run took no time: there is nothing to compare")
    found: list[Prospect] = []
    for label, strategy in strategies.items():
        check_fits(strategy, fleet.workers, batch_size)
        found.append(Prospect(label, measure(simulate(strategy, fleet, Stop(seconds=recorded.seconds), seed=seed))))
    return found
