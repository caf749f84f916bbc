"""How far the strategies of a comparison are from the least time that any rule could take on these workers."""

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from paceline.comparison.jobs import Outcome
from paceline.engine.limits import Target

if TYPE_CHECKING:
    from paceline.theory.time_bound import TimeBound

ASSUMES = (
    "It assumes workers of fixed speeds and a task as hard as the worst of its kind, and is scaled by the updates that "
    "{reference} needed: a ratio below 1 is possible."
)


def time_bound(synchronous: Sequence[Outcome], target: Target | None) -> "TimeBound | None":
    """The lower bound on the time to the target, from runs of the synchronous rule (``theory.yardstick``).

    None where it cannot be told: without a target that they reach, or where the noise of gradients is not known.
    """
    from paceline.theory.time_bound import yardstick

    noises = [each.noise for each in synchronous if each.noise is not None]
    if target is None or not noises:
        return None
    updates = [next((row.updates for row in each.history if target.reached(row)), math.inf) for each in synchronous]
    needed, seconds = median(updates), worker_seconds(synchronous)
    if not (0 < needed < math.inf) or not seconds:
        return None
    noise = median(each.gradients for each in noises)
    return yardstick(seconds, updates=needed, noise=noise, unlike=noises[0].unlike)


def worker_seconds(outcomes: Sequence[Outcome]) -> list[float]:
    """What each worker took for a contribution, its messages included: the mean over all runs."""
    spent: dict[int, float] = {}
    pieces: dict[int, int] = {}
    for outcome in outcomes:
        for each in outcome.measures.workers:
            spent[each.worker] = spent.get(each.worker, 0.0) + each.busy + each.transfer
            pieces[each.worker] = pieces.get(each.worker, 0) + each.contributions
    return [spent[worker] / pieces[worker] for worker in spent if pieces[worker] and spent[worker] > 0]
