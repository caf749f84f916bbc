"""Ctrl-C or SIGTERM asks a run to end, and to save what it has; one that comes seconds later ends it at once."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from paceline.core.errors import PacelineError

# Seconds in which a further signal is the same wish: `timeout` signals a process and then its group, and a terminal and
# a wrapper may both hand Ctrl-C on.
SAME_WISH = 2.0


class Interrupted(PacelineError):
    """Ctrl-C or SIGTERM ended a run: what is on disk, and how to resume."""

    def __init__(self, message: str, asked: KeyboardInterrupt | None = None) -> None:
        terminated = isinstance(asked, Terminated)
        super().__init__(("terminated" if terminated else "interrupted") + message)
        self.exit_code = 128 + (signal.SIGTERM if terminated else signal.SIGINT)


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it is met as Ctrl-C is."""


@contextmanager
def signals_in_one_line() -> Iterator[None]:
    """Meanwhile Ctrl-C raises ``KeyboardInterrupt`` as ever, and SIGTERM ``Terminated``, unless others take care of it.

    In the midst of an import they end the program at once: half an import would turn them into an error of its own, or
    swallow them, and torch takes seconds to import.
    """
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    main = threading.current_thread() is threading.main_thread()
    taken = [number for number, handler in usual.items() if main and signal.getsignal(number) == handler]
    for number in taken:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, usual[number])


def _interrupt(number: int, frame: FrameType | None) -> None:
    terminated = number == signal.SIGTERM
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, b"%s while modules were loaded\n" % (b"terminated" if terminated else b"interrupted"))
            os._exit(128 + number)
        frame = frame.f_back
    raise Terminated if terminated else KeyboardInterrupt


# Handlers that a run may take the place of: those of Python (Lightning leaves SIG_DFL for Ctrl-C behind) and our own.
USUAL = (signal.SIG_DFL, signal.default_int_handler, _interrupt)


class Interrupts:
    """While open, the first Ctrl-C only sets ``requested``; the first SIGTERM too, where there is something to save.

    One that comes at least ``SAME_WISH`` seconds later does what it did before; what comes in between is ignored.
    """

    def __init__(self, *, termination: bool = False) -> None:
        self.requested: int | None = None  # the signal
        self._impatient_from = 0.0  # by ``time.monotonic``
        self._numbers = [signal.SIGINT, signal.SIGTERM] if termination else [signal.SIGINT]
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if signal.getsignal(number) in USUAL:  # somebody else's stays
                    self._before[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested is None:
            self.requested, self._impatient_from = number, time.monotonic() + SAME_WISH
        elif time.monotonic() >= self._impatient_from:
            self._put_back()
            signal.raise_signal(number)

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, *exception: object) -> None:
        self._put_back()


def end_by(number: int) -> BaseException:
    """What ends a program that was asked to by this signal."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
