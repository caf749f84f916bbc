"""The line that shows how far a run is."""

import math
from dataclasses import replace

from paceline.callbacks.base import Callback, RunInfo, Update
from paceline.callbacks.display import Display, Status, TimeLeft, open_display
from paceline.core.ledger import Ledger
from paceline.storage.metrics import Row

MOST = 4  # metrics in the line


class Progress(Callback):
    """A line with a bar, the time left, updates, metrics, staleness, and who is being waited for.

    On a terminal and in a notebook it is kept up to date; elsewhere, as in a log, a plain one is written each minute.
    Bar and time left are there if ``Stop`` limits updates, epochs or seconds; a run that reaches its target ends
    earlier. The time left is that of the user, also where the run's seconds are virtual.
    """

    def __init__(self) -> None:
        self._run: RunInfo | None = None
        self._row: Row | None = None
        self._update: Update | None = None
        self._display: Display | None = None
        self._left = TimeLeft()

    def on_start(self, run: RunInfo) -> None:
        self.close()
        self._run, self._row = run, run.history[-1] if run.history else None
        self._left, self._display = TimeLeft(), open_display()
        before = (self._row.seconds, self._row.samples) if self._row else (0.0, 0)
        self._update = Update(run.updates, *before, 0.0, {})
        self._left.estimate(share_done(run, run.updates, *before))

    def on_evaluate(self, row: Row) -> None:
        self._row = row

    def on_update(self, update: Update) -> None:
        """Show how far the run is, if it was not shown just now."""
        self._update = update
        self._show(update.seconds)

    def on_wait(self, seconds: float) -> None:
        """Show it also where no update comes for a while."""
        self._show(seconds)

    def _show(self, seconds: float) -> None:
        run, update, display = self._run, self._update, self._display
        if run is not None and update is not None and display is not None and display.due():
            display.show(self._status(run, replace(update, seconds=seconds), ended=False))

    def close(self) -> None:
        if self._display is not None:
            update, run = self._update, self._run
            self._display.close(self._status(run, update, ended=True) if run and update else None)
        self._display = None

    def _status(self, run: RunInfo, update: Update, *, ended: bool) -> Status:
        share = share_done(run, update.updates, update.seconds, update.samples)
        left = self._left.estimate(share)
        parts = [
            f"update {update.updates:,}" + (f"/{run.stop.updates:,}" if run.stop.updates else ""),
            f"time {update.seconds:,.4g}" + (f"/{run.stop.seconds:,g}" if run.stop.seconds else ""),
            *([] if self._row is None else _metrics(run, self._row)),
        ]
        if not ended:
            parts.append(f"waiting for {waited_for(run.ledger)}")
        return Status(type(run.strategy).__name__, share, None if ended else left, parts)


def share_done(run: RunInfo, updates: int, seconds: float, samples: int) -> float | None:
    """Which share of a run is done, by the limit that ends it first; None if it ends by a target alone."""
    stop, done = run.stop, list[float]()
    if stop.updates is not None:
        done.append(updates / stop.updates)
    if stop.seconds is not None:
        done.append(seconds / stop.seconds)
    if stop.epochs is not None:
        done.append(samples / (stop.epochs * run.epoch_samples))
    return min(1.0, max(done)) if done else None


def _metrics(run: RunInfo, row: Row) -> list[str]:
    """What the last evaluation found, each metric with what it is to reach."""
    stop, texts = run.stop, []
    known = [(name, value) for name, value in row.metrics.items() if not math.isnan(value)]
    for name, value in known[:MOST]:
        text = f"{name} {value:.1%}" if name == "accuracy" else f"{name} {value:.4f}"
        if name == "accuracy" and stop.target is not None:
            text += f"/{stop.target:.1%}"
        elif name == stop.metric:
            text += f"/{stop.below if stop.above is None else stop.above:g}"
        texts.append(text)
    return [*texts, f"staleness {row.staleness:.1f}"]


def waited_for(ledger: Ledger, most: int = 4) -> str:
    """The workers that the current round waits for: late ones if there are any, or all that compute."""
    if ledger.parts():
        waiting = [waited_for(part, most=1) for part in ledger.parts()]
        return "; ".join(waiting[:most]) + ("; ..." if len(waiting) > most else "")
    workers = [ticket.worker for ticket in ledger.behind] or list(ledger.running)
    if not workers:
        return "nobody"
    return ", ".join(map(str, workers[:most])) + (f" and {len(workers) - most} more" if len(workers) > most else "")
