"""Time to Full-SGD's accuracy and loss, for each thing that late workers may do: an update's time is not a model's.

The paper compares times for as many updates. Here the clock stops when a goal is first reached, for Full-SGD too; seed
by seed, so that the interval is that of paired differences. The goals:

    full_best      test accuracy within a point of Full-SGD's best: what training with early stopping waits for. A point
                   is what chance may do to one model on 10,000 test samples. Half a point and none are beside it.
                   These three were added after the runs had been seen
    full_accuracy  test accuracy within half a point of where Full-SGD ends. By then accuracy has long gone up and down
                   near its end, so when it first comes there is largely chance
    loss           training loss down to 0.1: the smoothest of them, and of what was learnt by heart
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from reproductions.lgc.plan import LATE
from reproductions.lgc.timing import SAID
from reproductions.lgc.training import Case
from reproductions.pipeline.claims import Claim, by_test, listed, made
from reproductions.pipeline.verdicts import FEW, over_seeds

if TYPE_CHECKING:
    from reproductions.lgc.claims import Findings

NEAR = 0.5  # points below Full-SGD's last accuracy
BELOW_BEST = (1.0, 0.5, 0.0)  # points below Full-SGD's best accuracy; the first is the main one
LOW = 0.1  # a training loss that Full-SGD has after four fifths of its updates
CLOSE = 2.0  # points: "nearly equal"

Row = Sequence[float | None]  # updates, virtual seconds, training loss, test accuracy as a share


class Goal(NamedTuple):
    """What stops the clock, and when a curve is there, beside that of Full-SGD."""

    words: str
    when: Callable[[Sequence[Row], Sequence[Row]], float | None]


def late_claims(found: "Findings", model: str) -> Iterable[Claim]:
    """At c = 3 and h = 10: accuracy at the end and at its best, and the time to the goals above."""
    for late in LATE[1:]:
        name = f"points_below_full.{model}.lgc.c3.h10.{late}"
        yield made(name, "nearly equal", CLOSE, partial(_below, found, model, late))
    cases = [("lgc", late) for late in LATE] + [("k", "complete"), ("k", "finish")]
    for method, late in cases:
        name = f"best_points_below_full.{model}.{method}.c3.h10.{late}"
        yield made(name, None, None, partial(_best_below, found, model, Case(method, late=late)))
    for (kind, below), goal in _goals().items():
        for method, late in cases:
            name = f"time_to_{kind}.{model}.{method}.c3.h10.{late}{below}"
            yield made(name, SAID, "above 0", partial(_saved, found, model, Case(method, late=late), goal))


def _goals() -> dict[tuple[str, str], Goal]:
    """By the name of what is reached, and by what ends the name of a claim on it."""
    goals = {}
    for number, below in enumerate(BELOW_BEST):
        within = f"within {below:g} point{'s' * (below != 1)} of" if below else "as high as"
        words = f"first evaluation {within} Full-SGD's best accuracy"
        goals["full_best", f".within_{below:g}" if number else ""] = Goal(words, partial(_to_best, below=below))
    last = f"first evaluation within {NEAR:g} points of Full-SGD's last accuracy"
    return goals | {
        ("full_accuracy", ""): Goal(last, _to_accuracy),
        ("loss", ""): Goal(f"training loss down to {LOW:g}", _to_loss),
    }


def _seeds(found: "Findings", model: str, case: Case) -> list[int]:
    """Those of which the case and Full-SGD were run; the first that is planned if there is none."""
    planned = [seed for name, seed in found.runs.plan.late if name == model]
    run = [s for s in planned if all(found.runs.run(model, each, s) in found.results for each in (case, Case("full")))]
    return run or planned[:1]


def _below(found: "Findings", model: str, late: str, name: str) -> Claim:
    case = Case("lgc", late=late)
    gap = found.between(model, (Case("full"), case), _seeds(found, model, case))
    note = "late workers " + ("end the block they are at" if late == "block" else "finish their batch first")
    return by_test(name, "nearly equal", gap, CLOSE, gap.within(CLOSE), note)


def _best_below(found: "Findings", model: str, case: Case, name: str) -> Claim:
    """The best evaluations, whenever they were. Without a verdict: the paper says nothing of them."""
    bests = [
        [best(found.result(model, each, seed)["curve"]) for seed in _seeds(found, model, case)]
        for each in (Case("full"), case)
    ]
    differences = [full - own for full, own in zip(*bests, strict=True)]
    words = f"best evaluations {listed(bests[1])} %, Full-SGD's {listed(bests[0])} %; late workers: {case.late}"
    gap = over_seeds(differences)
    return Claim(name, None, fmean(differences), None, None, words, "one seed: no test" if gap is None else gap.words)


def _saved(found: "Findings", model: str, case: Case, goal: Goal, name: str) -> Claim:
    """In percent of Full-SGD's own time with the same seed. Of fewer than three seeds nothing is told."""
    seeds, each_seed = _seeds(found, model, case), list[float | None]()
    for seed in seeds:
        full, own = (found.result(model, each, seed)["curve"] for each in (Case("full"), case))
        whole, taken = goal.when(full, full), goal.when(own, full)
        if whole is None:
            return Claim(
                name, SAID, None, "above 0", None, f"Full-SGD with seed {seed} does not get there: {goal.words}"
            )
        each_seed.append(None if taken is None else 100 * (1 - taken / whole))
    saved = [each for each in each_seed if each is not None]
    told = ", ".join("never" if each is None else f"{each:.2f}" for each in each_seed)
    note = f"percent of Full-SGD's virtual seconds; {goal.words}; late workers: {case.late}; by seeds: {told}"
    if len(saved) < len(seeds):
        ours = "never" if not saved else f"never with {len(seeds) - len(saved)} of {len(seeds)} seeds"
        holds = None if any(each > 0 for each in saved) else False
        return Claim(name, SAID, ours, "above 0", holds, note, f"{len(seeds)} seeds")
    difference = over_seeds(saved) if len(saved) >= FEW else None
    if difference is None:
        return Claim(name, SAID, fmean(saved), "above 0", None, note, f"{len(seeds)} of the {FEW} seeds it takes")
    return by_test(name, SAID, difference, "above 0", difference.above(), note)


def _to_accuracy(curve: Sequence[Row], full: Sequence[Row]) -> float | None:
    last = full[-1][3]
    assert last is not None
    return reached(curve, 100 * last - NEAR)


def _to_best(curve: Sequence[Row], full: Sequence[Row], below: float) -> float | None:
    return reached(curve, best(full) - below)


def best(curve: Sequence[Row]) -> float:
    """The highest accuracy of a curve in percent, once it has begun."""
    return max(100 * row[3] for row in curve[1:] if row[3] is not None)


def _to_loss(curve: Sequence[Row], _: Sequence[Row]) -> float | None:
    """Between two evaluations the loss is taken to fall in a straight line."""
    rows = [(float(row[1] or 0), float(row[2])) for row in curve if row[2] is not None]
    for (before, above), (after, below) in pairwise(rows):
        if below <= LOW:
            return after if above <= LOW else before + (after - before) * (above - LOW) / (above - below)
    return None


def reached(curve: Sequence[Row], target: float) -> float | None:
    """The virtual seconds at which a curve's accuracy in percent first is as high, once it has begun."""
    trained = [(float(row[1] or 0), row[3]) for row in curve[1:] if row[3] is not None]
    return next((seconds for seconds, share in trained if 100 * share >= target), None)
