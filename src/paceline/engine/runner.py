"""A run from where it stands to its end."""

import math
from dataclasses import dataclass, replace

from paceline.callbacks.progress import Progress
from paceline.core.errors import CannotWrite, ConfigError, Diverged, TooFewWorkers
from paceline.engine.checkpoints import Checkpoints
from paceline.engine.evaluation import EvaluationFailed, Evaluator
from paceline.engine.limits import Stop
from paceline.engine.loop import Loop
from paceline.engine.signals import Interrupts
from paceline.pruning.shards import PrunedShards
from paceline.storage.metrics import Row


@dataclass(frozen=True)
class Ended:
    """Why a run ended; which signal asked for it, or what the problem was; the user's own ``error``, if any."""

    why: str
    problem: str | None = None
    signal: int | None = None
    error: Exception | None = None


class Runner:
    """Runs the loop until it is time to stop, judging the model on the way and at both ends."""

    def __init__(
        self, stop: Stop, loop: Loop, judge: Evaluator, epoch_samples: int, pruned: PrunedShards | None
    ) -> None:
        self._stop = stop
        self._loop = loop
        self._judge = judge
        self._pruned = pruned
        self._most_samples = math.inf if stop.epochs is None else stop.epochs * epoch_samples

    def run(self, line: Progress, checkpoints: Checkpoints | None) -> Ended:
        judge = self._judge
        self._check_ahead()
        if checkpoints is not None:
            checkpoints.go_on()
        if not judge.history:
            self._look_first()
        with Interrupts(termination=checkpoints is not None) as interrupts:
            self._loop.asked_to_end = lambda: interrupts.requested is not None
            try:
                ended = self._go(line, checkpoints, interrupts)
            except Diverged as error:
                ended = Ended("diverged", str(error))
            except TooFewWorkers as error:
                ended = Ended("too few workers", str(error))
            except EvaluationFailed as failed:
                ended = Ended("evaluation failed", str(failed), error=failed.error)
            except CannotWrite as error:
                raise CannotWrite(f"{error}; {checkpoints.how_to_resume()}" if checkpoints else str(error)) from None
            if checkpoints is not None and ended.why != "diverged" and (unsaved := checkpoints.save_at_end()):
                ended = replace(ended, problem="; ".join(filter(None, (ended.problem, unsaved))))
            seconds = self._seconds_at_end(ended)
            if judge.history[-1].updates != judge.server.updates:
                ended = self._look_last(ended, seconds)
            elif self._loop.in_real_time and seconds > judge.history[-1].seconds:
                judge.stay(seconds)  # nobody has finished anything since
        return ended

    def _seconds_at_end(self, ended: Ended) -> float:
        if ended.why == "seconds":
            return self._stop.seconds or 0.0
        return self._loop.now if ended.why == "interrupted" else self._loop.coordinator.ledger.now

    def _look_first(self) -> None:
        try:
            self._judge.look(0.0)
        except EvaluationFailed as failed:
            raise failed.error from None  # nothing was trained: there is nothing to keep

    def _look_last(self, ended: Ended, seconds: float) -> Ended:
        """Evaluator the model at the end; or say that it cannot be."""
        if ended.error is None:
            try:
                self._judge.look(seconds)
                return ended
            except EvaluationFailed as failed:
                problem = "; ".join(filter(None, (ended.problem, str(failed))))
                ended = replace(ended, problem=problem, error=failed.error)
        self._judge.pass_over(seconds)
        return ended

    def _go(self, line: Progress, checkpoints: Checkpoints | None, interrupts: Interrupts) -> Ended:
        judge, server = self._judge, self._judge.server
        if server.updates:  # a run that is resumed may have come to its end already
            last = judge.catch_up() or judge.history[-1]
            if ended := self._reached(last if last.updates == server.updates else None):
                return ended
        for update in self._loop:
            line.look(server.updates, update.at)
            if ended := self._reached(judge.count(update)):
                return ended
            if interrupts.requested is not None:
                return Ended("interrupted", signal=interrupts.requested)
            if checkpoints is not None and checkpoints.due(server.updates, update.at):
                checkpoints.save()
        if interrupts.requested is not None and not self._loop.out_of_time:
            return Ended("interrupted", signal=interrupts.requested)
        return Ended("seconds" if self._loop.out_of_time else "no workers")

    def _reached(self, row: Row | None) -> Ended | None:
        stop, server = self._stop, self._judge.server
        if row is not None and stop.target is not None and row.accuracy >= stop.target:
            return Ended("target")
        if server.updates == stop.updates:
            return Ended("updates")
        seen = server.samples + (self._pruned.skipped if self._pruned else 0)
        return Ended("epochs") if seen >= self._most_samples else None

    def _check_ahead(self) -> None:
        """Refuse an end that a run to be resumed has passed."""
        updates, seconds = self._judge.server.updates, self._loop.coordinator.ledger.now
        if updates > (self._stop.updates or math.inf) or seconds > (self._stop.seconds or math.inf):
            raise ConfigError(f"the run is at {updates} updates and {seconds:g} s already, past {self._stop}")
