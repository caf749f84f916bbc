"""Ctrl-C or a polite kill asks a run to end, and to save what it has; a second one ends it at once."""

import signal
import threading
from types import FrameType
from typing import Any

from paceline.core.errors import PacelineError


class Interrupted(PacelineError):
    """Ctrl-C, and what is on disk now."""


class Interrupts:
    """While open, the first Ctrl-C only sets ``requested``; the first SIGTERM too, where there is something to save."""

    def __init__(self, *, termination: bool = False) -> None:
        self.requested: int | None = None  # the signal
        self._usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
        if termination:
            self._usual[signal.SIGTERM] = signal.SIG_DFL
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number, usual in self._usual.items():
                if signal.getsignal(number) == usual:  # somebody else's stays
                    self._before[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = number
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, *exception: object) -> None:
        self._put_back()


def end_by(number: int) -> BaseException:
    """What ends a program that was asked to by this signal."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
