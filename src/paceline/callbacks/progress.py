"""The line that shows how far a run is."""

import sys
import time
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.table import Table

from paceline.callbacks.base import Callback, RunInfo, Update
from paceline.core.ledger import Ledger
from paceline.storage.metrics import Row

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


class Progress(Callback):
    """A line with time, updates, loss, staleness, and who is being waited for.

    On a terminal it is kept up to date; elsewhere, as in a log, a plain one is written each minute.
    """

    def __init__(self) -> None:
        self._run: RunInfo | None = None
        self._row: Row | None = None
        self._next = 0.0
        self._live: Live | None = None
        self._minute: EveryMinute | None = None

    def on_start(self, run: RunInfo) -> None:
        self.close()
        self._run, self._row = run, run.history[-1] if run.history else None
        if sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        else:
            self._minute = EveryMinute()

    def on_evaluate(self, row: Row) -> None:
        self._row = row

    def on_update(self, update: Update) -> None:
        """Show how far the run is, if it was not shown just now."""
        run = self._run
        if run is None:
            return
        if self._minute is not None and self._minute.due():
            text = ", ".join((*self._parts(run, update), f"waiting for {waited_for(run.ledger)}"))
            with suppress(OSError):  # a log that cannot be written is no reason to end a run
                print(f"{type(run.strategy).__name__}: {text}", file=sys.stderr, flush=True)
        if self._live is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + PERIOD
        line = Table.grid(padding=(0, 2))
        waiting = f"[dim]waiting for {waited_for(run.ledger)}[/]"
        line.add_row(f"[bold]{type(run.strategy).__name__}[/]", *self._parts(run, update), waiting)
        self._live.update(line, refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = self._minute = None

    def _parts(self, run: RunInfo, update: Update) -> list[str]:
        row, ends = self._row, run.stop
        parts = [
            f"time {update.seconds:.4g}" + (f"/{ends.seconds:g}" if ends.seconds else ""),
            f"update {update.updates}" + (f"/{ends.updates}" if ends.updates else ""),
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
