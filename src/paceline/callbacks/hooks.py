"""Calls the callbacks of a run."""

import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from paceline.callbacks.base import Callback, RunInfo, Update, WorkerEvent
from paceline.core.errors import CannotWrite, ConfigError
from paceline.core.fields import shown
from paceline.core.messages import Step
from paceline.storage.metrics import Row

if TYPE_CHECKING:
    from paceline.engine.result import Run

LONGEST_REASON = 200  # characters
Method = tuple[Callback, Callable[[Any], str | None]]


class Hooks:
    """The callbacks of a run, each called for what it overrides.

    They never raise, but for a disk that takes no more: ``asked`` tells that the run is to end, for the ``reason`` that
    one returned, or with the ``error`` that one raised and the ``problem`` in words. Who raised is not called again.
    """

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = list(callbacks)
        self.asked = False
        self.reason: str | None = None
        self.error: Exception | None = None
        self.problem: str | None = None
        self._failed: set[int] = set()
        self._sort()

    def _sort(self) -> None:
        self.on_start = self._methods("on_start")
        self.on_update = self._methods("on_update")
        self._on_evaluate = self._methods("on_evaluate")
        self._on_checkpoint = self._methods("on_checkpoint")
        self.on_wait = self._methods("on_wait")
        self.on_worker = self._methods("on_worker")
        self._on_end = self._methods("on_end")

    def _methods(self, name: str) -> Sequence[Method]:
        overriding = (each for each in self._callbacks if id(each) not in self._failed and _overrides(each, name))
        return [(each, getattr(each, name)) for each in overriding]

    def start(self, run: RunInfo) -> None:
        self._call(self.on_start, run)

    def update(self, updates: int, seconds: float, samples: int, ages: Sequence[int], step: Step) -> None:
        staleness = sum(ages) / len(ages) if ages else 0.0
        self._call(self.on_update, Update(updates, seconds, samples, staleness, MappingProxyType(step.weights)))

    def evaluate(self, row: Row) -> None:
        self._call(self._on_evaluate, row)

    def checkpoint(self, path: Path) -> None:
        self._call(self._on_checkpoint, path)

    def wait(self, seconds: float) -> None:
        self._call(self.on_wait, seconds)

    def worker(self, event: WorkerEvent) -> None:
        self._call(self.on_worker, event)

    def end(self, run: "Run") -> None:
        self._call(self._on_end, run)

    def close(self) -> None:
        """Close every callback, also those that raised."""
        for callback in self._callbacks:
            if _overrides(callback, "close"):
                try:
                    callback.close()
                except Exception as error:
                    self._fail(callback, "close", error)

    def _call(self, methods: Sequence[Method], value: Any) -> None:
        for callback, method in methods:
            try:
                text = method(value)
            except CannotWrite:
                raise
            except Exception as error:  # whatever the user's code raises
                self._fail(callback, method.__name__, error)
                continue
            if text is not None:
                self._end(callback, method.__name__, text)

    def _end(self, callback: Callback, name: str, text: Any) -> None:
        if not isinstance(text, str) or not text.strip():
            wrong = f"{type(callback).__name__}.{name} returned {shown(text)}: return None, or a text to end the run"
            self._fail(callback, name, ConfigError(wrong))
            return
        self.asked = True
        self.reason = self.reason or " ".join(text.split())[:LONGEST_REASON]

    def _fail(self, callback: Callback, name: str, error: Exception) -> None:
        self.asked = True
        where = f"{type(callback).__name__}.{name} raised {type(error).__name__}"
        if self.error is None:
            self.error, self.problem = error, f"{where}: {' '.join(str(error).split())[:200]}"
        elif error is not self.error:
            self.error.add_note(f"then {where}:\n{''.join(traceback.format_exception(error))}")
        self._failed.add(id(callback))
        self._sort()


def _overrides(callback: Callback, name: str) -> bool:
    return name in getattr(callback, "__dict__", ()) or getattr(type(callback), name) is not getattr(Callback, name)


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """What a user gave as ``callbacks=``; ``ConfigError`` names the first that is none."""
    instead = "give a list of them, such as [paceline.EarlyStopping(patience=5)]"
    if isinstance(callbacks, Callback | str) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks={shown(callbacks)} is no list of callbacks: {instead}")
    try:
        given = tuple(callbacks)
    except TypeError:  # of a tensor with one number
        raise ConfigError(f"callbacks={shown(callbacks)} is no list of callbacks: {instead}") from None
    for number, each in enumerate(given):
        if isinstance(each, type) and issubclass(each, Callback):
            raise ConfigError(f"callbacks[{number}] is the class {each.__name__}: give {each.__name__}(...)")
        if not isinstance(each, Callback):
            raise ConfigError(
                f"callbacks[{number}]={shown(each)} is no callback: derive {type(each).__name__} from paceline.Callback"
            )
        if any(each is other for other in given[:number]):
            raise ConfigError(f"callbacks[{number}] is the same {type(each).__name__} as one before it: give it once")
    return given
