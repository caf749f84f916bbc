"""What comes out of a run."""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.messages import Ticket
from paceline.storage.metrics import Row
from paceline.trace.reading import Trace

if TYPE_CHECKING:
    from torch import nn

    from paceline.learning.cost import Costs
    from paceline.pruning.record import PruningRecord


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
    non_finite: Sequence[Ticket] = field(default=(), repr=False)  # contributions that were left out
    directory: Path | None = None
    evaluation: str | None = None  # in virtual time: gradients "fused", or "exact: why"
    local: "nn.Module | None" = None  # where workers train models of their own: the one with the smallest training loss
    costs: "Costs | None" = None  # and what that took
    loss: "nn.Module | None" = None  # a loss with parameters of its own, which were trained with the model
    pruning: "PruningRecord | None" = field(default=None, repr=False)  # which samples were left out, if any could be

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
        }

    def seconds_to(self, accuracy: float) -> float | None:
        """When the model was first seen to be this accurate, if it was."""
        return next((row.seconds for row in self.history if row.accuracy >= accuracy), None)
