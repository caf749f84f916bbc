"""A run from where it stands to its end."""

import math
from dataclasses import dataclass, replace

from paceline.callbacks.base import RunInfo
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
    """Why a run ended; which signal asked for it, or what the problem was; the user's own ``error``, if any.

    ``by_callback`` tells that ``why`` is what a callback returned, which may be any text.
    """

    why: str
    problem: str | None = None
    signal: int | None = None
    error: Exception | None = None
    by_callback: bool = False

    def with_problem(self, more: str) -> "Ended":
        return replace(self, problem="; ".join(filter(None, (self.problem, more))))


class Runner:
    """Runs the loop until it is time to stop, evaluating the model meanwhile and at both ends."""

    def __init__(
        self, stop: Stop, loop: Loop, evaluator: Evaluator, epoch_samples: int, pruned: PrunedShards | None
    ) -> None:
        self._stop = stop
        self._loop = loop
        self._evaluator = evaluator
        self._hooks = evaluator.hooks
        self._pruned = pruned
        self._most_samples = math.inf if stop.epochs is None else stop.epochs * epoch_samples

    def run(self, info: RunInfo | None, checkpoints: Checkpoints | None) -> Ended:
        evaluator, hooks = self._evaluator, self._hooks
        self._check_ahead()
        if info is not None:
            hooks.start(info)
        if hooks.error is not None:
            raise hooks.error  # nothing was trained: there is nothing to keep
        if checkpoints is not None:
            checkpoints.cut()
        if not evaluator.history:
            self._evaluate_first()
        with Interrupts(termination=checkpoints is not None) as interrupts:
            self._loop.asked_to_end = lambda: hooks.asked or interrupts.requested is not None
            try:
                ended = self._train(checkpoints, interrupts)
            except Diverged as error:
                ended = Ended("diverged", str(error))
            except TooFewWorkers as error:
                ended = Ended("too few workers", str(error))
            except EvaluationFailed as failed:
                ended = Ended("evaluation failed", str(failed), error=failed.error)
            except CannotWrite as error:
                raise CannotWrite(f"{error}; {checkpoints.how_to_resume()}" if checkpoints else str(error)) from None
            if checkpoints is not None and self._can_continue(ended) and (unsaved := checkpoints.save_at_end()):
                ended = ended.with_problem(unsaved)
            seconds = self._seconds_at_end(ended)
            if evaluator.history[-1].updates != evaluator.server.updates:
                ended = self._evaluate_last(ended, seconds)
            elif self._loop.in_real_time and seconds > evaluator.history[-1].seconds:
                evaluator.repeat(seconds)  # nobody has finished anything since
        if hooks.error is not None and ended.error is None:
            ended = replace(ended.with_problem(str(hooks.problem)), error=hooks.error)
        return ended

    def _can_continue(self, ended: Ended) -> bool:
        """Is there anything to resume? A run that ended before anybody joined it is started anew."""
        diverged = ended.why == "diverged" and not ended.by_callback
        return not diverged and (self._loop.version > 0 or bool(self._loop.coordinator.ledger.workers))

    def _seconds_at_end(self, ended: Ended) -> float:
        if self._loop.out_of_time:
            return self._stop.seconds or 0.0
        return self._loop.now if ended.signal is not None else self._loop.coordinator.ledger.now

    def _evaluate_first(self) -> None:
        try:
            self._evaluator.evaluate(0.0)
        except EvaluationFailed as failed:
            raise failed.error from None  # nothing was trained: there is nothing to keep

    def _evaluate_last(self, ended: Ended, seconds: float) -> Ended:
        """Evaluate the model at the end, or say why that failed."""
        if ended.why != "evaluation failed" or ended.by_callback:
            try:
                self._evaluator.evaluate(seconds)
                return ended
            except EvaluationFailed as failed:
                ended = replace(ended.with_problem(str(failed)), error=failed.error)
        self._evaluator.add_unknown(seconds)
        return ended

    def _train(self, checkpoints: Checkpoints | None, interrupts: Interrupts) -> Ended:
        evaluator, server, hooks = self._evaluator, self._evaluator.server, self._hooks
        if hooks.asked:
            return self._asked()
        if server.updates:  # a run that is resumed may have come to its end already
            last = evaluator.catch_up() or evaluator.history[-1]
            if ended := self._reached(last if last.updates == server.updates else None):
                return ended
        for update in self._loop:
            row = evaluator.count(update)
            if hooks.asked:
                return self._asked()
            if ended := self._reached(row):
                return ended
            if interrupts.requested is not None:
                return Ended("interrupted", signal=interrupts.requested)
            if checkpoints is not None and checkpoints.due(server.updates, update.at):
                checkpoints.save()
                if hooks.asked:
                    return self._asked()
        if hooks.asked:
            return self._asked()
        if interrupts.requested is not None and not self._loop.out_of_time:
            return Ended("interrupted", signal=interrupts.requested)
        return Ended("seconds" if self._loop.out_of_time else "no workers")

    def _asked(self) -> Ended:
        """A callback returned a text, or raised."""
        if self._hooks.error is not None:
            return Ended("callback failed", self._hooks.problem, error=self._hooks.error)
        return Ended(str(self._hooks.reason), by_callback=True)

    def _reached(self, row: Row | None) -> Ended | None:
        stop, server = self._stop, self._evaluator.server
        if row is not None and (target := stop.reached(row)) is not None:
            return Ended(target)
        if server.updates == stop.updates:
            return Ended("updates")
        seen = server.samples + (self._pruned.skipped if self._pruned else 0)
        return Ended("epochs") if seen >= self._most_samples else None

    def _check_ahead(self) -> None:
        """Refuse an end that a run to be resumed has passed."""
        updates, seconds = self._evaluator.server.updates, self._loop.coordinator.ledger.now
        if updates > (self._stop.updates or math.inf) or seconds > (self._stop.seconds or math.inf):
            raise ConfigError(f"the run is at {updates} updates and {seconds:g} s already, past {self._stop}")
