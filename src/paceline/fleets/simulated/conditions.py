r"""What happens to simulated workers beside their own durations: they are lost and come back, and are slow together.

Everything is drawn from the run's seed, from streams of its own: other conditions leave durations and data alone.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from paceline.core.codec import whole
from paceline.core.errors import ConfigError
from paceline.core.fields import MOST_SECONDS, check_fields, check_most, shown
from paceline.core.messages import Joined, Leaving, Left
from paceline.core.stateful import State
from paceline.delays import Hourly, SlowSpells
from paceline.randomness import stream

MOST_STAYS = 10**7  # of one worker; only a forged checkpoint has more


@dataclass(frozen=True)
class Availability:
    r"""Workers that are lost and come back at random: exponential times here and away, independent of each other.

    mean_up, mean_down  the mean seconds for which a worker is here, and for which it is away: it is here for the share
                        $\text{up} / (\text{up} + \text{down})$ of the time. All are here at the start
    notice   seconds before a loss at which it is announced by ``Leaving``; of a shorter stay, when it begins. 0 for
             none
    workers  which workers; by default all
    """

    mean_up: float
    mean_down: float
    notice: float = 0.0
    workers: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("mean_up", "mean_down"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}={getattr(self, name):g} is not possible: seconds, more than 0")
        if not 0 <= self.notice < math.inf:
            raise ConfigError(f"a notice of {self.notice:g} is not possible: seconds, at least 0")
        check_most(self, MOST_SECONDS, "mean_up", "mean_down", "notice")
        try:
            object.__setattr__(self, "workers", tuple(int(worker) for worker in self.workers))
        except (TypeError, ValueError):
            raise ConfigError(
                f"Availability cannot have workers={shown(self.workers)}: give a list of numbers"
            ) from None

    def stays(self, seed: int, worker: int) -> Iterator[float]:
        """Seconds for which a worker is here, away, here, and so on."""
        generator = stream(seed, "availability", worker)
        while True:
            yield self.mean_up * generator.standard_exponential()
            yield self.mean_down * generator.standard_exponential()


class Slowness:
    """The factor by which work takes longer that begins at a time: a function of the seed, the machine and the time."""

    def __init__(self, given: Sequence[SlowSpells | Hourly], seed: int) -> None:
        self._given = given
        self._seed = seed
        self._spells: dict[tuple[int, int], _Spells] = {}

    def factor(self, machine: int, seconds: float) -> float:
        product = 1.0
        for number, each in enumerate(self._given):
            if isinstance(each, Hourly):
                product *= each.factor(seconds)
                continue
            key = number, machine if each.together == "machine" else 0
            if key not in self._spells:
                self._spells[key] = _Spells(each, stream(self._seed, "slowness", key[1], number))
            if self._spells[key].slow_at(seconds):
                product *= each.factor
        return product


class _Spells:
    """When the spells of one machine begin and end."""

    def __init__(self, spells: SlowSpells, generator: np.random.Generator) -> None:
        self._means = spells.every, spells.lasts
        self._generator = generator
        self._changes: list[float] = [0.0]  # the times at which it becomes calm, slow, calm, ...

    def slow_at(self, seconds: float) -> bool:
        changes = self._changes
        while changes[-1] <= seconds:
            mean = self._means[(len(changes) - 1) % 2]
            changes.append(changes[-1] + mean * self._generator.standard_exponential())
        return bisect_right(changes, seconds) % 2 == 0


class Stays:
    """When the workers that come and go at random do so; ticks are parts of a second."""

    def __init__(self, availability: Availability | None, workers: Sequence[int], seed: int, ticks: int) -> None:
        self._notice = 0 if availability is None else round(availability.notice * ticks)
        self._ticks = ticks
        self._seconds = {worker: availability.stays(seed, worker) for worker in workers} if availability else {}
        self._drawn = dict.fromkeys(self._seconds, 0)

    def __contains__(self, event: object) -> bool:
        """Is an event one of a worker that comes and goes at random?"""
        return isinstance(event, Joined | Left | Leaving) and event.worker in self._seconds

    def first(self) -> list[tuple[int, Joined | Left | Leaving]]:
        """What comes next of everybody at the start of a run."""
        return [each for worker in self._seconds for each in self._leaves(worker, 0)]

    def after(self, event: Joined | Left | Leaving, tick: int) -> list[tuple[int, Joined | Left | Leaving]]:
        """What comes next of a worker after an event of it."""
        if isinstance(event, Joined):
            return self._leaves(event.worker, tick)
        if isinstance(event, Leaving):
            return []
        at = tick + self._draw(event.worker)
        return [(at, Joined(at / self._ticks, event.worker))]

    def _leaves(self, worker: int, tick: int) -> list[tuple[int, Joined | Left | Leaving]]:
        at = tick + self._draw(worker)
        told = max(tick, at - self._notice)
        notice = [(told, Leaving(told / self._ticks, worker, at / self._ticks))] if self._notice else []
        return [*notice, (at, Left(at / self._ticks, worker))]

    def _draw(self, worker: int) -> int:
        self._drawn[worker] += 1
        return round(next(self._seconds[worker]) * self._ticks) or 1

    def state(self) -> State:
        return {"drawn": [[worker, count] for worker, count in self._drawn.items()]}

    def restore(self, state: State) -> None:
        for worker, count in state["drawn"]:
            if whole(count) > MOST_STAYS:
                raise ValueError(f"worker {worker} cannot have come and gone {count} times")
            more = count - self._drawn[worker]  # the first was drawn already
            next(islice(self._seconds[worker], more, more), None)
            self._drawn[worker] = count
