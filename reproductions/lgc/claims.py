"""What the paper says of accuracy, set beside what the runs came to. Gaps are in points, means over paired seeds."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import log
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproductions.datasets.cifar import CLASSES
from reproductions.lgc.late import late_claims
from reproductions.lgc.plan import METHODS, Results, Runs, case
from reproductions.lgc.timing import QUORUMS
from reproductions.lgc.training import VALIDATED, Case, Training
from reproductions.pipeline.claims import Claim, NotRun, by_test, made, of_plan, seeds_in_words
from reproductions.pipeline.samples import unpacked
from reproductions.pipeline.verdicts import FEW, Difference, over_samples, paired

CLOSE = 2.0  # points to either side: "nearly equal"; at most so much lost: "slight accuracy loss"
PICTURES = 50_000  # for training, in CIFAR-10
NOISE = 1.0  # points: what a single run's accuracy may differ by for no reason
LESS_AFFECTED = "less affected at h=1"
GUESSING = log(CLASSES)  # the loss of a model that has learnt nothing


@dataclass(frozen=True)
class Findings:
    """Looks up what the runs of a plan came to; ``NotRun`` for those that are still missing."""

    runs: Runs
    results: Results
    _seeds: dict[tuple[str, int, int], tuple[int, ...]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for grid in self.runs.plan.grids:
            for key in ((grid.model, classes, h) for classes in grid.classes for h in grid.periods):
                self._seeds[key] = (*self._seeds.get(key, ()), *grid.seeds)

    @property
    def main_model(self) -> str:
        return self.runs.plan.grids[0].model

    def settings(self, model: str) -> list[tuple[int, int]]:
        """The (classes, h) that are tried, in order."""
        return sorted((classes, h) for name, classes, h in self._seeds if name == model)

    def seeds(self, model: str, classes: int, h: int) -> tuple[int, ...]:
        """Those of which all methods were run; all that are planned if there is none."""
        planned = self._seeds[model, classes, h]
        cases = [case(method, classes, h) for method in METHODS]
        run = tuple(s for s in planned if all(self.runs.run(model, each, s) in self.results for each in cases))
        return run or planned

    def values(self, model: str, method: str, classes: int, h: int, what: str = "test_accuracy") -> list[float]:
        """One for each seed; accuracies in percent."""
        each = case(method, classes, h)
        return [self.value(model, each, seed, what) for seed in self.seeds(model, classes, h)]

    def value(self, model: str, each: Case, seed: int, what: str = "test_accuracy", lr: float | None = None) -> float:
        found = self.result(model, each, seed, lr)[what]
        number = float("nan") if found is None else float(found)
        return 100 * number if what.endswith("accuracy") else number

    def result(self, model: str, each: Case, seed: int, lr: float | None = None) -> Mapping[str, Any]:
        run = self.runs.run(model, each, seed, lr)
        if run not in self.results:
            raise NotRun(run.name)
        return self.results[run]

    def difference(self, model: str, one: str, other: str, classes: int, h: int) -> Difference:
        """By how many points the test accuracy of a method is above that of another, paired by seeds or samples."""
        cases = case(one, classes, h), case(other, classes, h)
        return self.between(model, cases, self.seeds(model, classes, h))

    def between(
        self, model: str, cases: tuple[Case, Case], seeds: Sequence[int], lr: float | None = None
    ) -> Difference:
        """The same for any two cases."""
        ones, others = ([self.value(model, each, seed, lr=lr) for seed in seeds] for each in cases)
        bits = [[self._right(model, each, seed, lr) for seed in seeds] for each in cases]
        if len(seeds) < FEW and all(len(part) for side in bits for part in side):
            return over_samples(np.concatenate(bits[0]), np.concatenate(bits[1]))
        return paired(ones, others, self.runs.plan.size.tested)

    def _right(self, model: str, each: Case, seed: int, lr: float | None) -> NDArray[np.bool_]:
        """Which test samples it gets right; empty if that was not kept."""
        kept = self.result(model, each, seed, lr).get("right")
        return np.zeros(0, np.bool_) if kept is None else unpacked(str(kept), self.runs.plan.size.tested)

    def note(self, model: str, classes: int, h: int) -> str:
        return seeds_in_words(len(self.seeds(model, classes, h)))


def accuracy_claims(found: Findings) -> list[Claim]:
    """All claims on accuracy and training loss, each marked with the plan that it rests on."""
    return of_plan(_claims(found), found.runs.plan.name)


def _claims(found: Findings) -> Iterable[Claim]:
    plan = found.runs.plan
    yield from _at_c3_h10(found)
    for model in plan.models:
        for claims in (
            _lgc_is_close,
            _smaller_learning_rate,
            _lgc_beats_k,
            _k_less_affected_at_h1,
            _k_gap_grows,
            _k_diverges,
        ):
            yield from claims(found, model)
    for model in dict.fromkeys(model for model, _ in plan.frontier):
        yield from _frontier(found, model)
    for model in dict.fromkeys(model for model, _ in plan.partial):
        yield from _partial(found, model)
    for model in dict.fromkeys(model for model, _ in plan.late):
        yield from late_claims(found, model)


def _at_c3_h10(found: Findings) -> Iterable[Claim]:
    model = found.main_model

    def make(name: str, what: str, method: str) -> Claim:
        values = found.values(model, method, 3, 10, what)
        spread = f"{min(values):.4g} to {max(values):.4g}, " if len(values) > 1 else ""
        note = f"{model}, {spread}{found.note(model, 3, 10)}; the paper only draws it"
        return Claim(name, None, fmean(values), None, None, note)

    for what, kind in (("test_accuracy", "accuracy"), ("train_loss", "training_loss")):
        for method in METHODS:
            yield made(f"{kind}.c3.h10.{method}", None, None, partial(make, what=what, method=method))


def _lgc_is_close(found: Findings, model: str) -> Iterable[Claim]:
    for classes, h in found.settings(model):
        unsaid = "the paper does not say how LGC-SGD does at c=1" if classes == 1 else ""
        yield _below_full(found, model, "lgc", (classes, h), unsaid=unsaid)


def _below_full(
    found: Findings, model: str, method: str, at: tuple[int, int], *, said: str = "nearly equal", unsaid: str = ""
) -> Claim:
    def make(name: str) -> Claim:
        gap = found.difference(model, "full", method, *at)
        if unsaid:
            return by_test(name, None, gap, None, None, unsaid)
        return by_test(name, said, gap, CLOSE, gap.within(CLOSE), found.note(model, *at))

    name = f"points_below_full.{model}.{method}.c{at[0]}.h{at[1]}"
    return made(name, None if unsaid else said, None if unsaid else CLOSE, make)


def _k_less_affected_at_h1(found: Findings, model: str) -> Iterable[Claim]:
    """Than at h = 10. Full-SGD is the same for both, so it is by how much K-SGD itself is better."""
    settings = found.settings(model)

    def make(name: str, classes: int) -> Claim:
        at = {h: found.seeds(model, classes, h) for h in (1, 10)}
        seeds = [seed for seed in at[1] if seed in at[10]]
        ahead = found.between(model, (Case("k", classes, 1), Case("k", classes, 10)), seeds)
        gaps = {h: found.difference(model, "full", "k", classes, h).mean for h in at}
        told = ", ".join(f"{gap:.2f} at h={h} ({seeds_in_words(len(at[h]))})" for h, gap in gaps.items())
        note = f"h=1 less h=10, {seeds_in_words(len(seeds))}; points below Full-SGD: {told}"
        return by_test(name, LESS_AFFECTED, ahead, 0.0, ahead.above(), note)

    for classes in sorted({classes for classes, _ in settings}):
        if classes < CLASSES and {(classes, 1), (classes, 10)} <= {*settings}:
            name = f"k_points_above_at_h1.{model}.c{classes}"
            yield made(name, LESS_AFFECTED, 0.0, partial(make, classes=classes))


def _smaller_learning_rate(found: Findings, model: str) -> Iterable[Claim]:
    lr = found.runs.chosen[model].smaller
    if lr is None:
        return

    def make(name: str) -> Claim:
        full, k, _ = (found.value(model, case(method, 3, 10), 0, lr=lr) for method in METHODS)
        shared = found.runs.chosen[model].lr
        first = [found.value(model, case(method, 3, 10), 0) for method in METHODS]
        note = (
            f"learning rate {lr:g}, full {full:.2f} %, k {k:.2f} %; at {shared:g}, same seed, the gap is "
            f"{first[0] - first[2]:.2f}"
        )
        gap = found.between(model, (case("full", 3, 10), case("lgc", 3, 10)), [0], lr)
        return by_test(name, "nearly equal", gap, CLOSE, gap.within(CLOSE), note)

    yield made(f"points_below_full.{model}.lgc.c3.h10.smaller_rate", "nearly equal", CLOSE, make)


def _lgc_beats_k(found: Findings, model: str) -> Iterable[Claim]:
    def make(name: str, classes: int, h: int) -> Claim:
        ahead = found.difference(model, "lgc", "k", classes, h)
        return by_test(name, "above 0", ahead, 0.0, ahead.above(), found.note(model, classes, h))

    for classes, h in found.settings(model):
        if classes <= 3 and h >= 10:
            name = f"lgc_points_above_k.{model}.c{classes}.h{h}"
            yield made(name, "above 0", 0.0, partial(make, classes=classes, h=h))


def _k_gap_grows(found: Findings, model: str) -> Iterable[Claim]:
    """As c falls, for every h, and as h grows, for every c."""
    tried = found.settings(model)
    for h in sorted({h for _, h in tried}):
        those = {f"c={c}": (c, h) for c in sorted({c for c, other in tried if other == h})[::-1]}
        if len(those) > 1:
            yield _rising(found, model, f"k_sgd_worse_as_c_falls.{model}.h{h}", those)
    for classes in sorted({classes for classes, _ in tried}):
        those = {f"h={h}": (c, h) for c, h in tried if c == classes}
        if len(those) > 1 and classes < CLASSES:
            yield _rising(found, model, f"k_sgd_worse_as_h_grows.{model}.c{classes}", those)


def _rising(found: Findings, model: str, name: str, places: dict[str, tuple[int, int]]) -> Claim:
    """Each gap above the one before, but for noise, and the last above the first beyond chance.

    The intervals of two gaps are taken as independent.
    """

    def make(name: str) -> Claim:
        gaps = {where: found.difference(model, "full", "k", *place) for where, place in places.items()}
        compared = ", ".join(f"{where} {gap.mean:.2f}" for where, gap in gaps.items())
        first, *_, last = gaps.values()
        whole = last.less(first)
        rises = [*(after.less(before).above(-NOISE) for before, after in pairwise(gaps.values())), whole.above()]
        holds = False if False in rises else None if None in rises else True
        told = "; ".join(f"{where} {gap.low:.2f} to {gap.high:.2f}" for where, gap in gaps.items())
        test = f"95 % intervals of the gaps: {told}; last less first {whole.mean:.2f}, {whole.low:.2f} to "
        test += f"{whole.high:.2f}"
        return Claim(name, "rising", compared, NOISE, holds, "points below Full-SGD", test)

    return made(name, "rising", NOISE, make)


def _k_diverges(found: Findings, model: str) -> Iterable[Claim]:
    note = f"said to diverge if not finite, or if the loss ends above that of guessing, {GUESSING:.4g}"

    def make(name: str, h: int) -> Claim:
        loss, accuracy = (fmean(found.values(model, "k", 1, h, what)) for what in ("train_loss", "test_accuracy"))
        ours = f"training loss {loss:.3g}, test accuracy {accuracy:.1f} %"
        return Claim(name, "diverges", ours, None, not loss <= GUESSING, note)

    for classes, h in found.settings(model):
        if classes == 1:
            yield made(f"k_sgd_diverges.{model}.c1.h{h}", "diverges", "loss", partial(make, h=h))


def _frontier(found: Findings, model: str) -> Iterable[Claim]:
    """From K = 10 down to 5."""
    lowest = QUORUMS[0]
    seeds = [seed for name, seed in found.runs.plan.frontier if name == model]

    def make(name: str, method: str) -> Claim:
        lost = found.between(model, (Case("full"), Case(method, quorum=lowest)), seeds)
        if method == "lgc":
            return by_test(name, "slight", lost, CLOSE, lost.at_most(CLOSE), "c=3, h=10")
        return by_test(name, "substantial", lost, f"above {CLOSE:g}", lost.above(CLOSE), "c=3, h=10")

    name = f"points_lost_from_k10_to_k{lowest}.{model}"
    yield made(f"{name}.lgc", "slight", CLOSE, partial(make, method="lgc"))
    yield made(f"{name}.k", "substantial", f"above {CLOSE:g}", partial(make, method="k"))


def _partial(found: Findings, model: str) -> Iterable[Claim]:
    """Scaled against not scaled, and scaled against whole batches."""
    seeds = [seed for name, seed in found.runs.plan.partial if name == model]

    def make(name: str, done: str) -> Claim:
        cases = Case("lgc", done=done), Case("lgc", done=done, scale=False)
        scaled, plain, whole = (
            fmean(found.value(model, each, seed) for seed in seeds) for each in (*cases, Case("lgc"))
        )
        note = f"scaled {scaled:.2f} %, not scaled {plain:.2f} %, whole batches {whole:.2f} %"
        gain = found.between(model, cases, seeds)
        return by_test(name, "above 0", gain, 0.0, gain.above(), note)

    for done in found.runs.plan.parts:
        name = f"scaling_gain.{model}.{'uniform' if done == 'uniform' else f'r{done}'}"
        yield made(name, "above 0", 0.0, partial(make, done=done))


def gap_rows(found: Findings) -> list[dict[str, Any]]:
    """How far below Full-SGD each method ends, with its interval: for the figure of the card. None of what is missing.

    Runs of which the samples that are right were not kept have the interval of two proportions.
    """
    rows = []
    for model in found.runs.plan.models:
        for c, h in found.settings(model):
            for method in METHODS[1:]:
                with suppress(NotRun):
                    gap = found.difference(model, "full", method, c, h)
                    rows.append({
                        "kind": "gap", "model": model, "method": method, "c": c, "h": h,
                        "seeds": len(found.seeds(model, c, h)), "points": gap.mean, "low": gap.low, "high": gap.high,
                    })  # fmt: skip
    return rows


def training_rows(results: Results) -> list[dict[str, Any]]:
    """One for each run, for the card."""
    return [
        {
            "kind": "training", "model": run.model, "method": run.case.method, "c": run.case.classes, "h": run.case.h,
            "quorum": 10 if run.case.method == "full" else run.case.quorum, "blocks_done": run.case.done,
            "scaled": run.case.scale, "late": run.case.late, "learning_rate": run.lr, "seed": run.seed,
            "epochs": run.size.epochs,
            **{name: value for name, value in result.items() if name != "right" and not _trained_on(name, run)},
        }
        for run, result in results.items()
    ]  # fmt: skip


def _trained_on(name: str, run: Training) -> bool:
    """Is it said of validation pictures where none are left over? Those that stand for them were trained on."""
    return name.startswith("validation") and run.size.samples + VALIDATED > PICTURES
