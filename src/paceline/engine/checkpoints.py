"""When a run writes a checkpoint, and how it is restored from one."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.callbacks.hooks import Hooks
from paceline.core.errors import CannotWrite, ConfigError, PacelineError
from paceline.core.stateful import State, Stateful, check_stateful
from paceline.engine.limits import Every, Interval
from paceline.engine.loop import Loop
from paceline.storage.checkpoint import read_checkpoint, write_checkpoint
from paceline.storage.metrics import Row
from paceline.storage.run_directory import RunDirectory
from paceline.trace.writing import TraceWriter

log = logging.getLogger("paceline")

# what a part raises that is given a state it cannot have had
UNFIT = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Checkpoints:
    """Writes the state of the parts of a run, each by its name, and restores it."""

    def __init__(
        self,
        directory: RunDirectory,
        trace: TraceWriter,
        parts: Mapping[str, Stateful],
        every: Every | None,
        hooks: Hooks,
    ) -> None:
        self._hooks = hooks
        self._directory = directory
        self._trace = trace
        self._parts = check_stateful({**parts, "metrics": directory.metrics, "trace": trace})
        self._every = every
        self._interval = Interval(every)
        self._resumed = False

    def due(self, updates: int, seconds: float) -> bool:
        return self._every is not None and self._interval.due(updates, seconds)

    def save(self) -> None:
        write_checkpoint(self._directory.checkpoint, {name: part.state() for name, part in self._parts.items()})
        self._hooks.checkpoint(self._directory.checkpoint)

    def save_at_end(self) -> str | None:
        """Why the run cannot be resumed from its end, where the disk does not take the checkpoint.

        A run that did not ask for checkpoints, and whose state cannot be kept, ends well all the same.
        """
        try:
            self.save()
        except CannotWrite as error:
            return f"{error}; {self.how_to_resume()}"
        except ConfigError as error:
            if self._every is not None:
                raise
            self._directory.checkpoint.unlink(missing_ok=True)
            log.warning("the run cannot be resumed: %s", error)
        return None

    def how_to_resume(self) -> str:
        return self._directory.how_to_resume()

    def resume(self) -> Sequence[Row]:
        """Restore the run from its checkpoint, and return its history. No file is changed, also if it does not fit."""
        path = self._directory.checkpoint
        state = read_checkpoint(path)
        for name, part in self._parts.items():
            try:
                part.restore(_mapping(state[name]))
            except ConfigError as error:
                raise ConfigError(f"cannot resume from {path}: {error}") from None
            except UNFIT as error:
                raise ConfigError(f"cannot resume from {path}: its {name} does not fit ({_line(error)})") from None
        rows = self._directory.metrics.rows()
        self._trace.check()
        try:
            for part in self._parts.values():
                if isinstance(part, Loop):
                    part.check_restored()
        except (*UNFIT, PacelineError) as error:
            raise ConfigError(f"cannot resume from {path}: its parts do not fit together ({_line(error)})") from None
        self._resumed = True
        return rows

    def cut(self) -> None:
        """The run that was restored can continue: remove what was written after its checkpoint."""
        if self._resumed:
            self._trace.cut()
            self._directory.cut()


def _mapping(value: Any) -> State:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__}, not a mapping")
    return value


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
