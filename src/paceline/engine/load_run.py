"""A run from its directory, as an object like the one that ``train`` returned."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.codec import real, whole
from paceline.core.errors import ConfigError
from paceline.core.fields import as_path
from paceline.core.messages import Ticket
from paceline.engine.result import Run
from paceline.learning.cost import Costs
from paceline.pruning.record import read_pruning
from paceline.storage.reading import SavedRun, read_run
from paceline.trace.history import Observer, TicketTimes
from paceline.trace.measure import MeasureReader

if TYPE_CHECKING:
    from torch import nn


def load_run(directory: Path | str, model: "nn.Module | None" = None) -> Run:
    """Read a run from the directory that ``train`` or ``paceline train`` wrote. Nothing in it can run code.

    model  a module of the trained architecture, whose values do not matter: ``run.model`` is a copy of it with the
           weights of the run. Without one ``run.model`` has the weights alone, for ``load_state_dict(run.model
           .state_dict())``, and cannot be called; ``paceline.load(directory, trust=True)`` reads an architecture too

    A run that was killed, or still trains, is read as far as it has come: ``run.ended`` is then "not finished", the
    history has the evaluations so far, and the weights are those of the last checkpoint, if there is one.
    """
    from paceline.storage.weights import final_weights, local_weights, loss_weights

    saved = read_run(as_path("directory", directory))
    pruned = read_pruning(saved.path)
    summary = saved.summary or {}
    mean, most, non_finite = _staleness(saved, summary)
    return Run(
        model=final_weights(saved.path, model),
        history=saved.rows,
        trace=saved.trace,
        mean_staleness=mean,
        max_staleness=most,
        ended=saved.ended,
        problem=saved.problem,
        non_finite=non_finite,
        directory=saved.path,
        evaluation=str(summary["evaluation"]) if "evaluation" in summary else None,
        local=local_weights(saved.path, model),
        costs=_costs(saved.path, summary),
        loss=loss_weights(saved.path),
        pruning=None if pruned is None else pruned.record,
        settings=settings if isinstance(settings := saved.config.get("settings"), Mapping) else {},
        strategy=strategy if isinstance(strategy := saved.config.get("strategy"), Mapping) else {},
    )


def _staleness(saved: SavedRun, summary: Mapping[str, Any]) -> tuple[float, int, tuple[Ticket, ...]]:
    """Mean and largest staleness, and the contributions that were not finite: from the summary, or from the trace."""
    try:
        if not summary["spoiled_by_worker"]:
            return float(real(summary["mean_staleness"])), whole(summary["max_staleness"]), ()
    except (LookupError, TypeError, ValueError):
        pass
    left_out = _LeftOut()
    reader = MeasureReader(saved.trace.about)
    try:
        measures = reader.measures(saved.trace.follow(reader, left_out))
    except (KeyError, ZeroDivisionError):  # a trace without updates, or one that contradicts itself
        return math.nan, 0, tuple(left_out.tickets)
    return measures.mean_staleness, measures.max_staleness, tuple(left_out.tickets)


def _costs(path: Path, summary: Mapping[str, Any]) -> Costs | None:
    if "worker_seconds" not in summary:
        return None
    try:
        return Costs(**{str(name): float(real(value)) for name, value in summary["worker_seconds"].items()})
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{path / 'summary.json'} cannot be understood: worker_seconds") from None


class _LeftOut(Observer):
    """The tickets of contributions that were not finite."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def non_finite(self, times: TicketTimes) -> None:
        self.tickets.append(times.ticket)
