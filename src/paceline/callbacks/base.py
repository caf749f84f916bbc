"""What is called while a run trains."""

from typing import Protocol

from paceline.storage.metrics import Row


class Callback(Protocol):
    """Is called with a row of metrics each time the model is evaluated."""

    def on_evaluation(self, row: Row, /) -> None: ...
