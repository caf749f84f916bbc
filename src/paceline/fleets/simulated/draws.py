"""What the mini-batches of each simulated worker take: drawn from its own stream, by their size and the moment."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.data.sizes import BatchSizes
from paceline.delays import PerSample, of_size
from paceline.fleets.simulated.conditions import Slowness
from paceline.randomness import stream

if TYPE_CHECKING:
    from paceline.fleets.simulated.fleet import SimulatedFleet

MOST_DRAWN = 10**10  # in a run: half a day of nothing else; only a forged checkpoint has more


class Draws:
    """The durations of one run.

    iterators   of each worker's durations, and ``counts`` how many were drawn: all there is to know of where it stands
    per_sample  do durations depend on the samples of a mini-batch?
    slowness    by how much longer work takes that begins at a time; None if it never does
    """

    def __init__(self, fleet: "SimulatedFleet", seed: int, sizes: BatchSizes | None) -> None:
        self._fleet = fleet
        self._sizes = sizes
        self.iterators = [delay.durations(stream(seed, "delay", i)) for i, delay in enumerate(fleet.worker_delays)]
        self.counts = [0] * fleet.workers
        self.per_sample = any(isinstance(delay, PerSample) for delay in fleet.worker_delays)
        self.slowness = Slowness(fleet.slowness, seed) if fleet.slowness else None
        if self.per_sample and sizes is None:
            raise ConfigError("PerSample delays depend on the samples of a mini-batch: give batch_size=32, or a list")

    def draw(self, worker: int, samples: int) -> float:
        """What the next mini-batch of a worker takes, of so many samples (0: as many as the run's)."""
        seconds = next(self.iterators[worker])
        self.counts[worker] += 1
        if not 0 < seconds < math.inf:
            raise impossible(worker, seconds)
        return self.of_size(worker, samples, seconds)

    def of_size(self, worker: int, samples: int, drawn: float) -> float:
        """What a mini-batch of so many samples takes, where this was drawn."""
        if self._sizes is None or not (samples or self.per_sample):
            return drawn
        samples = samples or self._sizes.each[worker]
        return of_size(self._fleet.worker_delays[worker], drawn, samples, self._sizes.mean)

    def factor(self, worker: int, seconds: float) -> float:
        """How many times as long work takes that a worker begins at a time."""
        return 1.0 if self.slowness is None else self.slowness.factor(self._fleet.machine_of(worker), seconds)

    def restore(self, counts: Sequence[int], most: int) -> None:
        """Pass over what was drawn, in the same streams from the start."""
        if sum(counts) > min(most, MOST_DRAWN):
            raise ValueError(f"{sum(counts)} durations cannot have been drawn")
        for durations, count in zip(self.iterators, counts, strict=True):
            next(islice(durations, count, count), None)
        self.counts[:] = counts


def impossible(worker: int, seconds: float) -> ConfigError:
    return ConfigError(f"worker {worker} drew a delay of {seconds}: it must be positive and finite")
