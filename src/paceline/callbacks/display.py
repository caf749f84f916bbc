"""Where progress is shown: a line with a bar on a terminal or in a notebook, a plain line a minute anywhere else."""

import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from rich.cells import cell_len
from rich.live import Live
from rich.text import Text

from paceline.callbacks.terminal import console

MINUTE = 60.0  # seconds between two lines of a log
PERIOD_OF_A_TERMINAL, PERIOD_OF_A_NOTEBOOK = 0.1, 0.5  # seconds between two looks
BAR = 20  # characters
EIGHTHS = " ▏▎▍▌▋▊▉█"


class Status(NamedTuple):
    """How far something is: its name, the share that is done (None: not known), seconds left, and more in words.

    Where a line has no room for all ``parts``, the last ones are left out.
    """

    label: str
    share: float | None
    left: float | None
    parts: Sequence[str]


class TimeLeft:
    """How long the rest takes, if it is as fast as what was done since the first look."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def estimate(self, share: float | None) -> float | None:
        """The seconds left now that a share of everything is done; None as long as that cannot be told."""
        if share is None:
            return None
        now = time.monotonic()
        if self._first is None:
            self._first = now, share
        began, before = self._first
        return (now - began) * (1 - share) / (share - before) if share > before else None


class EveryMinute:
    """Whether a minute has passed since it was last due."""

    def __init__(self) -> None:
        self._next = time.monotonic() + MINUTE

    def due(self) -> bool:
        if (now := time.monotonic()) < self._next:
            return False
        self._next = now + MINUTE
        return True


class Display(Protocol):
    """Shows a status whenever that is ``due``, so that none need be made in between; at the end the ``last`` one."""

    def due(self) -> bool: ...

    def show(self, status: Status) -> None: ...

    def close(self, last: Status | None) -> None: ...


def open_display() -> Display:
    """The display for wherever this process is."""
    if (handle := _notebook()) is not None:
        return NotebookDisplay(handle)
    return TerminalDisplay() if sys.stderr is not None and sys.stderr.isatty() else LogDisplay()


class TerminalDisplay:
    """One line at the bottom of the terminal, which is gone at the end."""

    def __init__(self) -> None:
        self._console = console(stderr=True)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._live.start()
        self._next = 0.0

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, status: Status) -> None:
        self._next = time.monotonic() + PERIOD_OF_A_TERMINAL
        text = Text(one_line(status, self._console.width - 1), no_wrap=True, overflow="crop")
        text.stylize("bold", 0, len(status.label))
        self._live.update(text, refresh=True)

    def close(self, last: Status | None) -> None:
        self._live.stop()


class NotebookDisplay:
    """One line below the cell, kept up to date as plain text: no widget and no extension is needed."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._next = 0.0
        self._shown = False

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, status: Status) -> None:
        self._next = time.monotonic() + PERIOD_OF_A_NOTEBOOK
        write = self._handle.update if self._shown else self._handle.display
        write({"text/plain": one_line(status)}, raw=True)
        self._shown = True

    def close(self, last: Status | None) -> None:
        if last is not None:
            self.show(last)


class LogDisplay:
    """A line a minute on stderr."""

    def __init__(self) -> None:
        self._minute = EveryMinute()

    def due(self) -> bool:
        return self._minute.due()

    def show(self, status: Status) -> None:
        if sys.stderr is None:  # closed by whoever started Python
            return
        with suppress(OSError):  # a log that cannot be written is no reason to end a run
            print(f"{status.label}: {', '.join((*_how_far(status), *status.parts))}", file=sys.stderr, flush=True)

    def close(self, last: Status | None) -> None:
        pass


def one_line(status: Status, width: float = math.inf) -> str:
    """Name, bar, percentage, time left, and as many parts as fit."""
    shown = [status.label]
    for part in (*([] if status.share is None else [bar(status.share)]), *_how_far(status), *status.parts):
        if cell_len("  ".join((*shown, part))) > width:
            break
        shown.append(part)
    return "  ".join(shown)


def bar(share: float) -> str:
    """A bar that is filled by a share from 0 to 1."""
    filled = round(8 * BAR * min(1.0, max(0.0, share)))
    whole, part = divmod(filled, 8)
    return f"|{('█' * whole + EIGHTHS[part] * (whole < BAR)).ljust(BAR)}|"


def duration(seconds: float) -> str:
    """A number of seconds as in 0:07, 12:34 or 5:06:07."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _how_far(status: Status) -> list[str]:
    share = [] if status.share is None else [f"{math.floor(100 * status.share)}%"]
    return share if status.left is None else [*share, f"{duration(status.left)} left"]


def _notebook() -> Any:
    """A handle of a new display in the notebook of this process; None if it has none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import DisplayHandle

    return DisplayHandle()  # type: ignore[no-untyped-call]
