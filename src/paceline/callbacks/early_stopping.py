"""Ends a run that does not get better any more."""

import math
from dataclasses import dataclass, field
from typing import Literal

from paceline.callbacks.base import Callback, RunInfo
from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields
from paceline.storage.metrics import Row


@dataclass
class EarlyStopping(Callback):
    """Ends the run when a metric has not improved for some evaluations.

    metric     the name of a metric that the evaluation returns
    patience   how many evaluations in a row without an improvement end the run; ``every=`` sets how often there is one
    mode       ``min`` if small is good, ``max`` if large is
    min_delta  how much better than the best so far counts as an improvement

    A run that is resumed continues to count where it was. An evaluation that is NaN is no improvement.
    """

    metric: str = "loss"
    patience: int = 10
    mode: Literal["min", "max"] = "min"
    min_delta: float = 0.0
    best: float = field(default=math.nan, init=False)
    waited: int = field(default=0, init=False)  # evaluations since the best one

    def __post_init__(self) -> None:
        check_fields(self)
        if self.patience < 1:
            raise ConfigError(f"EarlyStopping cannot have patience={self.patience}: at least 1")
        if self.mode not in ("min", "max"):
            raise ConfigError(f"EarlyStopping cannot have mode={self.mode!r}: choose from min, max")
        if not 0 <= self.min_delta < math.inf:
            raise ConfigError(f"EarlyStopping cannot have min_delta={self.min_delta}: at least 0, and finite")
        self.needs = (self.metric,)

    def on_start(self, run: RunInfo) -> str | None:
        self.best, self.waited = math.nan, 0
        answers = [self.on_evaluate(row) for row in run.history]
        return answers[-1] if answers else None

    def on_evaluate(self, row: Row) -> str | None:
        value = row.metrics.get(self.metric, math.nan)
        better = self.best - value if self.mode == "min" else value - self.best
        if better > self.min_delta or (math.isnan(self.best) and not math.isnan(value)):
            self.best, self.waited = value, 0
            return None
        self.waited += 1
        if self.waited < self.patience:
            return None
        return f"{self.metric} did not improve in {self.waited} evaluations"
