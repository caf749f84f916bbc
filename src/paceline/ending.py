"""A run from where it stands to its end."""

import math
from dataclasses import dataclass

from paceline.core.errors import ConfigError, Diverged
from paceline.interrupts import Interrupts
from paceline.judge import Judge
from paceline.loop import Loop
from paceline.progress import Progress
from paceline.run import Row, Stop
from paceline.saving import Checkpoints


@dataclass(frozen=True)
class Ended:
    """Why a run ended; which signal asked for it, or what the problem was."""

    why: str
    problem: str | None = None
    signal: int | None = None


class Ending:
    """Runs the loop until it is time to stop, judging the model on the way and at both ends."""

    def __init__(self, stop: Stop, loop: Loop, judge: Judge, epoch_samples: int) -> None:
        self._stop = stop
        self._loop = loop
        self._judge = judge
        self._most_samples = math.inf if stop.epochs is None else stop.epochs * epoch_samples

    def come(self, line: Progress, checkpoints: Checkpoints | None) -> Ended:
        judge, server, seconds = self._judge, self._judge.server, self._loop.coordinator.ledger.now
        if not judge.history:
            judge.look(seconds)
        self._check_ahead()
        with Interrupts(termination=checkpoints is not None) as interrupts:
            try:
                ended = self._reached(judge.history[-1])  # a run that is resumed may have come to its end already
                for update in self._loop if ended is None else ():
                    seconds = update.at
                    line.look(server.updates, seconds)
                    ended = self._reached(judge.count(update))
                    if ended is None and interrupts.requested is not None:
                        ended = Ended("interrupted", signal=interrupts.requested)
                    if ended is not None:
                        break
                    if checkpoints is not None and checkpoints.due(server.updates, seconds):
                        checkpoints.save()
                if self._loop.out_of_time:
                    ended, seconds = Ended("seconds"), self._stop.seconds or seconds
                if checkpoints is not None:
                    checkpoints.save_at_end()
            except Diverged as error:
                ended, seconds = Ended("diverged", str(error)), self._loop.coordinator.ledger.now
            if judge.history[-1].updates != server.updates:
                judge.look(seconds)
        return ended or Ended("no workers")

    def _reached(self, row: Row | None) -> Ended | None:
        stop, server = self._stop, self._judge.server
        if row is not None and stop.target is not None and row.accuracy >= stop.target:
            return Ended("target")
        if server.updates == stop.updates:
            return Ended("updates")
        return Ended("epochs") if server.samples >= self._most_samples else None

    def _check_ahead(self) -> None:
        """Refuse an end that a run to be resumed has passed."""
        updates, seconds = self._judge.server.updates, self._loop.coordinator.ledger.now
        if updates > (self._stop.updates or math.inf) or seconds > (self._stop.seconds or math.inf):
            raise ConfigError(f"the run is at {updates} updates and {seconds:g} s already, past {self._stop}")
