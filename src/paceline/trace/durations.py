"""What each worker took for a mini-batch in a recorded run, whatever the kind of work was.

A worker computes the gradient of one mini-batch, in one block or several, or goes through several mini-batches with a
model of its own. Messages on their way and labels by other workers' models are no part of a duration. Of work that a
recall ended early, the blocks that were done are known: their time is scaled up to the whole mini-batch.
"""

from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from math import fsum
from statistics import fmean
from typing import Any

from paceline.core.errors import ConfigError
from paceline.trace.history import Observer, TicketTimes

MOST_DURATIONS = 20_000_000  # of all workers together: 160 MB


def seconds_a_mini_batch(times: TicketTimes) -> float | None:
    """What a ticket that was handed in took, for each of its mini-batches; None where that cannot be told.

    Of several mini-batches only the sum is known: they are taken to be alike.
    """
    seconds = times.ended - times.started - (times.download + times.relabelling + times.upload)
    if not times.done or seconds <= 0 or times.answered_at_once:
        return None
    work = times.ticket.work
    return seconds * work.units / times.done / work.mini_batches


@dataclass
class Durations:
    """What one worker took for its mini-batches, in the order in which it went through them.

    ``samples`` has the size of each, where workers had sizes of their own; else it is empty.
    """

    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    samples: "array[int]" = field(default_factory=lambda: array("q"))
    scaled: int = 0  # of them: known of some of the blocks only, and scaled up to all
    cut: int = 0  # not among them: stopped or cut short, so that nobody knows what they would have taken


class DurationReader(Observer):
    """Collects the durations of each worker."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        numbers = range(int(about.get("workers", 0)))
        self.by_worker = defaultdict(Durations, {worker: Durations() for worker in numbers})
        self._left = MOST_DURATIONS

    def arrived(self, times: TicketTimes) -> None:
        ticket = times.ticket
        worker, work = ticket.worker, ticket.work
        own, count = self.by_worker[worker], 1
        if times.plain and work.kind == "gradient" and times.ended > times.started:  # as mostly
            seconds = times.ended - times.started
        elif (known := seconds_a_mini_batch(times)) is not None:
            seconds, count = known, work.mini_batches
            own.scaled += times.done < work.units
        else:
            own.cut += 1
            return
        self._left -= count
        if self._left < 0:
            raise ConfigError(
                f"the workers went through more than {MOST_DURATIONS:,} mini-batches in the recorded run: "
                "too many to be gone through again"
            )
        if count == 1:
            own.seconds.append(seconds)
        else:
            own.seconds.extend(repeat(seconds, count))
        if work.samples:
            own.samples.extend(repeat(work.samples, count))

    def halted(self, times: TicketTimes) -> None:
        self.by_worker[times.ticket.worker].cut += 1


CERTAIN = 1.25  # sizes that differ by less tell nothing of the fixed part


def fixed_seconds(own: Durations) -> float | None:
    """What of a worker's durations does not depend on the samples, by least squares; None if its sizes hardly vary."""
    if not own.samples or max(own.samples) < CERTAIN * min(own.samples):
        return None
    samples, seconds = fmean(own.samples), fmean(own.seconds)
    spread = fsum((size - samples) ** 2 for size in own.samples)
    both = fsum((size - samples) * (took - seconds) for size, took in zip(own.samples, own.seconds, strict=True))
    return min(max(0.0, seconds - max(0.0, both / spread) * samples), 0.95 * min(own.seconds))


def doubts(durations: Mapping[int, Durations]) -> list[str]:
    """What is known of the durations only in part, in words."""
    found: list[str] = []
    for worker, own in sorted(durations.items()):
        total = len(own.seconds) + own.cut
        if own.cut:
            found.append(
                f"worker {worker}: {own.cut} of {total} pieces of work were cut short; what they would have taken is "
                f"not known, and the durations used for it may be too short"
            )
        elif own.scaled:
            found.append(f"worker {worker}: {own.scaled} of {total} durations are known of some blocks, and scaled up")
    return found
