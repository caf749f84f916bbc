"""Curves for TensorBoard."""

from pathlib import Path
from typing import Any

from paceline.callbacks.base import Callback, RunInfo
from paceline.callbacks.extras import imported
from paceline.core.errors import ConfigError
from paceline.storage.metrics import Row


class TensorBoard(Callback):
    """Writes the metrics of each evaluation, by updates, as event files that TensorBoard shows.

    They go into ``directory``, or by default into ``tensorboard`` in that of the run. A run that is resumed replaces
    what was written after its checkpoint.
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self._make = imported("torch.utils.tensorboard", "tensorboard", "TensorBoard").SummaryWriter
        self._directory = None if directory is None else Path(directory)
        self._writer: Any = None

    def on_start(self, run: RunInfo) -> None:
        self.close()
        if self._directory is None and run.directory is None:
            raise ConfigError("TensorBoard has nowhere to write: give TensorBoard(directory), or the run a directory")
        place = self._directory or run.directory / "tensorboard"  # type: ignore[operator]
        after = run.history[-1].updates if run.history else None
        self._writer = self._make(str(place), purge_step=None if after is None else after + 1)

    def on_evaluate(self, row: Row) -> None:
        for name, value in row.numbers().items():
            if name != "updates":
                self._writer.add_scalar(name, value, row.updates)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
