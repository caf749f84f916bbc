"""How long to wait for a worker that may be stopped, stuck, or only slow: as long as its own past makes plausible."""

import math
from collections import deque
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields

REMEMBERED = 32


@dataclass(frozen=True)
class SilenceTimeout:
    """A worker is given up when a ticket takes ``factor`` times as long as the slowest of its last 32.

    It is never given up before ``at_least`` seconds; while it has finished nothing yet, after ``at_first`` seconds.
    """

    factor: float = 10.0
    at_least: float = 5.0
    at_first: float = 120.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 < self.factor < math.inf:
            raise ConfigError(f"{self}: a factor of {self.factor} would give up workers that are well: more than 1")
        for name in ("at_least", "at_first"):
            if not 0 < (seconds := getattr(self, name)) < math.inf:
                raise ConfigError(f"{self}: {name} must be positive and finite, not {seconds}")


class DurationHistory:
    """What one worker took for its last tickets, and so how long the next one may take."""

    def __init__(self, deadline: SilenceTimeout) -> None:
        self._deadline = deadline
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self.add = self._seconds.append

    @property
    def limit(self) -> float:
        """Seconds."""
        if not self._seconds:
            return self._deadline.at_first
        return max(self._deadline.at_least, self._deadline.factor * max(self._seconds))

    def reason(self) -> str:
        """Why the limit is what it is."""
        if not self._seconds:
            return f"its deadline is {self.limit:.3g} s: it has not finished anything yet"
        slowest, factor = max(self._seconds), self._deadline.factor
        past = f"the slowest of its last {len(self._seconds)} mini-batches took {slowest:.3g} s"
        if factor * slowest < self.limit:
            return f"its deadline is {self.limit:.3g} s, the least there is: {past}"
        return f"its deadline is {self.limit:.3g} s: {past}, and {factor:g} times that is allowed"
