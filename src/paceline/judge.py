"""Judges the model on the way, when it is due, and keeps the history."""

from collections.abc import Sequence
from typing import Protocol

from paceline.core.plain import real
from paceline.learning.model_hands import ModelHands
from paceline.learning.server import Server
from paceline.learning.task import Task
from paceline.loop import Update
from paceline.run import Agenda, Every, Row
from paceline.staleness import Staleness
from paceline.stateful import State


class Listener(Protocol):
    """Is told of each judgement."""

    def row(self, row: Row, /) -> None: ...


class Judge:
    """Counts updates and their staleness; adds a row to the history when one is due."""

    def __init__(
        self, task: Task, server: Server | ModelHands, every: Every | None, listeners: Sequence[Listener]
    ) -> None:
        self.server = server
        self.staleness = Staleness()
        self.history: list[Row] = []
        self._judge = task.judge()
        self._agenda = Agenda(every)
        self._listeners = listeners

    def count(self, update: Update) -> Row | None:
        """Take note of an update, and judge the model if it is time."""
        self.staleness.count(update)
        return self.look(update.at) if self._agenda.due(self.server.updates, update.at) else None

    def state(self) -> State:
        """Which row is due next. The rows themselves are in the run's metrics."""
        return {"staleness": self.staleness.state(), "next": self._agenda.next}

    def restore(self, state: State) -> None:
        self.staleness.restore(state["staleness"])
        self._agenda.next = real(state["next"])

    def look(self, seconds: float) -> Row:
        server = self.server
        loss, accuracy = self._judge(server.model)
        staleness, training_loss = self.staleness.mean_since_last_row(), server.training_loss()
        row = Row(server.updates, seconds, server.samples, loss, accuracy, staleness, training_loss)
        self.history.append(row)
        for listener in self._listeners:
            listener.row(row)
        return row
