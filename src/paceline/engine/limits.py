"""When a run ends, and how often something is done while it lasts."""

import math
from dataclasses import dataclass, fields

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields


@dataclass(frozen=True)
class Stop:
    """When to stop: after so many updates, epochs or (virtual) seconds, or at a target accuracy, whichever is first.

    Events at exactly ``seconds`` still count. An epoch is as many samples as the workers' shards hold in whole batches,
    counted when an update uses them, or when pruning skips them.
    """

    updates: int | None = None
    epochs: float | None = None
    seconds: float | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        if all(value is None for value in chosen.values()):
            raise ConfigError(f"a run needs an end: give Stop one of {', '.join(chosen)}")
        for name, value in chosen.items():
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"Stop cannot have {name}={value}: it must be positive and finite")


@dataclass(frozen=True)
class Every:
    """How often: at every so many updates, or at the first update after every so many seconds."""

    updates: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        chosen = [value for value in (self.updates, self.seconds) if value is not None]
        if len(chosen) != 1 or not 0 < chosen[0] < math.inf:
            raise ConfigError(f"{self}: give either updates or seconds, and more than 0")


@dataclass(frozen=True)
class AtUpdates(Every):
    """At the updates at which a recorded run was evaluated."""

    chosen: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Any will do."""


class Interval:
    """When something is due next. By default after each update at first, then whenever their number grew by 5 %."""

    GROWTH = 1.05

    def __init__(self, every: Every | None) -> None:
        self._every = every
        self.by_time = every is not None and every.seconds is not None
        self.next = 0.0  # an update, or by time a picosecond
        self._plan(0, 0.0)

    def due(self, updates: int, seconds: float) -> bool:
        if (_picoseconds(seconds) if self.by_time else updates) < self.next:
            return False
        self._plan(updates, seconds)
        return True

    def _plan(self, updates: int, seconds: float) -> None:
        every = self._every
        if every is None:
            self.next = max(updates + 1, updates * self.GROWTH)
        elif isinstance(every, AtUpdates):
            self.next = min((each for each in every.chosen if each > updates), default=math.inf)
        elif every.updates is not None:
            self.next = (updates // every.updates + 1) * every.updates
        else:
            period = max(1, _picoseconds(every.seconds or 0.0))
            self.next = (_picoseconds(seconds) // period + 1) * period


def _picoseconds(seconds: float) -> int:
    """Whole numbers, in which the third multiple of 0.1 is 0.3."""
    return round(seconds * 10**12)
