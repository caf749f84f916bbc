"""The line that shows how far a run is."""

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from paceline.core.ledger import Ledger
from paceline.storage.metrics import Row

if TYPE_CHECKING:
    from paceline.engine.limits import Stop

PERIOD, MINUTE = 0.1, 60.0  # seconds between two looks, and between two lines of a log


class EveryMinute:
    """Whether a minute has passed since it was last due."""

    def __init__(self) -> None:
        self._next = time.monotonic() + MINUTE

    def due(self) -> bool:
        if (now := time.monotonic()) < self._next:
            return False
        self._next = now + MINUTE
        return True


class Progress:
    """A line with time, updates, loss, staleness, and who is being waited for.

    On a terminal it is kept up to date; elsewhere, as in a log, a plain one is written each minute.
    """

    def __init__(self, label: str, stop: "Stop", ledger: Ledger, shown: bool | None) -> None:
        self._label = label
        self._stop = stop
        self._ledger = ledger
        self._row: Row | None = None
        self._next = 0.0
        terminal = sys.stderr.isatty() and shown is not False
        self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False) if terminal else None
        self._minute = EveryMinute() if shown is not False and not terminal else None
        self.shown = shown is not False

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def on_evaluation(self, row: Row) -> None:
        self._row = row

    def show(self, updates: int, seconds: float) -> None:
        """Show how far the run is, if it was not shown just now."""
        if self._minute is not None and self._minute.due():
            text = ", ".join((*self._parts(updates, seconds), f"waiting for {waited_for(self._ledger)}"))
            with suppress(OSError):  # a log that cannot be written is no reason to end a run
                print(f"{self._label}: {text}", file=sys.stderr, flush=True)
        if self._live is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + PERIOD
        line = Table.grid(padding=(0, 2))
        waiting = f"[dim]waiting for {waited_for(self._ledger)}[/]"
        line.add_row(f"[bold]{self._label}[/]", *self._parts(updates, seconds), waiting)
        self._live.update(line, refresh=True)

    def _parts(self, updates: int, seconds: float) -> list[str]:
        row, ends = self._row, self._stop
        parts = [
            f"time {seconds:.4g}" + (f"/{ends.seconds:g}" if ends.seconds else ""),
            f"update {updates}" + (f"/{ends.updates}" if ends.updates else ""),
        ]
        if row is not None:
            parts.append(f"loss {row.loss:.4f}")
            parts.append(f"accuracy {row.accuracy:.1%}" + (f"/{ends.target:.1%}" if ends.target else ""))
            parts.append(f"staleness {row.staleness:.1f}")
        return parts


def waited_for(ledger: Ledger, most: int = 4) -> str:
    """The workers that the current round waits for: late ones if there are any, or all that compute."""
    if ledger.parts():
        waiting = [waited_for(part, most=1) for part in ledger.parts()]
        return "; ".join(waiting[:most]) + ("; ..." if len(waiting) > most else "")
    workers = [ticket.worker for ticket in ledger.behind] or list(ledger.running)
    if not workers:
        return "nobody"
    return ", ".join(map(str, workers[:most])) + (f" and {len(workers) - most} more" if len(workers) > most else "")
