r"""Short paired trials: the best few rules train on simulated workers of the measured speeds, all from the same start.

Gradients are real and time is virtual: a trial costs what its gradients cost, however slow the workers are. All trials
of a seed have the same initial weights, the same mini-batches of each worker and the same durations. What is done now
trains for ``ROUNDS`` of its updates, or until the target. The mean loss of the last quarter of them is the level
$\ell$, which it came to first at the time $t_0(\ell)$; a rule that comes to it at $t(\ell)$ has the gain
$t_0(\ell) / t(\ell)$, and one that does not in ``LONGEST`` times $t_0$ has none. The gain is the geometric mean over
the seeds.

First every rule has the learning rate of theory, or that of now where there is none; then the best ones have half and
twice as much, as far as that is stable.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.core.errors import ConfigError
from paceline.data.partition import Partition
from paceline.engine.limits import Every, Stop, Target
from paceline.prediction.candidates import Option
from paceline.prediction.pace import Case, subfleet
from paceline.storage.metrics import Row
from paceline.strategies.traits import deals_sizes

if TYPE_CHECKING:
    from paceline.learning.optimizers import MakeOptimizer
    from paceline.learning.task import Task

Rows = Sequence[Row]
ROUNDS = 40  # updates of what is done now
ROUNDS_TO_TARGET = 1000  # of what is done now, at most
EVALUATIONS = 100  # in these
SEEDS = 2
TRIED = 7  # rules, besides what is done now
TUNED = 3  # of them, with other learning rates
LONGEST = 1.25
MOST_SECONDS = 60.0  # of this process's computing, after which no trial is begun


class Level(NamedTuple):
    """A loss, the time that gains are counted from, and when what is done now reached it: never, maybe."""

    loss: float
    base: float
    reached: float


@dataclass(frozen=True)
class Tried:
    """A rule with a learning rate, and how many times as soon as now it was on each seed; 0 if it never was."""

    option: Option
    learning_rate: float
    gains: tuple[float, ...]
    seconds: float  # until the level, on the first seed

    @property
    def gain(self) -> float:
        return math.exp(sum(map(math.log, self.gains)) / len(self.gains)) if all(self.gains) else 0.0


@dataclass
class Trials:
    """Trials of rules on one task and fleet."""

    task: "Task"
    optimizer: "MakeOptimizer"
    case: Case
    partition: Partition
    learning_rate: float  # of now
    target: Target | None = None
    most_seconds: float = MOST_SECONDS
    notes: list[str] = field(default_factory=list)
    _usual: float = math.inf  # seconds of so many rounds

    def compare(self, options: Sequence[Option], rates: Mapping[str, tuple[float, float]], pace: float) -> list[Tried]:
        """Try the options, of which the first is done now; ``rates``: the learning rate of each and the largest.

        ``pace``: updates a second of what is done now. The result has one entry for each option that was tried, the
        first for what is done now; nothing if that comes to no lower loss.
        """
        end, self._usual = time.process_time() + self.most_seconds, ROUNDS / pace
        levels = [self._level(options[0], pace, seed) for seed in range(self.case.seed, self.case.seed + SEEDS)]
        if any(base is None for base in levels):
            self.notes.append("Trials told nothing: what is done now does not lower the loss in them.")
            return []
        known = [base for base in levels if base is not None]
        found = [Tried(options[0], self.learning_rate, (1.0,) * SEEDS, known[0][2])]
        for option in options[1 : TRIED + 1]:
            if time.process_time() < end:
                found.append(self._tried(option, rates[option.label][0], known))
        best = sorted(found[1:], key=lambda each: -each.gain)[:TUNED]
        for each in best:
            for rate in self._neighbours(each, rates[each.option.label][1]):
                if time.process_time() < end:
                    other = self._tried(each.option, rate, known)
                    place = next(at for at, own in enumerate(found) if own.option is each.option)
                    found[place] = max(found[place], other, key=lambda one: one.gain)
        if len(found) == 1:
            self.notes.append("Trials take too long for this model: theory decides.")
            return []
        if time.process_time() >= end:
            self.notes.append(f"Trials ended after {self.most_seconds:g} s of computing: not all were begun.")
        self.notes.append(
            f"{len(found)} rules were tried on simulated workers of these speeds, from the same weights and with the "
            f"same mini-batches, on {SEEDS} seeds, until the loss that {options[0].label} comes to in "
            f"{'the target' if self.target else f'{ROUNDS} updates'}."
        )
        return found

    def _neighbours(self, tried: Tried, largest: float) -> list[float]:
        rates = (2 * tried.learning_rate, tried.learning_rate / 2)
        return [rate for rate in rates if rate <= largest]

    def _level(self, now: Option, pace: float, seed: int) -> "Level | None":
        """What is done now comes to a loss, or to the target; nothing if it does not lower the loss."""
        rounds = ROUNDS if self.target is None else ROUNDS_TO_TARGET
        rows = self._run(
            now, self.learning_rate, seed, seconds=rounds / pace, each=ROUNDS / pace / EVALUATIONS, goal=self.target
        )
        if self.target is not None:
            at = next((row.seconds for row in rows if self.target.reached(row)), None)
            return Level(math.nan, rounds / pace if at is None else at, math.inf if at is None else at)
        losses = [row.loss for row in rows if math.isfinite(row.loss)]
        level = fmean(losses[-max(1, len(losses) // 4) :]) if losses else math.nan
        if not level < losses[0]:
            return None
        at = next(row.seconds for row in rows if row.loss <= level)
        return Level(level, at, at)

    def _tried(self, option: Option, rate: float, levels: Sequence["Level"]) -> Tried:
        gains, first = list[float](), math.inf
        for number, (level, base, _) in enumerate(levels):
            goal = self.target or Target("loss", level, above=False)
            seed, each = self.case.seed + number, min(base, self._usual) / EVALUATIONS
            try:
                rows = self._run(option, rate, seed, seconds=LONGEST * base, each=each, goal=goal)
            except ConfigError as error:
                self.notes.append(f"{option.label} is not possible here: {error}.")
                return Tried(option, rate, (0.0,) * len(levels), math.inf)
            reached = next((row.seconds for row in rows if goal.reached(row) and row.seconds > 0), math.inf)
            first = reached if number == 0 else first
            gains.append(base / reached if math.isfinite(reached) else 0.0)
            if not gains[-1]:
                return Tried(option, rate, (0.0,) * len(levels), first)
        return Tried(option, rate, tuple(gains), first)

    def _run(self, option: Option, rate: float, seed: int, *, seconds: float, each: float, goal: Target | None) -> Rows:
        """Train for so many virtual seconds, or until the goal; evaluate after ``each`` of them."""
        from paceline.engine.train import train

        limit = {} if goal is None else {"metric": goal.metric, "above" if goal.above else "below": goal.value}
        sizes = None if deals_sizes(option.strategy) else self.case.sizes(option.without)
        with _quiet():
            run = train(
                self.task, strategy=option.strategy, fleet=subfleet(self.case.fleet, option.without),
                optimizer=with_rate(self.optimizer, rate / self.learning_rate), batch_size=sizes, seed=seed,
                stop=Stop(seconds=seconds, **limit),  # type: ignore[arg-type]
                every=Every(seconds=each), partition=self.partition, progress=False,
            )  # fmt: skip
        return run.history


def with_rate(optimizer: "MakeOptimizer", factor: float) -> "MakeOptimizer":
    """The same optimizer with so many times the learning rate."""
    from paceline.learning.optimizers import takes_names

    def scaled(made: Any) -> Any:
        for group in made.param_groups:
            group["lr"] *= factor
        return made

    if takes_names(optimizer):
        return lambda named_parameters: scaled(optimizer(named_parameters))
    return lambda parameters: scaled(optimizer(parameters))


@contextmanager
def _quiet() -> Iterator[None]:
    """That a trial diverged is in its curve."""
    log = logging.getLogger("paceline")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
