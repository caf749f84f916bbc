"""A callback that writes down what it is told."""

from pathlib import Path
from typing import Any

import paceline as pl
from paceline.callbacks import Row, RunInfo, Update, WorkerEvent


class Told(pl.Callback):
    """Writes down (hook, value) of all it is told; ``answers`` are what its hooks return, or raise, one after another.

    ``{"on_update": [None, "enough"]}`` ends the run after two updates.
    """

    def __init__(self, **answers: list[Any]) -> None:
        self.said: list[tuple[str, Any]] = []
        self.closed = 0
        self._answers = answers

    def on_start(self, run: RunInfo) -> str | None:
        return self._note("on_start", run)

    def on_update(self, update: Update) -> str | None:
        return self._note("on_update", update)

    def on_evaluate(self, row: Row) -> str | None:
        return self._note("on_evaluate", row)

    def on_checkpoint(self, path: Path) -> str | None:
        return self._note("on_checkpoint", path)

    def on_worker(self, event: WorkerEvent) -> str | None:
        return self._note("on_worker", event)

    def on_end(self, run: pl.Run) -> str | None:
        return self._note("on_end", run)

    def close(self) -> None:
        self.closed += 1

    def of(self, hook: str) -> list[Any]:
        return [value for name, value in self.said if name == hook]

    @property
    def hooks(self) -> list[str]:
        return [name for name, _ in self.said]

    def _note(self, hook: str, value: Any) -> str | None:
        self.said.append((hook, value))
        answers = self._answers.get(hook, [])
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer
