"""How much of live compensation is trained: the plans, and the runs that each comes to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproductions.lgc.timing import ITERATIONS, PERIODS, QUORUMS
from reproductions.lgc.training import Case, Size, Training
from reproductions.pipeline.plan import Plan, best_learning_rate

METHODS = ("full", "k", "lgc")
PARTS = ("1", "2", "3", "uniform")
LATE = ("complete", "block", "finish")
SPEED = {"vgg": 2_000, "lenet": 8_000}  # training samples a second on one core of the machine of docs/results


@dataclass(frozen=True)
class Grid:
    """All three methods for every number of classes a worker has, every holding period and every seed."""

    model: str
    classes: Sequence[int]
    periods: Sequence[int]
    seeds: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class LgcPlan(Plan):
    """What to train. The first grid is that of the claims on c = 3, h = 10.

    learning_rates  candidates, largest first; the one with which Full-SGD (c = 3, first seed) reaches the highest
                    accuracy on validation samples is used by all methods of that model
    frontier        the models and seeds for which every quorum is tried, at c = 3 and h = 10
    partial         the models and seeds for which late workers get 1, 2, 3 or any number of blocks done, with and
                    without scaling, at c = 3 and h = 10
    parts           those blocks
    late            the models and seeds for which late workers complete their batch, end a block, or finish it in their
                    own time, at c = 3 and h = 10
    tuned           how much is trained to choose the learning rate; as much as everything else if it is not given
    repeats         of the simulations without a model; each has so many ``iterations``
    """

    size: Size
    learning_rates: Sequence[float]
    grids: Sequence[Grid]
    frontier: Sequence[tuple[str, int]] = ()
    partial: Sequence[tuple[str, int]] = ()
    parts: Sequence[str] = PARTS
    late: Sequence[tuple[str, int]] = ()
    tuned: Size | None = None
    repeats: int = 3
    iterations: int = ITERATIONS

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(grid.model for grid in self.grids))


# Half a minute of one core, the simulations included: under a minute beside other work.
QUICK = LgcPlan(
    name="reduced run",
    size=Size(samples=4_000, epochs=8, tested=1_000),
    learning_rates=(0.1,),
    grids=(Grid("lenet", (3,), (10,), (0,)),),
    repeats=1,
    iterations=ITERATIONS // 6,
)
# About 20 minutes of two cores.
SMALL = LgcPlan(
    name="scaled down",
    size=Size(),
    learning_rates=(0.2, 0.1, 0.05, 0.02),
    grids=(
        Grid("vgg", (3,), (10,), (0, 1, 2)),
        Grid("lenet", (3, 2, 1, 10), PERIODS, (0,)),
        Grid("vgg", (2, 1, 10), (10,), (0,)),
        Grid("vgg", (3,), (1, 50), (0,)),
        Grid("lenet", (3,), PERIODS, (1, 2)),
    ),
    frontier=(("lenet", 0),),
    partial=(("lenet", 0),),
)
# The paper's data and epochs on LeNet: about five hours of one core.
FULL = LgcPlan(
    name="full length",
    size=Size(samples=50_000, epochs=60, followed=2),
    tuned=Size(samples=40_000, epochs=12),
    learning_rates=(0.2, 0.1, 0.05, 0.02),
    grids=(
        Grid("lenet", (3,), (10,), (0,)),
        Grid("lenet", (1, 2, 10), (10,), (0,)),
        Grid("lenet", (3,), (1, 50), (0,)),
        Grid("lenet", (3,), (10,), (1, 2)),
    ),
    late=(("lenet", 0), ("lenet", 1), ("lenet", 2)),
    frontier=(("lenet", 0),),
    partial=(("lenet", 0),),
    parts=("1", "2", "3"),
)

Results = Mapping[Training, Mapping[str, Any]]


@dataclass(frozen=True)
class Chosen:
    """The learning rate that all methods of a model share, and a smaller one at which the gaps are measured again."""

    lr: float
    smaller: float | None


@dataclass(frozen=True)
class Runs:
    """Names the runs of a plan, given where the data are and the learning rates that were chosen."""

    plan: LgcPlan
    data: str
    chosen: Mapping[str, Chosen]

    def run(self, model: str, case: Case, seed: int, lr: float | None = None) -> Training:
        """One run; ``seed`` counts from that of the plan."""
        lr = self.chosen[model].lr if lr is None else lr
        return Training(self.data, model, case, lr, self.plan.seed + seed, self.plan.size)

    def all(self) -> list[Training]:
        """Each once, the most telling first."""
        plan = self.plan
        listed = list(self._grid(plan.grids[0]))
        listed += [self.run(model, each, seed) for model, seed in plan.late for each in late_cases()]
        listed += [run for grid in plan.grids[1:] for run in self._grid(grid)]
        listed += [self.run(model, each, seed) for model, seed in plan.frontier for each in frontier_cases()]
        listed += [self.run(model, each, seed) for model, seed in plan.partial for each in partial_cases(plan.parts)]
        return list(dict.fromkeys([*listed, *self._smaller_learning_rates()]))

    def _grid(self, grid: Grid) -> Iterable[Training]:
        for seed in grid.seeds:
            for classes in grid.classes:
                for h in grid.periods:
                    yield from (self.run(grid.model, case(method, classes, h), seed) for method in METHODS)

    def _smaller_learning_rates(self) -> Iterable[Training]:
        for model in self.plan.models:
            if (smaller := self.chosen[model].smaller) is not None:
                yield from (self.run(model, case(method, 3, 10), 0, smaller) for method in METHODS)


def case(method: str, classes: int, h: int) -> Case:
    """The holding period changes only the times of Full-SGD, not its models: it is run for one period."""
    return Case(method, classes, 10 if method == "full" else h)


def frontier_cases() -> list[Case]:
    return [Case("full"), *(Case(method, quorum=quorum) for method in ("k", "lgc") for quorum in QUORUMS)]


def partial_cases(parts: Sequence[str] = PARTS) -> list[Case]:
    """With all four blocks done, scaling changes nothing."""
    return [Case("lgc"), *(Case("lgc", done=done, scale=scale) for done in parts for scale in (True, False))]


def late_cases() -> list[Case]:
    """K-SGD has no use for what late workers do: for it, to end a block is to be stopped."""
    return [*(Case("lgc", late=late) for late in LATE), Case("k", late="finish")]


def tuning(plan: LgcPlan, data: str) -> list[Training]:
    """The runs by which the learning rates are chosen: Full-SGD alone."""
    if len(plan.learning_rates) == 1:
        return []
    return [
        Training(data, model, Case("full"), lr, plan.seed, plan.tuned or plan.size)
        for model in plan.models
        for lr in plan.learning_rates
    ]


def choose(plan: LgcPlan, results: Results) -> dict[str, Chosen]:
    """For each model, the learning rate of the highest validation accuracy; of equal ones the smaller.

    ``results`` are those of all runs of ``tuning``.
    """
    if len(plan.learning_rates) == 1:
        return {model: Chosen(plan.learning_rates[0], None) for model in plan.models}
    chosen = {}
    for model in plan.models:
        errors = {run.lr: -result["validation_accuracy"] for run, result in results.items() if run.model == model}
        chosen[model] = with_smaller(plan, best_learning_rate(errors))
    return chosen


def with_smaller(plan: LgcPlan, lr: float) -> Chosen:
    """A learning rate with the next smaller one that is tried, or half of it."""
    return Chosen(lr, next((other for other in plan.learning_rates if other < lr), lr / 2))


def cost(training: Training) -> float:
    """Seconds of one core, about."""
    share = training.case.quorum / 10 if training.case.method == "k" else 1.0
    used = training.size.updates * 320 * share + (training.size.tested + training.size.samples) / 3
    return used / SPEED[training.model]
