"""When a run ends, when it reached a target, and how often something is done while it lasts."""

import math
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.core.fields import MOST_SECONDS, as_kind, check_fields, check_most, shown
from paceline.storage.metrics import Row


@dataclass(frozen=True)
class Stop:
    """When to stop: after so many updates, epochs or (virtual) seconds, or at a target, whichever is first.

    Events at exactly ``seconds`` still count. An epoch is as many samples as the workers' shards hold in whole batches,
    counted when an update uses them, or when pruning skips them. ``target`` is an accuracy. ``metric`` is the name of
    any metric that the evaluation returns, as in ``Stop(metric="perplexity", below=20.0)``: the run ends when it is at
    most ``below``, or at least ``above``.
    """

    updates: int | None = None
    epochs: float | None = None
    seconds: float | None = None
    target: float | None = None
    metric: str | None = None
    below: float | None = None
    above: float | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        amounts = {name: getattr(self, name) for name in ("updates", "epochs", "seconds", "target")}
        for name, value in amounts.items():
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"Stop cannot have {name}={value}: it must be positive and finite")
        if self.target is not None:
            check_accuracy("target", self.target)
        self._check_metric()
        if self.metric is None and all(value is None for value in amounts.values()):
            raise ConfigError(f"a run needs an end: give Stop one of {', '.join(amounts)}, or a metric")

    def _check_metric(self) -> None:
        limits = {name: value for name, value in (("below", self.below), ("above", self.above)) if value is not None}
        if self.metric is None and limits:
            name, value = next(iter(limits.items()))
            raise ConfigError(f"Stop cannot have {name}={value} alone: name the metric, as in metric='loss'")
        if self.metric is not None and len(limits) != 1:
            raise ConfigError(f"Stop cannot have metric={self.metric!r} alone: give either below or above")
        for name, value in limits.items():
            if not math.isfinite(value):
                raise ConfigError(f"Stop cannot have {name}={value}: it must be finite")
            if self.metric == "accuracy":
                check_accuracy(name, value)

    @property
    def needs(self) -> dict[str, str]:
        """The metrics that the evaluation must return, each with what asks for it."""
        accuracy = {} if self.target is None else {"accuracy": f"Stop(target={self.target:g})"}
        return accuracy | ({} if self.metric is None else {self.metric: f"Stop(metric={self.metric!r})"})

    def reached(self, row: Row) -> str | None:
        """Which target an evaluation has reached, in words: "target" is that of the accuracy."""
        if self.target is not None and row.accuracy >= self.target:
            return "target"
        value = row.metrics.get(self.metric, math.nan) if self.metric is not None else math.nan
        if self.below is not None and value <= self.below:
            return f"{self.metric} below {self.below:g}"
        if self.above is not None and value >= self.above:
            return f"{self.metric} above {self.above:g}"
        return None


@dataclass(frozen=True)
class Target:
    """A metric that is to be at least (``above``) or at most this value: how soon it is tells how fast a run was."""

    metric: str
    value: float
    above: bool

    def reached(self, row: Row) -> bool:
        found = metric_of(row, self.metric)
        return found >= self.value if self.above else found <= self.value

    @property
    def words(self) -> str:
        if self.metric == "accuracy" and self.above:
            return f"{self.value:.1%} accuracy"
        return f"{self.metric} {'above' if self.above else 'below'} {self.value:g}"

    @property
    def short(self) -> str:
        """The same, for the heading of a column."""
        if self.metric != "accuracy" or not self.above:
            return self.words
        whole = abs(self.value * 100 - round(self.value * 100)) < 1e-9
        return f"{self.value:.0%}" if whole else f"{self.value:.1%}"


def check_accuracy(name: str, value: float) -> None:
    """Refuse an accuracy that no evaluation can find, such as one in percent: a run would go on for ever."""
    if not 0 < value <= 1:
        instead = f"{value / 100:g}" if 1 < value <= 100 else "0.9"
        raise ConfigError(f"{name}={value} is no accuracy: between 0 and 1, such as {instead}")


def metric_of(row: Row, name: str) -> float:
    """A metric of an evaluation by its name; NaN if it did not return one."""
    return row.loss if name == "loss" else row.accuracy if name == "accuracy" else row.metrics.get(name, math.nan)


def target_of(
    target: float | None, metric: str | None, below: float | None, above: float | None, stop: Stop | None = None
) -> Target | None:
    """What was asked for: an accuracy, or a metric with a limit; else what ends a run, if it is one of these."""
    for name, given in (("target", target), ("metric", metric), ("below", below), ("above", above)):
        try:
            as_kind(given, (str if name == "metric" else float, type(None)))
        except TypeError as error:
            raise ConfigError(f"{name}={shown(given)} is not possible: give {error}") from None
    if metric is None and (below is not None or above is not None):
        name, value = ("below", below) if below is not None else ("above", above)
        raise ConfigError(f'{name}={value} is the limit of a metric: name it, as in metric = "perplexity"')
    if metric is not None:
        if target is not None:
            raise ConfigError(f"target={target} is an accuracy, and metric={metric!r} another target: give one of them")
        if (below is None) == (above is None):
            raise ConfigError(f"metric={metric!r} needs one limit: give either below or above")
        value = below if below is not None else above
        if value is None or not math.isfinite(value):
            raise ConfigError(f"metric={metric!r} cannot have the limit {value}: it must be finite")
        if metric == "accuracy":
            check_accuracy("accuracy", value)
        return Target(metric, value, below is None)
    if target is not None:
        check_accuracy("target", target)
        return Target("accuracy", target, True)
    if stop is not None and stop.metric is not None:
        return target_of(None, stop.metric, stop.below, stop.above)
    return None if stop is None or stop.target is None else Target("accuracy", stop.target, True)


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
        check_most(self, MOST_SECONDS, "seconds")


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
