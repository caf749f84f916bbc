"""From a trace to numbers: how stale the updates were, what the workers' time went into, and who was waited for.

Reads the trace once, from front to end; what it keeps in mind grows with the workers and their open tickets only.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from paceline.core.messages import Joined, Left, Step
from paceline.trace.history import History, Observer, TicketTimes
from paceline.trace.reading import Trace
from paceline.trace.staleness import Staleness
from paceline.trace.traffic import Price, Traffic

MANY_PAIRS = 1024  # of ages in one update


@dataclass(slots=True)
class WorkerTime:
    """What became of one worker's time, in (virtual) seconds. Work that still ran at the end is left out."""

    worker: int
    busy: float = 0.0  # computing
    relabelling: float = 0.0  # the part of it that went into labels by other workers' models
    wasted: float = 0.0  # the part of it that no update used
    transfer: float = 0.0  # messages on their way
    idle: float = 0.0  # waiting for something to do
    contributions: int = 0  # handed in and used
    influence: float = 0.0  # the sum of the weights that its gradients had in all updates
    waited_for: int = 0  # updates of several workers that its arrival, the last one, made possible
    non_finite: int = 0  # contributions that were not finite


@dataclass(frozen=True)
class Measures:
    """A run in numbers.

    staleness  how many updates were made between a contribution's download of the model and its first use: of an
               update the mean over the contributions it uses for the first time, of the run the mean over its updates
    wasted     computing time of work that was halted, dropped, or not finite, and of blocks that a recall broke off. A
               trace does not tell how far such a block had come: half of it is assumed
    weight_by_age  the net weight on contributions of each staleness, those used again too: mean over the updates
    weight_by_gap  the products of the weights on two stalenesses in one update that differ by so much: likewise
    bytes_between_machines  what was sent; None where the trace does not say which workers share a machine
    price          of the workers' time up to the last event; None where no prices are given
    """

    seconds: float
    updates: int
    mean_staleness: float
    max_staleness: int
    workers: tuple[WorkerTime, ...]
    weight_by_age: Mapping[int, float]
    weight_by_gap: Mapping[int, float]
    hands_in_models: bool = False
    bytes_between_machines: int | None = None
    price: float | None = None

    @property
    def compute(self) -> float:
        """What went into training."""
        return self.busy - self.relabelling

    @property
    def relabelling(self) -> float:
        return sum(each.relabelling for each in self.workers)

    @property
    def transfer(self) -> float:
        return sum(each.transfer for each in self.workers)

    @property
    def busy(self) -> float:
        return sum(each.busy for each in self.workers)

    @property
    def wasted(self) -> float:
        return sum(each.wasted for each in self.workers)

    @property
    def idle(self) -> float:
        return sum(each.idle for each in self.workers)

    @property
    def wasted_share(self) -> float:
        """Of the computing time, what no update used."""
        return self.wasted / self.busy if self.busy else 0.0

    @property
    def idle_share(self) -> float:
        """Of the workers' time, transfers left aside, what they spent waiting."""
        whole = self.busy + self.idle
        return self.idle / whole if whole else 0.0

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        table = asdict(self)
        for worker in table["workers"]:
            worker["spoiled"] = worker.pop("non_finite")  # as files have it
        for name in ("bytes_between_machines", "price"):
            if table[name] is None:
                del table[name]
        return table | {"wasted_share": self.wasted_share, "idle_share": self.idle_share}


def measure(trace: Trace) -> Measures:
    """Go through a trace once."""
    reader = MeasureReader(trace.about)
    return reader.measures(trace.follow(reader))


class _WorkerTimes(dict[int, WorkerTime]):
    """Those of each worker, made when it is first asked for."""

    def __missing__(self, worker: int) -> WorkerTime:
        found = self[worker] = WorkerTime(worker)
        return found


