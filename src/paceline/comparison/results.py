"""What a comparison came to: each strategy with its best learning rate, sorted, and how sure the order is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.comparison.jobs import Outcome, or_infinite, or_none
from paceline.comparison.paired import Interval, difference, ratio
from paceline.comparison.plan import Plan
from paceline.engine.limits import Target
from paceline.files import check_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from paceline.theory.time_bound import TimeBound

TUNED = (
    "Each strategy is trained with every learning rate of the same grid and with the same seeds. It is shown with the "
    "learning rate that reaches the target first (median over the seeds) or, if none does, that ends with the lowest "
    "loss."
)
NOT_TUNED = "Every strategy is trained with the same learning rate and the same seeds."

BOUND_ASSUMES = (
    "It assumes workers of fixed speeds and a task as hard as the worst of its kind, and is scaled by the updates that "
    "{reference} needed: a ratio below 1 is possible."
)

WORKER_SECONDS: Mapping[str, Callable[[Outcome], float]] = {
    "training": lambda outcome: outcome.measures.compute,
    "relabelling": lambda outcome: outcome.measures.relabelling,
    "communication": lambda outcome: outcome.measures.transfer,
}


@dataclass(frozen=True)
class Entry:
    """A strategy with its best learning rate: one outcome per seed."""

    strategy: int
    label: str
    lr: float | None
    outcomes: tuple[Outcome, ...]
    target: Target | None

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(outcome.seconds_to(self.target) for outcome in self.outcomes)

    @property
    def time(self) -> float:
        return median(self.times)

    @property
    def missed(self) -> int:
        """With how many seeds the target was not reached."""
        return sum(not math.isfinite(time) for time in self.times)

    @property
    def losses(self) -> tuple[float, ...]:
        """The last loss of each seed; where none is evaluated, the metric of the target, the smaller the better."""
        target = self.target
        if target is None or any(math.isfinite(outcome.loss) for outcome in self.outcomes):
            return tuple(outcome.loss for outcome in self.outcomes)
        sign = -1 if target.above else 1
        return tuple(or_infinite(sign * outcome.final(target.metric)) for outcome in self.outcomes)

    @property
    def loss(self) -> float:
        return median(outcome.loss for outcome in self.outcomes)

    @property
    def accuracy(self) -> float:
        return self.final("accuracy")

    def final(self, metric: str) -> float:
        """The median of a metric at the end; infinity if it is not known."""
        return median(or_infinite(outcome.final(metric)) for outcome in self.outcomes)

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

    @property
    def price(self) -> float | None:
        """The median price of the workers' time; None where no prices are given."""
        found = [each.measures.price for each in self.outcomes if each.measures.price is not None]
        return median(found) if found else None

    def rank(self) -> tuple[float, float, float]:
        """Sort key: the first to reach the target comes first; among those that miss it, the lowest loss."""
        return self.time, median(self.losses), self.lr or 0.0

    def against(self, other: "Entry") -> Interval | None:
        """How many times as long another strategy takes to the target, in pairs of the same seed.

        Where there is no target, or this strategy misses it: by how much the other's last loss is larger.
        """
        pairs = {outcome.job.seed: number for number, outcome in enumerate(other.outcomes)}
        both = [(number, pairs[each.job.seed]) for number, each in enumerate(self.outcomes) if each.job.seed in pairs]
        by_time = math.isfinite(self.time)
        own, others = (self.times, other.times) if by_time else (self.losses, other.losses)
        compare = ratio if by_time else difference
        return compare([own[one] for one, _ in both], [others[two] for _, two in both])

    def told_apart(self, other: "Entry") -> bool | None:
        """Is this strategy better than another one, beyond what chance explains? None: too few pairs to tell."""
        found = self.against(other)
        return None if found is None else not found.includes(1.0 if math.isfinite(self.time) else 0.0)


