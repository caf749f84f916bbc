"""The rows of ``metrics.jsonl``: what each evaluation of the model found, one JSON object a line."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.codec import real, whole
from paceline.core.errors import ConfigError
from paceline.core.stateful import State
from paceline.files import open_regular, read_regular, writing

UNREADABLE = (LookupError, TypeError, ValueError, RecursionError)  # what a line raises that holds no row


class Row(NamedTuple):
    """The state of a run when its model was evaluated."""

    updates: int
    seconds: float
    samples: int
    loss: float
    accuracy: float
    staleness: float  # mean over the updates since the row before
    training_loss: float  # mean over the samples used since the row before


class MetricsFile:
    """Appends a row for each evaluation of the model. A new file is begun, unless a run is ``resumed``."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self._path = path
        self._bytes = 0
        with writing(path):
            begin = 0 if resumed else os.O_CREAT | os.O_TRUNC
            self._file = open_regular(path, os.O_WRONLY | os.O_APPEND | begin)

    def on_evaluation(self, row: Row) -> None:
        values = {name: None if math.isnan(value) else value for name, value in row._asdict().items()}
        data = (json.dumps(values) + "\n").encode()
        self._bytes += len(data)
        with writing(self._path):
            while data:
                data = data[self._file.write(data) :]

    def state(self) -> State:
        """How many bytes are written, and will be there whatever happens to the machine."""
        with writing(self._path):
            os.fsync(self._file.fileno())
        return {"bytes": self._bytes}

    def restore(self, state: State) -> None:
        self._bytes, there = whole(state["bytes"]), self._path.stat().st_size
        if self._bytes > there:
            raise ConfigError(f"{self._path} has {there} bytes, and {self._bytes} when the checkpoint was made")

    def rows(self) -> Sequence[Row]:
        """The rows up to the state that was restored."""
        try:
            text = read_regular(self._path)[: self._bytes].decode()
            return [row_from(json.loads(line)) for line in text.splitlines()]
        except UNREADABLE:
            raise ConfigError(
                f"cannot resume {self._path.parent}: its {self._path.name} cannot be understood"
            ) from None

    def cut(self) -> None:
        """Remove the rows that were written after the state that was restored."""
        with writing(self._path):
            os.ftruncate(self._file.fileno(), self._bytes)

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. A torn last line, as a killed run leaves it, is passed over."""
    if not path.exists():
        return []
    lines = read_regular(path).decode(errors="replace").splitlines()
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(row_from(json.loads(line)))
        except UNREADABLE:
            if number == len(lines):
                break
            raise ConfigError(f"line {number} of {path} cannot be understood: {line[:60]!r}") from None
    return rows


def row_from(values: Mapping[str, Any]) -> Row:
    """The row of a line; ``ValueError`` or the like if it holds none."""

    def number(name: str) -> float:
        value = values[name]  # a loss may have become infinite
        return math.nan if value is None else value if value in (math.inf, -math.inf) else real(value)

    counts = {name: whole(values[name]) for name in ("updates", "samples")}
    rest = {name: number(name) for name in Row._fields if name not in (*counts, "seconds")}
    return Row(**counts, seconds=real(values["seconds"]), **rest)  # type: ignore[arg-type]
