"""What comes out of a run."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError
from paceline.core.fields import nearest
from paceline.core.messages import Ticket
from paceline.engine.limits import target_of
from paceline.storage.metrics import Row
from paceline.trace.reading import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from torch import nn

    from paceline.learning.cost import Costs
    from paceline.pruning.record import PruningRecord

LONGEST, MOST = 80, 6  # characters of a fact, and metrics, in the short form of a run


@dataclass(frozen=True, repr=False)
class Run:
    """What a training run came to. In a notebook it is shown as a table and a picture."""

    model: "nn.Module"
    history: Sequence[Row]
    trace: Trace
    mean_staleness: float
    max_staleness: int
    ended: str  # by updates, epochs, seconds, target, no workers, too few workers, diverged or interrupted
    problem: str | None = None  # in words, if it diverged or lost too many workers
    non_finite: Sequence[Ticket] = ()  # contributions that were left out
    directory: Path | None = None
    evaluation: str | None = None  # in virtual time: gradients "fused", or "exact: why"
    local: "nn.Module | None" = None  # where workers train models of their own: the one with the smallest training loss
    costs: "Costs | None" = None  # and what that took
    loss: "nn.Module | None" = None  # a loss with parameters of its own, which were trained with the model
    pruning: "PruningRecord | None" = None  # which samples were left out, if any could be
    # what it was made of, as data: optimizer, learning rate, batch size, model, data, seed
    settings: Mapping[str, Any] = field(default_factory=dict)
    strategy: Mapping[str, Any] = field(default_factory=dict)  # as data, such as {"kind": "FastestK", "quorum": 3, ...}

    @property
    def spoiled(self) -> Sequence[Ticket]:
        """The former name of ``non_finite``."""
        warnings.warn("Run.spoiled is now Run.non_finite", DeprecationWarning, stacklevel=2)
        return self.non_finite

    def summary(self) -> dict[str, object]:
        """The run in a few numbers."""
        last = self.history[-1]
        others = {
            name: value if math.isfinite(value) else None
            for name, value in last.metrics.items()
            if name not in ("loss", "accuracy")
        }
        return {
            "ended": self.ended,
            "problem": self.problem,
            "updates": last.updates,
            "seconds": last.seconds,
            "samples": last.samples,
            "loss": last.loss if math.isfinite(last.loss) else None,
            "accuracy": last.accuracy if math.isfinite(last.accuracy) else None,
            **({"metrics": others} if others else {}),
            "mean_staleness": self.mean_staleness,
            "max_staleness": self.max_staleness,
            **({} if self.evaluation is None else {"evaluation": self.evaluation}),
            "spoiled_by_worker": dict(Counter(str(ticket.worker) for ticket in self.non_finite)),
            **({} if self.costs is None else {"worker_seconds": asdict(self.costs)}),
            **({"pruned_share": self.pruning.pruned_share} if self.pruning is not None else {}),
            **self._counted(),
        }

    def _counted(self) -> dict[str, object]:
        """What the trace is gone through once more for, if its first line says that there is something to count."""
        about = self.trace.about
        if "workers_a_machine" not in about and "prices" not in about:
            return {}
        from paceline.trace.measure import measure

        found = measure(self.trace)
        return {
            name: value for name in ("bytes_between_machines", "price") if (value := getattr(found, name)) is not None
        }

    def plot(self, *metrics: str) -> "Figure":
        """A matplotlib figure of metrics against time and against updates; by default of the loss and the accuracy.

        metrics  names that the evaluation returns, or ``training_loss`` or ``staleness``

        The strategy is named above the panels, and drawn in the colour that it has in every figure.
        """
        from paceline.engine.curves import figure_of

        return figure_of(self.history, metrics, self.strategy, about=self.trace.about)

    def to_pandas(self) -> "DataFrame":
        """The evaluations as a pandas table: a row for each, a column for each number and metric."""
        try:
            import pandas
        except ImportError:
            raise ConfigError("to_pandas() needs the package pandas: pip install 'paceline[notebook]'") from None
        return pandas.DataFrame([row.numbers() for row in self.history])

    def __repr__(self) -> str:
        facts = [f"{name}={value}" for name, value in self._facts().items()]
        return f"Run({', '.join(facts)})"

    def _repr_html_(self) -> str:
        from paceline.engine.curves import page_of

        return page_of(self._facts(), self.plot())

    def _facts(self) -> dict[str, str]:
        """The run in a few words."""
        facts: dict[str, object] = {"ended": self.ended}
        if self.history:
            last = self.history[-1]
            facts |= {"updates": f"{last.updates:,}", "seconds": f"{last.seconds:,.4g}", "samples": f"{last.samples:,}"}
            shown = [(name, value) for name, value in last.metrics.items() if not math.isnan(value)]
            facts |= {name: f"{value:.1%}" if name == "accuracy" else f"{value:.4g}" for name, value in shown[:MOST]}
        facts["staleness"] = f"{self.mean_staleness:.3g} on average, {self.max_staleness} at most"
        if self.problem:
            facts["problem"] = self.problem
        if self.directory is not None:
            facts["directory"] = self.directory
        return {name: _shortened(str(value)) for name, value in facts.items()}

    def seconds_to(
        self,
        accuracy: float | None = None,
        *,
        metric: str | None = None,
        below: float | None = None,
        above: float | None = None,
    ) -> float | None:
        """When an evaluation first found the model this accurate, or a metric at a limit; None if none did.

        metric  any name that the evaluation returns, with ``below`` or ``above``, as in
                ``run.seconds_to(metric="perplexity", below=20.0)``
        """
        goal = target_of(accuracy, metric, below, above)
        if goal is None:
            raise ConfigError("seconds_to() needs a target: an accuracy, or metric= with below= or above=")
        known = dict.fromkeys(name for row in self.history for name in row.metrics)
        if known and goal.metric not in known:
            raise ConfigError(f"no evaluation of this run has a {goal.metric!r}: {nearest(goal.metric, [*known])}")
        return next((row.seconds for row in self.history if goal.reached(row)), None)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
