"""How long a worker may be silent before it is killed: a multiple of what its own last tickets took."""

import math
from collections import deque
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields

REMEMBERED = 32  # tickets


@dataclass(frozen=True)
class SilenceTimeout:
    """A worker is killed when a ticket takes ``factor`` times as long as the slowest of its last 32.

    It is never killed before ``at_least`` seconds. While it has not finished any ticket, it has ``at_first`` seconds.
    """

    factor: float = 10.0
    at_least: float = 5.0
    at_first: float = 120.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 < self.factor < math.inf:
            raise ConfigError(f"{self}: a factor of {self.factor} would kill workers that are fine: more than 1")
        for name in ("at_least", "at_first"):
            if not 0 < (seconds := getattr(self, name)) < math.inf:
                raise ConfigError(f"{self}: {name} must be positive and finite, not {seconds}")


class DurationHistory:
    """How long one worker took for its last tickets, and so how long the next one may take."""

    def __init__(self, timeout: SilenceTimeout) -> None:
        self._timeout = timeout
        self._seconds: deque[float] = deque(maxlen=REMEMBERED)
        self.add = self._seconds.append

    @property
    def limit(self) -> float:
        """Seconds that the worker may be silent."""
        if not self._seconds:
            return self._timeout.at_first
        return max(self._timeout.at_least, self._timeout.factor * max(self._seconds))

    def reason(self) -> str:
        """Why the limit is what it is."""
        if not self._seconds:
            return f"its deadline is {self.limit:.3g} s: it has not finished anything yet"
        slowest, factor = max(self._seconds), self._timeout.factor
        history = f"the slowest of its last {len(self._seconds)} mini-batches took {slowest:.3g} s"
        if factor * slowest < self.limit:
            return f"its deadline is {self.limit:.3g} s, the minimum: {history}"
        return f"its deadline is {self.limit:.3g} s: {history}, and {factor:g} times that is allowed"
