"""The value of a metric whose time is compared."""

import math
from dataclasses import dataclass

from paceline.core.errors import ConfigError
from paceline.engine.limits import Stop
from paceline.storage.metrics import Row


@dataclass(frozen=True)
class Target:
    """A metric that is to be at least (``above``) or at most this value."""

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


def metric_of(row: Row, name: str) -> float:
    """A metric of an evaluation by its name; NaN if it did not return one."""
    return row.loss if name == "loss" else row.accuracy if name == "accuracy" else row.metrics.get(name, math.nan)


def target_of(
    target: float | None, metric: str | None, below: float | None, above: float | None, stop: Stop | None
) -> Target | None:
    """The target of a comparison: an accuracy, or a metric with a limit; else the one that ends a run, if any does."""
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
        return Target(metric, value, below is None)
    if target is not None:
        if not 0 < target <= 1:
            raise ConfigError(f"target={target} is no accuracy: between 0 and 1, such as 0.9")
        return Target("accuracy", target, True)
    if stop is not None and stop.metric is not None:
        return target_of(None, stop.metric, stop.below, stop.above, None)
    return None if stop is None or stop.target is None else Target("accuracy", stop.target, True)
