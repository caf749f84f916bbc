"""Who is slow, and what it costs: one worker's times beside the others', out of the trace of a profile or run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError
from paceline.core.messages import Groups
from paceline.strategies.grouped import groups_by_speed
from paceline.trace.durations import DurationReader
from paceline.trace.history import Observer, TicketTimes
from paceline.trace.reading import Trace

TAIL = 0.9
TOLERANCE = 0.25  # of the groups that are suggested: that of ``gsgd`` on the command line
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Straggler:
    """One worker in seconds a mini-batch; ``compute`` and ``transfer`` only where its fleet tells them apart.

    round_trip  from the hand-out to the arrival, median; ``tail`` is the 90 % quantile of the same
    compute     what the worker itself took, median; ``transfer``: the rest of each round trip, median
    ratio       its median to that of the fastest
    straggling  of the time that workers would have waited under SSGD, the share in rounds in which it was the last
    """

    worker: int
    mini_batches: int
    round_trip: float
    tail: float
    compute: float | None
    transfer: float | None
    ratio: float
    straggling: float


@dataclass(frozen=True)
class Stragglers:
    """The workers that finished something; those that finished nothing are ``unknown``."""

    seconds: float
    workers: Sequence[Straggler]
    unknown: Sequence[int]
    groups: Groups  # of like speed
    waiting: float  # the share of the workers' time that SSGD would have them wait
    notes: Sequence[str] = ()  # what is known only in part

    def table(self) -> dict[str, Any]:
        return {**asdict(self), "groups": [list(group) for group in self.groups]}


class _Computed(Observer):
    """What each worker itself took, where the trace has it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[int, list[float]] = defaultdict(list)

    def computed(self, times: TicketTimes, seconds: float) -> None:
        self.seconds[times.ticket.worker].append(seconds)


def stragglers(trace: Trace, tolerance: float = TOLERANCE) -> Stragglers:
    """Read the trace of a profile, of a recording, or of any run whose workers computed what they were given."""
    durations, computed = DurationReader(trace.about), _Computed()
    history = trace.follow(durations, computed)
    measured = durations.by_worker
    known = {worker: np.array(own.seconds) for worker, own in sorted(measured.items()) if own.seconds}
    if not known:
        raise ConfigError("nobody finished a mini-batch: measure longer, or give smaller ones")
    medians = {worker: float(np.median(own)) for worker, own in known.items()}
    blamed, waiting = _under_ssgd(known)
    fastest = min(medians.values())
    found = [
        _straggler(worker, own, computed.seconds[worker], medians[worker] / fastest, blamed[worker])
        for worker, own in known.items()
    ]
    numbers = list(known)
    groups = groups_by_speed([medians[worker] for worker in numbers], tolerance)
    return Stragglers(
        seconds=history.now,
        workers=found,
        unknown=[worker for worker in measured if worker not in known],
        groups=tuple(tuple(numbers[place] for place in group) for group in groups),
        waiting=waiting,
        notes=tuple(trace.about.get("notes", ())),
    )


def _straggler(worker: int, round_trips: Floats, compute: list[float], ratio: float, straggling: float) -> Straggler:
    own = np.array(compute[: len(round_trips)])  # what was about to arrive at the end is not in the round trips
    return Straggler(
        worker=worker,
        mini_batches=len(round_trips),
        round_trip=float(np.median(round_trips)),
        tail=float(np.quantile(round_trips, TAIL)),
        compute=float(np.median(own)) if len(own) else None,
        transfer=float(np.median(round_trips[: len(own)] - own)) if len(own) else None,
        ratio=ratio,
        straggling=straggling,
    )


def _under_ssgd(known: Mapping[int, Floats]) -> tuple[dict[int, float], float]:
    """Rounds in which everybody takes what it took, again and again in that order: who is last, and who waits.

    Returns each worker's share of all waiting, in the rounds that it is the last of, and how much of their time all
    workers wait.
    """
    rounds = max(map(len, known.values()))
    took = np.stack([np.resize(own, rounds) for own in known.values()])
    last = took.max(axis=0)
    waits = (last - took).sum(axis=0)
    slowest = took.argmax(axis=0)
    total = float(waits.sum()) or 1.0
    blamed = {worker: float(waits[slowest == place].sum()) / total for place, worker in enumerate(known)}
    return blamed, float(waits.sum() / (last.sum() * len(known)))
