"""The rows of ``metrics.jsonl``: what each evaluation of the model found, one JSON object a line."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.core.codec import check_names, real, whole
from paceline.core.errors import ConfigError
from paceline.core.stateful import State
from paceline.files import open_regular, read_regular, writing

UNREADABLE = (LookupError, TypeError, ValueError, RecursionError)  # what a line raises that holds no row


class Metrics(Mapping[str, float]):
    """What an evaluation returned, by name, in its order. It cannot be changed."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


class Row(NamedTuple):
    """The state of a run when its model was evaluated; ``metrics`` has every name that the evaluation returned."""

    updates: int
    seconds: float
    samples: int
    loss: float  # NaN if the evaluation returned none, as the accuracy
    accuracy: float
    staleness: float  # mean over the updates since the row before
    training_loss: float  # mean over the samples used since the row before
    metrics: Mapping[str, float] = Metrics()

    def numbers(self) -> dict[str, float]:
        """All numbers of the row by their names, for tables and logs.

        A metric that has the name of another field of the row, as ``seconds``, is there as ``metrics/seconds``.
        """
        found = {name: getattr(self, name) for name in NUMBERS}
        for name, value in self.metrics.items():
            if name not in ("loss", "accuracy"):
                found[f"metrics/{name}" if name in NUMBERS else name] = value
        return found


NUMBERS = tuple(name for name in Row._fields if name != "metrics")


class MetricsFile:
    """Appends a row for each evaluation of the model. A new file is begun, unless a run is ``resumed``."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self._path = path
        self._bytes = 0
        with writing(path):
            begin = 0 if resumed else os.O_CREAT | os.O_TRUNC
            self._file = open_regular(path, os.O_WRONLY | os.O_APPEND | begin)

    def append(self, row: Row) -> None:
        values: dict[str, Any] = {name: _plain(getattr(row, name)) for name in NUMBERS}
        if row.metrics != usual_metrics(row.loss, row.accuracy):
            values["metrics"] = {name: _plain(value) for name, value in row.metrics.items()}
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
    counts = {name: whole(values[name]) for name in ("updates", "samples")}
    rest = {name: _number(values[name]) for name in NUMBERS if name not in (*counts, "seconds")}
    metrics = usual_metrics(rest["loss"], rest["accuracy"])
    if "metrics" in values:
        metrics = Metrics({name: _number(value) for name, value in check_names(values["metrics"]).items()})
    return Row(**counts, seconds=real(values["seconds"]), **rest, metrics=metrics)  # type: ignore[arg-type]


def usual_metrics(loss: float, accuracy: float) -> Metrics:
    """The metrics of an evaluation that knows at most these two; what is NaN was not returned."""
    both = {"loss": loss, "accuracy": accuracy}
    return Metrics({name: value for name, value in both.items() if not math.isnan(value)})


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _number(value: Any) -> float:
    """Null is NaN; a loss may have become infinite."""
    return math.nan if value is None else value if value in (math.inf, -math.inf) else real(value)
