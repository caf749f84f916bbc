"""When a run ends, when it is judged, and what comes out of it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields
from paceline.core.messages import Ticket
from paceline.trace.record import Trace

if TYPE_CHECKING:
    from torch import nn

    from paceline.learning.cost import Costs
    from paceline.pruning.record import PruningRecord


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
    """When to judge the model: at every so many updates, or at the first update after every so many seconds."""

    updates: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        chosen = [value for value in (self.updates, self.seconds) if value is not None]
        if len(chosen) != 1 or not 0 < chosen[0] < math.inf:
            raise ConfigError(f"{self}: give either updates or seconds, and more than 0")


@dataclass(frozen=True)
class AtUpdates(Every):
    """When a recorded run was judged."""

    chosen: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Any will do."""


class Interval:
    """Tells when a judgement is due. Without a wish: at first after each update, then whenever they grew by 5 %."""

    GROWTH = 1.05

    def __init__(self, every: Every | None) -> None:
        self._every = every
        self.next = 0.0
        self._plan(0, 0.0)

    def due(self, updates: int, seconds: float) -> bool:
        by_time = self._every is not None and self._every.seconds is not None
        if (_picoseconds(seconds) if by_time else updates) < self.next:
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


class Row(NamedTuple):
    """The state of a run when it was judged."""

    updates: int
    seconds: float
    samples: int
    loss: float
    accuracy: float
    staleness: float  # mean over the updates since the row before
    training_loss: float  # mean over the samples used since the row before


@dataclass(frozen=True)
class Run:
    """What a training run came to."""

    model: "nn.Module"
    history: Sequence[Row]
    trace: Trace
    mean_staleness: float
    max_staleness: int
    ended: str  # by updates, epochs, seconds, target, no workers, too few workers, diverged or interrupted
    problem: str | None = None  # in words, if it diverged or lost too many workers
    spoiled: Sequence[Ticket] = field(default=(), repr=False)  # contributions left out because not finite
    directory: Path | None = None
    evaluation: str | None = None  # in virtual time: gradients "fused", or "exact: why"
    local: "nn.Module | None" = None  # where workers train models of their own: the one with the smallest training loss
    costs: "Costs | None" = None  # and what that took
    loss: "nn.Module | None" = None  # a loss with parameters of its own, which were trained with the model
    pruning: "PruningRecord | None" = field(default=None, repr=False)  # which samples were left out, if any could be

    def summary(self) -> dict[str, object]:
        """The run in a few numbers."""
        last = self.history[-1]
        return {
            "ended": self.ended,
            "problem": self.problem,
            "updates": last.updates,
            "seconds": last.seconds,
            "samples": last.samples,
            "loss": last.loss if math.isfinite(last.loss) else None,
            "accuracy": last.accuracy if math.isfinite(last.accuracy) else None,
            "mean_staleness": self.mean_staleness,
            "max_staleness": self.max_staleness,
            **({} if self.evaluation is None else {"evaluation": self.evaluation}),
            "spoiled_by_worker": dict(Counter(str(ticket.worker) for ticket in self.spoiled)),
            **({} if self.costs is None else {"worker_seconds": asdict(self.costs)}),
            **({"pruned_share": self.pruning.pruned_share} if self.pruning is not None else {}),
        }

    def seconds_to(self, accuracy: float) -> float | None:
        """When the model was first seen to be this accurate, if it was."""
        return next((row.seconds for row in self.history if row.accuracy >= accuracy), None)
