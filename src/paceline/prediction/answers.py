"""A whole inquiry answered: one prediction for each strategy, with the model's curvature if there is a model."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError
from paceline.fleets.base import labels_of
from paceline.prediction.answer import Prediction, Wishes, predict, recorded
from paceline.prediction.descent import Descent, descent_of
from paceline.prediction.inquiry import Inquiry
from paceline.trace.durations import doubts

if TYPE_CHECKING:
    from paceline.learning.curvature import Curvature

RECORDED = "as recorded"


@dataclass(frozen=True)
class Looked:
    """What was found out about a model: its curvature at the initial weights, and the size of a message."""

    curvature: "Curvature"
    message_bytes: int


@dataclass(frozen=True)
class Answers:
    """Predictions by strategy, and what they rest on. ``curvature``: as given, or as found (``looked``)."""

    inquiry: Inquiry
    descent: Descent
    wishes: Wishes
    curvature: float | None
    looked: Looked | None
    predictions: Mapping[str, Prediction]

    def notes(self) -> list[str]:
        """What else has to be known to read the numbers."""
        told, optimizer, fleet = [], self.inquiry.optimizer, self.inquiry.fleet
        if optimizer is not None and descent_of(optimizer.name, optimizer.options) is None:
            told.append(f"{optimizer.name} scales its steps by itself: limits and steps are those of SGD.")
        if self.looked is None and fleet.network.bandwidth < math.inf:
            told.append("Without a model messages have no size: of the network only the latency counts.")
        if fleet.changes:
            told.append("Workers that leave or join are left out: all are taken to be there.")
        if self.inquiry.recorded is not None:
            told += doubts(self.inquiry.recorded.durations)
        return told

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        looked = None if self.looked is None else {**asdict(self.looked.curvature), **asdict(self.looked)}
        return {
            "source": self.inquiry.source,
            "workers": self.inquiry.fleet.workers,
            "descent": asdict(self.descent),
            "wishes": asdict(self.wishes),
            "curvature": self.curvature,
            "looked_at": looked,
            "notes": self.notes(),
            "rows": [{"strategy": label, **each.table()} for label, each in self.predictions.items()],
        }


def answer(
    inquiry: Inquiry,
    wishes: Wishes = Wishes(),
    *,
    momentum: float | None = None,
    curvature: float | None = None,
    look: bool = True,
    progress: Callable[["Curvature"], None] | None = None,
) -> Answers:
    """Predict every strategy of an inquiry. Refuses what does not fit before anything is computed.

    momentum   of plain SGD, instead of the optimizer's
    curvature  if it is known; else it is looked for in the model, if there is one and ``look`` says so
    """
    optimizer = inquiry.optimizer
    own = None if optimizer is None else descent_of(optimizer.name, optimizer.options)
    descent = (own or Descent()) if momentum is None else Descent(momentum)
    if curvature is not None and not 0 < curvature < math.inf:
        raise ConfigError(f"a curvature of {curvature:g} bounds no step: give a finite number above 0")
    strategies = {
        choice.short: choice.strategy(inquiry.fleet.medians, labels_of(inquiry.fleet)) for choice in inquiry.choices
    }
    for label, strategy in strategies.items():
        try:
            strategy.check(inquiry.fleet.workers, None)
        except ConfigError as error:
            raise ConfigError(
                str(error) if str(error).startswith("strategy") else f"strategy {label!r}: {error}"
            ) from None
    wanted = curvature is None or inquiry.fleet.network.bandwidth < math.inf
    looked = look_at(inquiry, progress) if look and wanted else None
    if curvature is None and looked is not None and looked.curvature.value > 0:
        curvature = looked.curvature.value
    message_bytes = 0 if looked is None or inquiry.recorded is not None else looked.message_bytes
    predictions = {}
    if inquiry.recorded is not None:
        predictions[RECORDED] = recorded(inquiry.recorded.measures, descent, curvature, wishes)
    for label, strategy in strategies.items():
        predictions[label] = predict(
            strategy,
            inquiry.fleet,
            descent=descent,
            curvature=curvature,
            message_bytes=message_bytes,
            wishes=wishes,
            seed=inquiry.seed,
        )
    return Answers(inquiry, descent, wishes, curvature, looked, predictions)


def look_at(inquiry: Inquiry, progress: Callable[["Curvature"], None] | None = None) -> Looked | None:
    """Make the model as a run would, and find its curvature. None without a model."""
    if inquiry.task is None:
        return None
    from paceline.config.experiment import make_task
    from paceline.learning.curvature import curvature
    from paceline.learning.model_state import message_bytes

    task = make_task(inquiry.task, inquiry.seed)
    return Looked(curvature(task, progress=progress), message_bytes(task.model))
