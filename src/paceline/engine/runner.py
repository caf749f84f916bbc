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
    """Runs the loop until it is time to stop, evaluating the model meanwhile and at both ends."""

    def __init__(
        self, stop: Stop, loop: Loop, evaluator: Evaluator, epoch_samples: int, pruned: PrunedShards | None
    ) -> None:
        self._stop = stop
        self._loop = loop
        self._evaluator = evaluator
        self._pruned = pruned
        self._most_samples = math.inf if stop.epochs is None else stop.epochs * epoch_samples

    def run(self, progress: Progress, checkpoints: Checkpoints | None) -> Ended:
        evaluator = self._evaluator
        self._check_ahead()
        if checkpoints is not None:
            checkpoints.cut()
        if not evaluator.history:
            self._evaluate_first()
        with Interrupts(termination=checkpoints is not None) as interrupts:
            self._loop.asked_to_end = lambda: interrupts.requested is not None
            try:
                ended = self._train(progress, checkpoints, interrupts)
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
            if evaluator.history[-1].updates != evaluator.server.updates:
                ended = self._evaluate_last(ended, seconds)
            elif self._loop.in_real_time and seconds > evaluator.history[-1].seconds:
                evaluator.repeat(seconds)  # nobody has finished anything since
        return ended

    def _seconds_at_end(self, ended: Ended) -> float:
        if ended.why == "seconds":
            return self._stop.seconds or 0.0
        return self._loop.now if ended.why == "interrupted" else self._loop.coordinator.ledger.now

    def _evaluate_first(self) -> None:
        try:
            self._evaluator.evaluate(0.0)
        except EvaluationFailed as failed:
            raise failed.error from None  # nothing was trained: there is nothing to keep

    def _evaluate_last(self, ended: Ended, seconds: float) -> Ended:
        """Evaluate the model at the end, or say why that failed."""
        if ended.error is None:
            try:
                self._evaluator.evaluate(seconds)
                return ended
            except EvaluationFailed as failed:
                problem = "; ".join(filter(None, (ended.problem, str(failed))))
                ended = replace(ended, problem=problem, error=failed.error)
        self._evaluator.add_unknown(seconds)
        return ended

    def _train(self, progress: Progress, checkpoints: Checkpoints | None, interrupts: Interrupts) -> Ended:
        evaluator, server = self._evaluator, self._evaluator.server
        if server.updates:  # a run that is resumed may have come to its end already
            last = evaluator.catch_up() or evaluator.history[-1]
            if ended := self._reached(last if last.updates == server.updates else None):
                return ended
        for update in self._loop:
            if progress.shown:
                progress.show(server.updates, update.at)
            if ended := self._reached(evaluator.count(update)):
                return ended
            if interrupts.requested is not None:
                return Ended("interrupted", signal=interrupts.requested)
            if checkpoints is not None and checkpoints.due(server.updates, update.at):
                checkpoints.save()
        if interrupts.requested is not None and not self._loop.out_of_time:
            return Ended("interrupted", signal=interrupts.requested)
        return Ended("seconds" if self._loop.out_of_time else "no workers")

    def _reached(self, row: Row | None) -> Ended | None:
        stop, server = self._stop, self._evaluator.server
        if row is not None and stop.target is not None and row.accuracy >= stop.target:
            return Ended("target")
        if server.updates == stop.updates:
            return Ended("updates")
        seen = server.samples + (self._pruned.skipped if self._pruned else 0)
        return Ended("epochs") if seen >= self._most_samples else None

    def _check_ahead(self) -> None:
        """Refuse an end that a run to be resumed has passed."""
        updates, seconds = self._evaluator.server.updates, self._loop.coordinator.ledger.now
        if updates > (self._stop.updates or math.inf) or seconds > (self._stop.seconds or math.inf):
            raise ConfigError(f"the run is at {updates} updates and {seconds:g} s already, past {self._stop}")