@dataclass(frozen=True, repr=False)
class Comparison:
    """All runs, and the best entry of each strategy, sorted by the time to the target.

    ``print(comparison)`` shows the table and the verdict.
    """

    plan: Plan
    outcomes: tuple[Outcome, ...]
    entries: tuple[Entry, ...]

    @property
    def rule(self) -> str:
        """How the learning rate of each strategy was chosen, in words."""
        return TUNED if self.plan.rates else NOT_TUNED

    @property
    def reference(self) -> Entry | None:
        """The best entry of the synchronous strategy, if it is one of them."""
        return next((entry for entry in self.entries if entry.strategy == self.plan.reference), None)

    @property
    def bound(self) -> "TimeBound | None":
        """The least time to the target that any rule could take on these workers, by theory; None where not known."""
        return None if self.reference is None else time_bound(self.reference.outcomes, self.plan.target)

    @property
    def metrics(self) -> list[str]:
        """The names of what the evaluations returned, besides loss and accuracy."""
        return _other_metrics(self.outcomes)

    @property
    def table(self) -> str:
        """The table as text: one row per strategy, the fastest first."""
        from paceline.comparison.tables import as_text

        return as_text(self)

    @property
    def verdict(self) -> str:
        """Which strategy wins, by how much, how sure that is, and why: a sentence a line."""
        from paceline.comparison.verdict import verdict

        return "\n".join(verdict(self))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table as plain values: one mapping per strategy, the fastest first."""
        bound = self.bound
        return [_row(entry, self.entries[0], bound) for entry in self.entries]

    @property
    def directories(self) -> list[Path]:
        """The directories of the runs, if they were kept."""
        return [outcome.directory for outcome in self.outcomes if outcome.directory is not None]

    def __repr__(self) -> str:
        first = f"{self.entries[0].label} first of " if self.entries else ""
        return f"Comparison({first}{len(self.entries)} strategies, {len(self.outcomes)} runs)"

    def __str__(self) -> str:
        return f"{self.table}\n{self.verdict}"

    def _repr_html_(self) -> str:
        from paceline.comparison.tables import as_html

        return as_html(self)

    def data(self) -> dict[str, Any]:
        """All settings and results as plain values for JSON."""
        return {
            "settings": _plain(self.plan.settings),
            "rule": self.rule,
            "complete": len(self.outcomes) == len(self.plan.jobs),
            "verdict": self.verdict.splitlines(),
            "rows": self.rows,
            "runs": [{"strategy": self.plan.texts[o.job.strategy], **_plain(o.table())} for o in self.outcomes],
        }

    def plot(self, path: Path | str | None = None) -> "Figure":
        """Draw the learning curves: medians over the seeds, and their range. With a ``path``, write them as a PNG."""
        from paceline.comparison.tables import draw

        place = None if path is None else Path(path)
        if place is not None:
            check_writable(place, ".png")
        return draw(self, place)

    def report(self, path: Path | str) -> Path:
        """Write a page with the verdict, the table, and the run of the first seed of each strategy."""
        from paceline.comparison.tables import write_report

        place = Path(path)
        check_writable(place, ".html")
        write_report(self, place)
        return place


def comparison_of(plan: Plan, outcomes: Sequence[Outcome]) -> Comparison:
    """Choose the best learning rate of each strategy, and sort. Runs that are missing are left out."""
    ordered = sorted(outcomes, key=lambda outcome: (outcome.job.strategy, outcome.job.lr or 0.0, outcome.job.seed))
    best: dict[int, Entry] = {}
    candidates: dict[tuple[int, float | None], list[Outcome]] = {}
    for outcome in ordered:
        candidates.setdefault((outcome.job.strategy, outcome.job.lr), []).append(outcome)
    most = max((len(each) for each in candidates.values()), default=0)
    for (strategy, lr), found in candidates.items():
        entry = Entry(strategy, plan.labels[strategy], lr, tuple(found), plan.target)
        if len(found) == most and (strategy not in best or entry.rank() < best[strategy].rank()):
            best[strategy] = entry
    return Comparison(plan, tuple(ordered), tuple(sorted(best.values(), key=Entry.rank)))


def time_bound(synchronous: Sequence[Outcome], target: Target | None) -> "TimeBound | None":
    """The lower bound on the time to the target, from runs of the synchronous rule (``theory.yardstick``).

    None where it cannot be told: without a target that they reach, or where the noise of gradients is not known.
    """
    from paceline.theory.time_bound import yardstick

    noises = [each.noise for each in synchronous if each.noise is not None]
    if target is None or not noises:
        return None
    updates = [next((row.updates for row in each.history if target.reached(row)), math.inf) for each in synchronous]
    needed, seconds = median(updates), _seconds_a_contribution(synchronous)
    if not (0 < needed < math.inf) or not seconds:
        return None
    noise = median(each.gradients for each in noises)
    return yardstick(seconds, updates=needed, noise=noise, unlike=noises[0].unlike)


def _seconds_a_contribution(outcomes: Sequence[Outcome]) -> list[float]:
    """What each worker took for a contribution, its messages included: the mean over all runs."""
    spent: dict[int, float] = {}
    pieces: dict[int, int] = {}
    for outcome in outcomes:
        for each in outcome.measures.workers:
            spent[each.worker] = spent.get(each.worker, 0.0) + each.busy + each.transfer
            pieces[each.worker] = pieces.get(each.worker, 0) + each.contributions
    return [spent[worker] / pieces[worker] for worker in spent if pieces[worker] and spent[worker] > 0]


def _row(entry: Entry, first: Entry, bound: "TimeBound | None") -> dict[str, Any]:
    outcomes = entry.outcomes
    against = None if entry is first else first.against(entry)
    measure = "times_as_long_as_the_first" if math.isfinite(first.time) else "loss_above_the_first"
    return {
        "strategy": entry.label,
        "lr": entry.lr,
        "seconds_to_target": or_none(entry.time),
        **({} if bound is None else {"times_the_lower_bound": or_none(entry.time / bound.seconds)}),
        "seconds_to_target_by_seed": [or_none(time) for time in entry.times],
        measure: None if against is None else {name: or_none(value) for name, value in against.table().items()},
        "told_apart_from_the_first": None if entry is first else first.told_apart(entry),
        "updates": entry.middle(lambda each: each.measures.updates),
        "samples": entry.middle(lambda each: each.history[-1].samples),
        "mean_staleness": entry.middle(lambda each: each.measures.mean_staleness),
        "max_staleness": max(each.measures.max_staleness for each in outcomes),
        "wasted_share": entry.middle(lambda each: each.measures.wasted_share),
        "idle_share": entry.middle(lambda each: each.measures.idle_share),
        "worker_seconds": {name: entry.middle(of) for name, of in WORKER_SECONDS.items()},
        **({} if entry.price is None else {"price": entry.price}),
        "loss": or_none(entry.loss),
        "accuracy": or_none(entry.accuracy),
        "metrics": {name: or_none(entry.final(name)) for name in _other_metrics(outcomes)},
        "diverged_seeds": [each.job.seed for each in entry.diverged],
        "spoiled_by_worker": {str(worker): count for worker, count in entry.non_finite.items()},
    }


def _other_metrics(outcomes: Sequence[Outcome]) -> list[str]:
    rows = [outcome.history[-1].metrics for outcome in outcomes]
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in ("loss", "accuracy")]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return or_none(value) if isinstance(value, float) else value
