"""The runs of a comparison: several strategies on the same fleet, data and seeds, each with its best learning rate."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from paceline.comparison.pool import one_thread, process_pool
from paceline.config.file import Config, config_table
from paceline.storage.metrics import Row
from paceline.trace.measure import Measures, measure

TUNED = (
    "Each strategy is trained with every learning rate of the same grid and with the same seeds. It is shown with the "
    "learning rate that reaches the target first (median over the seeds) or, if none does, that ends with the lowest "
    "loss."
)
NOT_TUNED = "Every strategy is trained with the same learning rate and the same seeds."

WORKER_SECONDS: Mapping[str, "Callable[[Outcome], float]"] = {
    "training": lambda outcome: outcome.measures.compute,
    "relabelling": lambda outcome: outcome.measures.relabelling,
    "communication": lambda outcome: outcome.measures.transfer,
}


class Job(NamedTuple):
    """One run to do: the index of a strategy in the configuration, a learning rate (None: as configured), a seed."""

    strategy: int
    lr: float | None
    seed: int


@dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    job: Job
    history: Sequence[Row]
    measures: Measures
    ended: str
    problem: str | None

    @property
    def loss(self) -> float:
        return _or_infinite(self.history[-1].loss)

    @property
    def accuracy(self) -> float:
        return self.history[-1].accuracy

    def seconds_to(self, target: float | None) -> float:
        """When an evaluation first reached the target accuracy, in seconds; infinity if none did."""
        if target is None:
            return math.inf
        return next((row.seconds for row in self.history if row.accuracy >= target), math.inf)

    def table(self) -> dict[str, Any]:
        rows = [{name: _or_none(value) for name, value in row.numbers().items()} for row in self.history]
        run = {"lr": self.job.lr, "seed": self.job.seed, "ended": self.ended, "problem": self.problem}
        return {**run, "history": rows, "measures": self.measures.table()}


@dataclass(frozen=True)
class Entry:
    """A strategy with its best learning rate: one outcome per seed."""

    strategy: int
    label: str
    lr: float | None
    outcomes: tuple[Outcome, ...]
    target: float | None

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(outcome.seconds_to(self.target) for outcome in self.outcomes)

    @property
    def time(self) -> float:
        return median(self.times)

    @property
    def loss(self) -> float:
        return median(outcome.loss for outcome in self.outcomes)

    @property
    def accuracy(self) -> float:
        return median(_or_infinite(outcome.accuracy) for outcome in self.outcomes)

    @property
    def diverged(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.ended == "diverged")

    @property
    def non_finite(self) -> dict[int, int]:
        """How many contributions of each worker were not finite, over all seeds."""
        found: dict[int, int] = {}
        for outcome in self.outcomes:
            for each in outcome.measures.workers:
                if each.non_finite:
                    found[each.worker] = found.get(each.worker, 0) + each.non_finite
        return dict(sorted(found.items()))

    def middle(self, value: Callable[[Outcome], float]) -> float:
        """The median of a value over the seeds."""
        return median(map(value, self.outcomes))

    def rank(self) -> tuple[float, float, float]:
        """Sort key: the first to reach the target comes first; among those that miss it, the lowest loss."""
        return self.time, self.loss, self.lr or 0.0


@dataclass(frozen=True)
class Comparison:
    """All runs, and the best entry of each strategy, sorted by the time to the target."""

    config: Config
    outcomes: tuple[Outcome, ...]
    entries: tuple[Entry, ...]

    @property
    def rule(self) -> str:
        """How the learning rate of each strategy was chosen, in words."""
        return TUNED if self.config.tune else NOT_TUNED

    def entry(self, name: str) -> Entry | None:
        """The best entry of the strategy with this full name, such as "synchronous"."""
        choices = self.config.strategies
        return next((entry for entry in self.entries if choices[entry.strategy].name == name), None)

    def table(self) -> dict[str, Any]:
        """All settings and results as plain values for JSON."""
        return {
            "settings": _plain(config_table(self.config)),
            "rule": self.rule,
            "complete": len(self.outcomes) == len(jobs_of(self.config)),
            "rows": [_row(entry) for entry in self.entries],
            "runs": [{"strategy": self.config.strategies[o.job.strategy].text, **o.table()} for o in self.outcomes],
        }


def jobs_of(config: Config) -> list[Job]:
    """All runs of a comparison. Strategies alternate, so that the estimate of the remaining time is good."""
    rates: Sequence[float | None] = config.tune.lr if config.tune else (None,)
    strategies = range(len(config.strategies))
    return [Job(strategy, lr, seed) for seed in config.seeds for lr in rates for strategy in strategies]


def run_job(config: Config, job: Job) -> Outcome:
    """Train one job from start to end. The outcome depends only on the arguments."""
    from paceline.config.experiment import run

    result = run(config, config.strategies[job.strategy], seed=job.seed, lr=job.lr)
    return Outcome(job, tuple(result.history), measure(result.trace), result.ended, result.problem)


def outcomes_of(config: Config, jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """Check the configuration, then yield the outcome of each job as it finishes. Only the processes import torch."""
    if processes == 1:
        with one_thread():
            check_config(config)
            for job in jobs:
                yield run_job(config, job)
        return
    with process_pool(processes) as pool:
        pool.submit(check_config, config).result()
        for future in as_completed([pool.submit(run_job, config, job) for job in jobs]):
            yield future.result()


def check_config(config: Config) -> None:
    """Raise ``ConfigError`` if the strategies, the data and the fleet do not fit each other."""
    from paceline.config.experiment import check

    check(config)


def comparison_of(config: Config, outcomes: Sequence[Outcome]) -> Comparison:
    """Choose the best learning rate of each strategy, and sort. Runs that are missing are left out."""
    ordered = sorted(outcomes, key=lambda outcome: (outcome.job.strategy, outcome.job.lr or 0.0, outcome.job.seed))
    best: dict[int, Entry] = {}
    candidates: dict[tuple[int, float | None], list[Outcome]] = {}
    for outcome in ordered:
        candidates.setdefault((outcome.job.strategy, outcome.job.lr), []).append(outcome)
    most = max((len(each) for each in candidates.values()), default=0)
    for (strategy, lr), found in candidates.items():
        entry = Entry(strategy, config.strategies[strategy].short, lr, tuple(found), config.target)
        if len(found) == most and (strategy not in best or entry.rank() < best[strategy].rank()):
            best[strategy] = entry
    return Comparison(config, tuple(ordered), tuple(sorted(best.values(), key=Entry.rank)))


def _row(entry: Entry) -> dict[str, Any]:
    outcomes = entry.outcomes
    return {
        "strategy": entry.label,
        "lr": entry.lr,
        "seconds_to_target": _or_none(entry.time),
        "seconds_to_target_by_seed": [_or_none(time) for time in entry.times],
        "updates": entry.middle(lambda each: each.measures.updates),
        "samples": entry.middle(lambda each: each.history[-1].samples),
        "mean_staleness": entry.middle(lambda each: each.measures.mean_staleness),
        "max_staleness": max(each.measures.max_staleness for each in outcomes),
        "wasted_share": entry.middle(lambda each: each.measures.wasted_share),
        "idle_share": entry.middle(lambda each: each.measures.idle_share),
        "worker_seconds": {name: entry.middle(of) for name, of in WORKER_SECONDS.items()},
        "loss": _or_none(entry.loss),
        "accuracy": _or_none(entry.accuracy),
        "diverged_seeds": [each.job.seed for each in entry.diverged],
        "spoiled_by_worker": {str(worker): count for worker, count in entry.non_finite.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _or_none(value) if isinstance(value, float) else value


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf
