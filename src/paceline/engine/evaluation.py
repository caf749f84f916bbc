"""Evaluates the model while it is trained, when it is due, and keeps the history."""

import math
from collections.abc import Mapping, Sequence

from paceline.callbacks.base import Callback
from paceline.callbacks.hooks import Hooks
from paceline.core.codec import real
from paceline.core.errors import ConfigError, Diverged
from paceline.core.fields import nearest
from paceline.core.stateful import State
from paceline.engine.limits import Every, Interval, Stop
from paceline.engine.loop import Stepped
from paceline.learning.generators import own_generators
from paceline.learning.learner import Learner
from paceline.learning.task import Task
from paceline.storage.metrics import Metrics, Row
from paceline.trace.staleness import Staleness


class EvaluationFailed(Exception):
    """The user's evaluation raised an ``error``; the model is as it was."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the evaluation raised {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        self.error = error


def check_metrics(task: Task, stop: Stop, callbacks: Sequence[Callback], seed: int) -> None:
    """Refuse to wait for a metric that the evaluation does not return."""
    wanted = [(who, name) for name, who in stop.needs.items()]
    wanted += [(type(each).__name__, name) for each in callbacks for name in each.needs]
    if not wanted:
        return
    with own_generators(seed):  # data sets may draw random numbers when they are looked at
        found = task.evaluator()(task.model)
    for who, name in wanted:
        if math.isnan(found.get(name, math.nan)) if name == "accuracy" else name not in found:
            raise ConfigError(f"{who} waits for {name!r}, which the evaluation does not return: {nearest(name, found)}")


class Evaluator:
    """Counts updates and their staleness; adds a row to the history when one is due."""

    def __init__(self, task: Task, server: Learner, every: Every | None, hooks: Hooks, batch_size: int = 32) -> None:
        self.server = server
        self.staleness = Staleness()
        self.history: list[Row] = []
        self._evaluate = task.evaluator(batch_size)
        self._interval = Interval(every)
        self._overdue: float | None = None  # when an evaluation was due that failed
        self.hooks = hooks

    def count(self, update: Stepped) -> Row | None:
        """Count an update, and evaluate the model if that is due."""
        ages = self.staleness.count(update.version, update.step)
        interval, updates = self._interval, self.server.updates
        if self.hooks.on_update:
            self.hooks.update(updates, update.at, self.server.samples, ages, update.step)
        if not interval.by_time and updates < interval.next:  # as after most updates
            return None
        if not interval.due(updates, update.at):
            return None
        self._overdue = update.at
        return self.catch_up()

    def catch_up(self) -> Row | None:
        """Make the evaluation up that was due and failed, if any."""
        if self._overdue is None:
            return None
        row = self.evaluate(self._overdue)
        self._overdue = None
        return row

    def state(self) -> State:
        """Which row is due next. The rows themselves are in the run's metrics."""
        overdue = {} if self._overdue is None else {"overdue": self._overdue}
        return {"staleness": self.staleness.state(), "next": self._interval.next, **overdue}

    def restore(self, state: State) -> None:
        self.staleness.restore(state["staleness"])
        self._interval.next = real(state["next"])
        self._overdue = real(state["overdue"]) if "overdue" in state else None

    def evaluate(self, seconds: float) -> Row:
        """Evaluate the model now, and add a row to the history."""
        try:
            metrics = Metrics(self._evaluate(self.server.model))
        except Diverged:  # an evaluation may end a run for that reason
            raise
        except Exception as error:  # whatever the user's code raises
            raise EvaluationFailed(error) from error
        row = self._row(seconds, metrics)
        self.server.evaluated(row.loss, row.accuracy)
        self.hooks.evaluate(row)
        return row

    def repeat(self, seconds: float) -> None:
        """Add a row of the last evaluation: the model has not changed since."""
        self.hooks.evaluate(self._row(seconds, self.history[-1].metrics))

    def add_unknown(self, seconds: float) -> None:
        """Add a row without an evaluation, which failed, to the history; callbacks are not called."""
        self._row(seconds, Metrics())

    def _row(self, seconds: float, metrics: Mapping[str, float]) -> Row:
        server = self.server
        loss, accuracy = metrics.get("loss", math.nan), metrics.get("accuracy", math.nan)
        staleness, training_loss = self.staleness.mean_since_last_row(), server.training_loss()
        if training := server.training_metrics():
            metrics = Metrics({**metrics, **{f"train/{name}": value for name, value in training.items()}})
        row = Row(server.updates, seconds, server.samples, loss, accuracy, staleness, training_loss, metrics)
        self.history.append(row)
        return row