class MeasureReader(Observer):
    """Adds up what happens, each fact at a cost that does not grow with the run."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        numbers = range(int(about.get("workers", 0)))
        self._workers = _WorkerTimes((number, WorkerTime(number)) for number in numbers)
        self._staleness = Staleness()
        self._last: TicketTimes | None = None
        self._hands_in_models = False
        self._weight: Fraction | None = None  # the last one, and the same as a float
        self._share = 0.0
        self._weight_by_age: defaultdict[int, float] = defaultdict(float)
        self._weight_by_gap: defaultdict[int, float] = defaultdict(float)
        self._traffic = Traffic(about) if "workers_a_machine" in about else None
        self._price = Price(about["prices"]) if "prices" in about else None

    def measures(self, history: History) -> Measures:
        """The numbers at the end of a history that this reader observed."""
        for worker, since in history.waiting():
            self.waited(worker, since, history.now)
        updates = self._staleness.updates
        ages, gaps = (
            {age: summed[age] / updates for age in sorted(summed)}
            for summed in (self._weight_by_age, self._weight_by_gap)
        )
        return Measures(
            seconds=history.now,
            updates=updates,
            mean_staleness=self._staleness.mean,
            max_staleness=self._staleness.maximum,
            workers=tuple(self._workers[number] for number in sorted(self._workers)),
            weight_by_age=ages,
            weight_by_gap=gaps,
            hands_in_models=self._hands_in_models,
            bytes_between_machines=None if self._traffic is None else self._traffic.bytes,
            price=None if self._price is None else self._price.until(history.now),
        )

    def waited(self, worker: int, since: float, until: float) -> None:
        self._workers[worker].idle += until - since

    def changed(self, event: Joined | Left) -> None:
        if self._price is not None:
            self._price.changed(event)

    def started(self, times: TicketTimes) -> None:
        if self._traffic is not None:
            self._traffic.started(times.ticket)

    def cost(self, times: TicketTimes) -> None:
        if times.ticket.work.kind != "gradient":
            self._hands_in_models = True

    def arrived(self, times: TicketTimes) -> None:
        self._last = times
        if times.plain:  # as mostly
            self._workers[times.ticket.worker].busy += times.ended - times.started
            return
        worker = self._spend(times)
        worker.wasted += times.sent - times.useful_until
        worker.transfer += times.ended - times.sent

    def halted(self, times: TicketTimes) -> None:
        self._spend(times).wasted += times.sent - times.downloaded

    def _spend(self, times: TicketTimes) -> WorkerTime:
        """Count the download and the computing of a ticket that has ended."""
        worker = self._workers[times.ticket.worker]
        seconds = times.sent - times.downloaded
        if times.download:
            worker.transfer += min(times.download, times.sent - times.started)
        worker.busy += seconds
        if times.relabelling:
            worker.relabelling += min(seconds, times.relabelling)
        return worker

    def dropped(self, times: TicketTimes) -> None:
        self._workers[times.ticket.worker].wasted += times.useful_until - times.downloaded

    def non_finite(self, times: TicketTimes) -> None:
        worker = self._workers[times.ticket.worker]
        worker.contributions -= 1
        worker.non_finite += 1
        worker.wasted += times.useful_until - times.downloaded

    def stepped(self, at: float, version: int, step: Step, first: Sequence[TicketTimes]) -> None:
        weights = step.weights
        if self._traffic is not None:
            self._traffic.stepped(weights)
        if len(weights) == 1 and len(first) == 1:  # as often as not, and then nothing is to be added up
            ((ticket, weight),) = weights.items()
            if weight is not self._weight:
                self._float(weight)
            share, age, worker = self._share, version - ticket.version, self._workers[ticket.worker]
            worker.influence += share
            worker.contributions += 1
            self._staleness.add_one(age)
            self._weight_by_age[age] += share
            self._weight_by_gap[0] += share * share
            return
        by_age: defaultdict[int, float] = defaultdict(float)
        for ticket, weight in weights.items():
            share, age = self._float(weight), version - ticket.version
            self._workers[ticket.worker].influence += share
            by_age[age] += share
        for times in first:
            self._workers[times.ticket.worker].contributions += 1
        if len(first) > 1 and self._last is not None and self._last in first:
            self._workers[self._last.ticket.worker].waited_for += 1
        self._staleness.add([times.age(version) for times in first])
        self._count_weights(by_age)

    def _float(self, weight: Fraction) -> float:
        """A weight as a float. The next one is mostly the same object, and converting takes as long as all the rest."""
        if weight is not self._weight:
            self._weight, self._share = weight, float(weight)
        return self._share

    def _count_weights(self, by_age: Mapping[int, float]) -> None:
        ages, gaps = self._weight_by_age, self._weight_by_gap
        for age, weight in by_age.items():
            ages[age] += weight
        pairs = len(by_age) ** 2
        if pairs > MANY_PAIRS and pairs > 2 * (max(by_age) - min(by_age)):
            for gap, product in _products(by_age):
                gaps[gap] += product
            return
        for age, weight in by_age.items():
            for other, another in by_age.items():
                gaps[abs(age - other)] += weight * another


def _products(by_age: Mapping[int, float]) -> Iterator[tuple[int, float]]:
    """The products of all pairs of weights, added up by how far their ages are apart.

    They are the autocorrelation of the weights: by Fourier transforms it takes about as long as the ages reach, and not
    the square of how many there are.
    """
    import numpy as np  # only a large fleet needs it

    least = min(by_age)
    weights = np.zeros(max(by_age) - least + 1)
    weights[[age - least for age in by_age]] = [*by_age.values()]
    size = 2 * len(weights)  # with as many zeros behind them, no weight meets one from beyond the end
    products, pairs = (
        np.fft.irfft(np.abs(np.fft.rfft(each, size)) ** 2, size)[: len(weights)]
        for each in (weights, (weights != 0).astype(float))
    )
    products[1:] *= 2  # each pair in both orders
    for gap in np.flatnonzero(pairs > 0.5):  # the others have no pair, and rounding errors only
        yield int(gap), float(products[gap])
