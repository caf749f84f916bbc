"""Callbacks that write each evaluation into a file."""

import csv
import io
import math
import os
from pathlib import Path

from paceline.callbacks.base import Callback, RunInfo
from paceline.files import check_place, open_regular, write_atomically, writing
from paceline.storage.metrics import MetricsFile, Row


class MetricsLog(Callback):
    """Adds each row to the ``metrics.jsonl`` of a run directory, which opens and closes it."""

    def __init__(self, file: MetricsFile) -> None:
        self._file = file

    def on_evaluate(self, row: Row) -> None:
        self._file.append(row)


class CSVLogger(Callback):
    """Writes a line for each evaluation into a CSV file: updates, seconds, samples and every metric.

    The first line has the names. What an evaluation did not return, or what is NaN, is left empty. A new run replaces
    the file; one that is resumed continues it from its checkpoint.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        check_place(self._path)
        self._rows: list[dict[str, float]] = []
        self._names: list[str] = []

    def on_start(self, run: RunInfo) -> None:
        self._rows = [row.numbers() for row in run.history]
        self._rewrite()

    def on_evaluate(self, row: Row) -> None:
        numbers = row.numbers()
        self._rows.append(numbers)
        if not numbers.keys() <= {*self._names}:  # as at the first row
            self._rewrite()
            return
        data = self._lines(numbers).encode()
        with writing(self._path), open_regular(self._path, os.O_WRONLY | os.O_APPEND) as file:
            while data:
                data = data[file.write(data) :]

    def _rewrite(self) -> None:
        self._names = list(dict.fromkeys(name for row in self._rows for name in row))
        header = dict.fromkeys(self._names, "")
        write_atomically(self._path, self._lines({name: name for name in header}, *self._rows) if header else "")

    def _lines(self, *rows: dict[str, float] | dict[str, str]) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for row in rows:
            values = (row.get(name, "") for name in self._names)
            writer.writerow("" if isinstance(value, float) and math.isnan(value) else value for value in values)
        return text.getvalue()
