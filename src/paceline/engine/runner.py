"""A run from where it stands to its end, with the evaluations of the model on the way."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.callbacks.base import Callback, RunInfo
from paceline.callbacks.hooks import Hooks
from paceline.core.codec import real
from paceline.core.errors import CannotWrite, ConfigError, Diverged, PacelineError, TooFewWorkers
from paceline.core.fields import nearest
from paceline.core.stateful import State
from paceline.engine.checkpoints import Checkpoints
from paceline.engine.limits import Every, Interval, Stop
from paceline.engine.loop import Loop, Stepped
from paceline.engine.signals import Interrupts
from paceline.learning.generators import own_generators, work_seed
from paceline.learning.learner import Learner
from paceline.learning.task import Task
from paceline.pruning.shards import PrunedShards
from paceline.storage.metrics import Metrics, Row
from paceline.trace.staleness import Staleness

NO_WORKER = -1  # in the seeds of evaluations, where those of tickets have a worker


class EvaluationFailed(Exception):
    """The user's evaluation raised an ``error``; the model is as it was."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the evaluation raised {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        self.error = error


def check_metrics(task: Task, stop: Stop, callbacks: Sequence[Callback], seed: int) -> None:
    """Refuse to wait for a metric that the evaluation does not return."""
    wanted = [(who, name) for name, who in stop.needs.items()]
    wanted += [(type(each).__name__, name) for each in callbacks for name in each.needs]
    if not wanted:
        return
    with own_generators(seed):  # data sets may draw random numbers when they are looked at
        found = task.evaluator()(task.model)
    for who, name in wanted:
        if math.isnan(found.get(name, math.nan)) if name == "accuracy" else name not in found:
            raise ConfigError(f"{who} waits for {name!r}, which the evaluation does not return: {nearest(name, found)}")


class Evaluator:
    """Counts updates and their staleness; adds a row to the history when one is due.

    What a model, a data set or a metric draws in an evaluation follows from the seed and the number of updates. So an
    evaluation can be repeated, and how often the model is evaluated makes no difference to what is trained.
    """

    def __init__(
        self, task: Task, server: Learner, every: Every | None, hooks: Hooks, batch_size: int = 32, *, seed: int = 0
    ) -> None:
        self.server = server
        self._seed = seed
        self.staleness = Staleness()
        self.history: list[Row] = []
        self._evaluate = task.evaluator(batch_size)
        self._interval = Interval(every)
        self._overdue: float | None = None  # when an evaluation was due that failed
        self.hooks = hooks

    def count(self, update: Stepped) -> Row | None:
        """Count an update, and evaluate the model if that is due."""
        ages = self.staleness.count(update.version, update.step, update.dropped)
        interval, updates = self._interval, self.server.updates
        if self.hooks.on_update:
            self.hooks.update(updates, update.at, self.server.samples, ages, update.step)
        if not interval.by_time and updates < interval.next:  # as after most updates
            return None
        if not interval.due(updates, update.at):
            return None
        self._overdue = update.at
        return self.catch_up()

    def catch_up(self) -> Row | None:
        """Make the evaluation up that was due and failed, if any."""
        if self._overdue is None:
            return None
        row = self.evaluate(self._overdue)
        self._overdue = None
        return row

    def state(self) -> State:
        """Which row is due next. The rows themselves are in the run's metrics."""
        overdue = {} if self._overdue is None else {"overdue": self._overdue}
        return {"staleness": self.staleness.state(), "next": self._interval.next, **overdue}

    def restore(self, state: State) -> None:
        self.staleness.restore(state["staleness"])
        self._interval.next = real(state["next"])
        self._overdue = real(state["overdue"]) if "overdue" in state else None

    def evaluate(self, seconds: float) -> Row:
        """Evaluate the model now, and add a row to the history."""
        try:
            with own_generators(work_seed(self._seed, NO_WORKER, self.server.updates)):
                metrics = Metrics(self._evaluate(self.server.model))
        except Diverged:  # an evaluation may end a run for that reason
            raise
        except Exception as error:  # whatever the user's code raises
            raise EvaluationFailed(error) from error
        row = self._row(seconds, metrics)
        self.server.evaluated(row.loss, row.accuracy)
        self.hooks.evaluate(row)
        return row

    def repeat(self, seconds: float) -> None:
        """Add a row of the last evaluation: the model has not changed since."""
        self.hooks.evaluate(self._row(seconds, self.history[-1].metrics))

    def add_unknown(self, seconds: float) -> None:
        """Add a row without an evaluation, which failed, to the history; callbacks are not called."""
        self._row(seconds, Metrics())

    def _row(self, seconds: float, metrics: Mapping[str, float]) -> Row:
        server = self.server
        loss, accuracy = metrics.get("loss", math.nan), metrics.get("accuracy", math.nan)
        staleness, training_loss = self.staleness.mean_since_last_row(), server.training_loss()
        if training := server.training_metrics():
            metrics = Metrics({**metrics, **{f"train/{name}": value for name, value in training.items()}})
        row = Row(server.updates, seconds, server.samples, loss, accuracy, staleness, training_loss, metrics)
        self.history.append(row)
        return row


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
            self._evaluate_first(checkpoints)
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
            except PacelineError:
                raise
            except Exception as error:  # of the user's model, data, optimizer or scheduler, in the middle of an update
                if checkpoints is not None:
                    updates = evaluator.server.updates
                    error.add_note(f"the run ended after {updates:,} updates; {checkpoints.how_to_resume()}")
                raise
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

    def _evaluate_first(self, checkpoints: Checkpoints | None) -> None:
        try:
            self._evaluator.evaluate(0.0)
        except EvaluationFailed as failed:  # nothing was trained: there is nothing to keep
            if checkpoints is not None:
                failed.error.add_note(f"nothing was trained; {checkpoints.how_to_resume()}")
            raise failed.error from None

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
