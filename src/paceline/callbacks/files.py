"""Callbacks that write each evaluation into a file."""

from paceline.callbacks.base import Callback
from paceline.storage.metrics import MetricsFile, Row


class MetricsLog(Callback):
    """Adds each row to the ``metrics.jsonl`` of a run directory, which opens and closes it."""

    def __init__(self, file: MetricsFile) -> None:
        self._file = file

    def on_evaluate(self, row: Row) -> None:
        self._file.append(row)
