"""What the paper says of accuracy, set beside what the runs came to. Gaps are in points, means over paired seeds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import log
from statistics import fmean
from typing import Any

from reproductions.datasets.cifar import CLASSES
from reproductions.lgc.plan import METHODS, PARTS, Results, Runs, case
from reproductions.lgc.timing import QUORUMS
from reproductions.lgc.training import Case
from reproductions.pipeline.claims import Claim, of_plan, seeds_in_words

CLOSE = 2.0  # points: "nearly equal", "comparable", "slight accuracy loss"
NOISE = 1.0  # points: what a single run's accuracy may differ by for no reason
GUESSING = log(CLASSES)  # the loss of a model that has learnt nothing


@dataclass(frozen=True)
class Findings:
    """Looks up what the runs of a plan came to."""

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
        """The (classes, h) that were tried, in order."""
        return sorted((classes, h) for name, classes, h in self._seeds if name == model)

    def seeds(self, model: str, classes: int, h: int) -> tuple[int, ...]:
        return self._seeds[model, classes, h]

    def values(self, model: str, method: str, classes: int, h: int, what: str = "test_accuracy") -> list[float]:
        """One for each seed; accuracies in percent."""
        each = case(method, classes, h)
        return [self.value(model, each, seed, what) for seed in self.seeds(model, classes, h)]

    def value(self, model: str, each: Case, seed: int, what: str = "test_accuracy", lr: float | None = None) -> float:
        found = self.results[self.runs.run(model, each, seed, lr)][what]
        number = float("nan") if found is None else float(found)
        return 100 * number if what.endswith("accuracy") else number

    def gap(self, model: str, method: str, classes: int, h: int) -> float:
        """How far a method stays below Full-SGD."""
        return fmean(self.values(model, "full", classes, h)) - fmean(self.values(model, method, classes, h))

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
            _k_is_close_at_h1,
            _k_gap_grows,
            _k_diverges,
        ):
            yield from claims(found, model)
    for model in dict.fromkeys(model for model, _ in plan.frontier):
        yield from _frontier(found, model)
    for model in dict.fromkeys(model for model, _ in plan.partial):
        yield from _partial(found, model)


def _at_c3_h10(found: Findings) -> Iterable[Claim]:
    model = found.main_model
    for what, name in (("test_accuracy", "accuracy"), ("train_loss", "training_loss")):
        for method in METHODS:
            values = found.values(model, method, 3, 10, what)
            spread = f"{min(values):.4g} to {max(values):.4g}, " if len(values) > 1 else ""
            note = f"{model}, {spread}{found.note(model, 3, 10)}; the paper only draws it"
            yield Claim(f"{name}.c3.h10.{method}", None, fmean(values), None, None, note)


def _lgc_is_close(found: Findings, model: str) -> Iterable[Claim]:
    for classes, h in found.settings(model):
        gap, name = found.gap(model, "lgc", classes, h), f"points_below_full.{model}.lgc.c{classes}.h{h}"
        if classes == 1:
            yield Claim(name, None, gap, None, None, "the paper does not say how LGC-SGD does at c=1")
        else:
            yield Claim(name, "nearly equal", gap, CLOSE, gap <= CLOSE, found.note(model, classes, h))


def _k_is_close_at_h1(found: Findings, model: str) -> Iterable[Claim]:
    for classes, h in found.settings(model):
        if h == 1 and classes > 1:
            gap, name = found.gap(model, "k", classes, h), f"points_below_full.{model}.k.c{classes}.h1"
            yield Claim(name, "less affected", gap, CLOSE, gap <= CLOSE, found.note(model, classes, h))


def _smaller_learning_rate(found: Findings, model: str) -> Iterable[Claim]:
    lr = found.runs.chosen[model].smaller
    if lr is None:
        return
    full, k, lgc = (found.value(model, case(method, 3, 10), 0, lr=lr) for method in METHODS)
    shared = found.runs.chosen[model].lr
    first = [found.value(model, case(method, 3, 10), 0) for method in METHODS]
    note = (
        f"step {lr:g}, full {full:.2f} %, k {k:.2f} %; at {shared:g}, same seed, the gap is {first[0] - first[2]:.2f}"
    )
    name = f"points_below_full.{model}.lgc.c3.h10.smaller_step"
    yield Claim(name, "nearly equal", full - lgc, CLOSE, full - lgc <= CLOSE, note)


def _lgc_beats_k(found: Findings, model: str) -> Iterable[Claim]:
    for classes, h in found.settings(model):
        if classes <= 3 and h >= 10:
            ahead = found.gap(model, "k", classes, h) - found.gap(model, "lgc", classes, h)
            name = f"lgc_points_above_k.{model}.c{classes}.h{h}"
            yield Claim(name, "above 0", ahead, 0.0, ahead > 0, found.note(model, classes, h))


def _k_gap_grows(found: Findings, model: str) -> Iterable[Claim]:
    """As c falls, for every h, and as h grows, for every c."""
    tried = found.settings(model)
    for h in sorted({h for _, h in tried}):
        gaps = {f"c={c}": found.gap(model, "k", c, h) for c in sorted({c for c, other in tried if other == h})[::-1]}
        if len(gaps) > 1:
            yield _rising(f"k_sgd_worse_as_c_falls.{model}.h{h}", gaps)
    for classes in sorted({classes for classes, _ in tried}):
        gaps = {f"h={h}": found.gap(model, "k", classes, h) for c, h in tried if c == classes}
        if len(gaps) > 1 and classes < CLASSES:
            yield _rising(f"k_sgd_worse_as_h_grows.{model}.c{classes}", gaps)


def _rising(name: str, gaps: dict[str, float]) -> Claim:
    compared = ", ".join(f"{where} {gap:.2f}" for where, gap in gaps.items())
    rises = all(after > before - NOISE for before, after in pairwise(gaps.values()))
    return Claim(name, "rising", compared, NOISE, rises, "points below Full-SGD")


def _k_diverges(found: Findings, model: str) -> Iterable[Claim]:
    note = f"said to diverge if not finite, or if the loss ends above that of guessing, {GUESSING:.4g}"
    for classes, h in found.settings(model):
        if classes == 1:
            loss, accuracy = (fmean(found.values(model, "k", 1, h, what)) for what in ("train_loss", "test_accuracy"))
            ours = f"training loss {loss:.3g}, test accuracy {accuracy:.1f} %"
            yield Claim(f"k_sgd_diverges.{model}.c1.h{h}", "diverges", ours, None, not loss <= GUESSING, note)


OF_A_MODEL = (_lgc_is_close, _smaller_learning_rate, _lgc_beats_k, _k_is_close_at_h1, _k_gap_grows, _k_diverges)


def _frontier(found: Findings, model: str) -> Iterable[Claim]:
    """From K = 10 down to 5."""
    lowest = QUORUMS[0]
    full = frontier_value(found, model, Case("full"))
    lost = {method: full - frontier_value(found, model, Case(method, quorum=lowest)) for method in ("k", "lgc")}
    name = f"points_lost_from_k10_to_k{lowest}.{model}"
    yield Claim(f"{name}.lgc", "slight", lost["lgc"], CLOSE, lost["lgc"] <= CLOSE, "c=3, h=10")
    substantial = lost["k"] > CLOSE
    yield Claim(f"{name}.k", "substantial", lost["k"], f"above {CLOSE:g}", substantial, "c=3, h=10")


def frontier_value(found: Findings, model: str, each: Case, what: str = "test_accuracy") -> float:
    seeds = [seed for name, seed in found.runs.plan.frontier if name == model]
    return fmean(found.value(model, each, seed, what) for seed in seeds)


def _partial(found: Findings, model: str) -> Iterable[Claim]:
    """Scaled against not scaled, and scaled against whole batches."""
    seeds = [seed for name, seed in found.runs.plan.partial if name == model]
    whole = fmean(found.value(model, Case("lgc"), seed) for seed in seeds)
    for done in PARTS:
        scaled, plain = (
            fmean(found.value(model, Case("lgc", done=done, scale=scale), seed) for seed in seeds)
            for scale in (True, False)
        )
        note = f"scaled {scaled:.2f} %, not scaled {plain:.2f} %, whole batches {whole:.2f} %"
        name = f"scaling_gain.{model}.{'uniform' if done == 'uniform' else f'r{done}'}"
        yield Claim(name, "above 0", scaled - plain, 0.0, scaled > plain, note)


def training_rows(results: Results) -> list[dict[str, Any]]:
    """One for each run, for the card."""
    return [
        {
            "kind": "training", "model": run.model, "method": run.case.method, "c": run.case.classes, "h": run.case.h,
            "quorum": 10 if run.case.method == "full" else run.case.quorum, "blocks_done": run.case.done,
            "scaled": run.case.scale, "step": run.lr, "seed": run.seed, **result,
        }
        for run, result in results.items()
    ]  # fmt: skip
