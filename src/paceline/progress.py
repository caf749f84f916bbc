"""What a person sees while a run goes on."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from paceline.core.ledger import Ledger
from paceline.run import Row, Stop

PERIOD = 0.1  # seconds between two looks


class Progress:
    """A line with time, updates, loss, staleness, and who is being waited for. Silent where nobody watches."""

    def __init__(self, label: str, stop: Stop, ledger: Ledger, shown: bool | None) -> None:
        self._label = label
        self._stop = stop
        self._ledger = ledger
        self._row: Row | None = None
        self._next = 0.0
        shown = sys.stderr.isatty() if shown is None else shown
        self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False) if shown else None

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def row(self, row: Row) -> None:
        self._row = row

    def look(self, updates: int, seconds: float) -> None:
        if self._live is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + PERIOD
        self._live.update(self._line(updates, seconds), refresh=True)

    def _line(self, updates: int, seconds: float) -> Table:
        row, ends = self._row, self._stop
        parts = [
            f"[bold]{self._label}[/]",
            f"time {seconds:.4g}" + (f"/{ends.seconds:g}" if ends.seconds else ""),
            f"update {updates}" + (f"/{ends.updates}" if ends.updates else ""),
        ]
        if row is not None:
            parts.append(f"loss {row.loss:.4f}")
            parts.append(f"accuracy {row.accuracy:.1%}" + (f"/{ends.target:.1%}" if ends.target else ""))
            parts.append(f"staleness {row.staleness:.1f}")
        line = Table.grid(padding=(0, 2))
        line.add_row(*parts, f"[dim]waiting for {waited_for(self._ledger)}[/]")
        return line


def waited_for(ledger: Ledger, most: int = 4) -> str:
    """The workers that the current round waits for: late ones if there are any, or all that compute."""
    if ledger.parts():
        waiting = [waited_for(part, most=1) for part in ledger.parts()]
        return "; ".join(waiting[:most]) + ("; ..." if len(waiting) > most else "")
    workers = [ticket.worker for ticket in ledger.behind] or list(ledger.running)
    if not workers:
        return "nobody"
    return ", ".join(map(str, workers[:most])) + (f" and {len(workers) - most} more" if len(workers) > most else "")
