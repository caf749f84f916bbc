"""Time to Full-SGD's accuracy, for each thing that late workers may do: what an update costs is not what a model costs.

The paper compares times for as many updates. Here the clock stops when the test accuracy first comes within half a
point of where Full-SGD ends, for Full-SGD too.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from reproductions.lgc.plan import LATE
from reproductions.lgc.timing import SAID
from reproductions.lgc.training import Case
from reproductions.pipeline.claims import Claim, by_test, made

if TYPE_CHECKING:
    from reproductions.lgc.claims import Findings

NEAR = 0.5  # points below Full-SGD's last accuracy
CLOSE = 2.0  # points: "nearly equal"


def late_claims(found: "Findings", model: str) -> Iterable[Claim]:
    """At c = 3 and h = 10: accuracy at the end, and time to Full-SGD's accuracy."""
    seeds = [seed for name, seed in found.runs.plan.late if name == model]
    for late in LATE[1:]:
        yield made(
            f"points_below_full.{model}.lgc.c3.h10.{late}",
            "nearly equal",
            CLOSE,
            partial(_below, found, model, late, seeds),
        )
    cases = [("lgc", late) for late in LATE] + [("k", "complete"), ("k", "finish")]
    for method, late in cases:
        name = f"time_to_full_accuracy.{model}.{method}.c3.h10.{late}"
        yield made(name, SAID, "above 0", partial(_saved, found, model, Case(method, late=late), seeds[0]))


def _below(found: "Findings", model: str, late: str, seeds: list[int], name: str) -> Claim:
    gap = found.between(model, (Case("full"), Case("lgc", late=late)), seeds)
    note = "late workers " + ("end the block they are at" if late == "block" else "finish their batch first")
    return by_test(name, "nearly equal", gap, CLOSE, gap.at_most(CLOSE), note)


def _saved(found: "Findings", model: str, case: Case, seed: int, name: str) -> Claim:
    """In percent of Full-SGD's own time; not told if it is less than the time between two evaluations."""
    full = found.result(model, Case("full"), seed)["curve"]
    target = 100 * full[-1][3] - NEAR
    own, whole = reached(found.result(model, case, seed)["curve"], target), reached(full, target)
    assert whole is not None
    test = f"first evaluation with {target:.2f} % or more, one seed, every {full[2][0] - full[1][0]} updates"
    if own is None:
        return Claim(name, SAID, "never", "above 0", False, f"late workers: {case.late}", test)
    saved, grain = 100 * (1 - own / whole), 100 * (full[2][1] - full[1][1]) / whole
    holds = True if saved > grain else False if saved < -grain else None
    note = f"percent of {whole:.0f} virtual seconds; late workers: {case.late}"
    return Claim(name, SAID, saved, "above 0", holds, note, f"{test}, which is {grain:.1f} %")


def reached(curve: list[Any], target: float) -> float | None:
    """The virtual seconds at which a curve's accuracy in percent first is as high, once it has begun."""
    trained = [(float(seconds), share) for _, seconds, _, share in curve[1:] if share is not None]
    return next((seconds for seconds, share in trained if 100 * share >= target), None)
