"""What the paper says of fine-pruning, and what it does not ask, set beside what the runs came to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paceline.core.fields import table_of
from paceline.pruning.schedule import Schedule
from reproductions.fine_pruning.formulas import IN_MINUTES, TABLE_1, TABLE_2, pruned_epochs_formula_3
from reproductions.fine_pruning.plan import ARMS, FinePruningPlan
from reproductions.pipeline.claims import Claim, by_test, listed, seeds_in_words, within
from reproductions.pipeline.runs import Result
from reproductions.pipeline.verdicts import paired

KNOWN = (200, 60, 30, 5, 3, 2)  # epochs, window, start, block, count, attenuation
KEPT = 0.5  # points: "maintaining the accuracy"
CLOSE = 2.0  # points by which the time saved may stay below the samples saved
NAMES = {"lenet": "", "vgg": "vgg."}


@dataclass(frozen=True)
class Found:
    """What all runs came to: by network, arm and seed; of the search, by variant and seed."""

    plan: FinePruningPlan
    timed: Result
    arms: Mapping[tuple[str, str, int], Result]
    tried: Mapping[tuple[str, int], Result]

    def accuracies(self, model: str, arm: str) -> list[float]:
        """In percent, one for each seed."""
        return [100 * float(self.arms[model, arm, seed]["accuracy"]) for seed in self.plan.seeds_of(model)]

    def variant(self, name: str) -> list[float]:
        return [100 * float(self.tried[name, seed]["accuracy"]) for seed in self.plan.seeds_of_search]

    def variant_saved(self, name: str) -> float:
        """The share of the samples that a variant saved."""
        return fmean(float(self.tried[name, seed]["saved"]) for seed in self.plan.seeds_of_search)


def choose(found: Found) -> str:
    """Of the variants that save as much as is wanted, the one with the highest mean accuracy on validation samples."""
    variants = [name for name in found.plan.variants() if found.variant_saved(name) >= 1 - found.plan.share - 1e-9]
    return max(variants, key=lambda name: fmean(found.variant(name)))


def claims(found: Found, best: str, confirmed: Mapping[int, Result]) -> list[Claim]:
    """All of them."""
    made = [*_numbers_of_epochs(), *_table_1(), *_savings(found)]
    for model in found.plan.sizes:
        made += _accuracies(found, model)
    return [*made, *_beyond(found, best, confirmed)]


def _numbers_of_epochs() -> Iterable[Claim]:
    n, w, a, r, c, att = KNOWN
    name = "n_prune." + "_".join(map(str, KNOWN))
    by_window = Schedule(a, r, c, w, attenuation=att)
    literal = Schedule(a, r, c, w, attenuation=att, attenuate="epoch")
    for kind, schedule, expected, note in (
        ("window", by_window, 86, "Algorithm 2, the start divided once a window, as the text says"),
        ("literal", literal, 100, "Algorithm 2 as printed, the start divided at every epoch"),
    ):
        ours = sum(schedule.pruned(epoch) for epoch in range(1, n + 1))
        yield within(f"{name}.{kind}", expected, ours, 0, note)
    formula = pruned_epochs_formula_3(n, w, a, r, c)
    holds = formula == sum(by_window.pruned(epoch) for epoch in range(1, n + 1))
    yield Claim(
        f"{name}.formula3", 86, formula, 0, holds, "formula 3 should count Algorithm 2, but knows no attenuation"
    )


def _table_1() -> Iterable[Claim]:
    for network, column in TABLE_1.items():
        tolerance = 0.4 if network in IN_MINUTES else 0.0051
        rounded = "; times printed to the minute" if network in IN_MINUTES else ""
        note = f"(regular - pruned - overhead) / regular, from the paper's own times{rounded}"
        yield within(f"table_1.{network}", column.speedup, round(column.recomputed, 3), tolerance, note)
    mean = fmean(column.speedup for column in TABLE_1.values())
    yield Claim(
        "table_1.mean", 14.29, round(mean, 3), 0.5, abs(mean - 14.29) <= 0.5, "the abstract's is the best of ten"
    )


def _savings(found: Found) -> Iterable[Claim]:
    plan = found.plan
    size, timed = plan.sizes["lenet"], found.timed
    planned = plan.fine.plan(size.samples, size.epochs)
    counted = [100 * float(found.arms["lenet", "pruned", seed]["saved"]) for seed in plan.seeds_of("lenet")]
    epochs = f"{len(planned.pruned_epochs)} of {size.epochs} epochs"
    note = f"planned beforehand: {epochs} leave out {plan.fine.fraction} of the samples"
    yield within("samples_saved_percent", 100 * planned.saved, fmean(counted), 1e-9, note)
    share = len(planned.pruned_epochs) / planned.epochs
    saved = 100 * (1 - share * timed["pruned"] - (1 - share) * timed["whole"])
    lowest, note = 100 * planned.saved - CLOSE, "LeNet, processor time, epochs in turn; the paper's LeNet: 11.80"
    yield Claim("time_saved_percent", 100 * planned.saved, saved, f"at least {lowest:.4g}", saved >= lowest, note)
    overhead, most = 100 * timed["overhead"], 100 * TABLE_1["LeNet"].overhead / TABLE_1["LeNet"].regular
    yield Claim("overhead_percent", most, overhead, f"at most {most:.2f}", overhead <= most, "of an epoch of LeNet")


def _accuracies(found: Found, model: str) -> Iterable[Claim]:
    name, seeds = NAMES[model], found.plan.seeds_of(model)
    count = seeds_in_words(len(seeds))
    papers = TABLE_2["LeNet"] if model == "lenet" else (None, None)
    for arm, paper in zip(ARMS, (*papers, None, None, None), strict=True):
        values = found.accuracies(model, arm)
        saved = 100 * fmean(float(found.arms[model, arm, seed]["saved"]) for seed in seeds)
        note = f"{found.plan.name}; {count}: {listed(values)}; {saved:.1f} % of the samples saved"
        yield Claim(f"accuracy.{name}{arm}", paper, fmean(values), None, None, note)
    regular, pruned, random, shortened = (
        found.accuracies(model, arm) for arm in ("regular", "pruned", "random", "shortened")
    )
    samples = found.plan.sizes[model].tested
    gap = paired(regular, pruned, samples)
    paper_gap = 0.43 if model == "lenet" else 0.36
    note = f"regular less pruned; {found.plan.name}; {count}"
    yield by_test(f"points_lost.{name}pruned", paper_gap, gap, KEPT, gap.at_most(KEPT), note)
    for control, values in (("random", random), ("shortened", shortened)):
        gain = paired(pruned, values, samples)
        each = listed([one - other for one, other in zip(pruned, values, strict=True)])
        note = f"points; control, not in the paper; {found.plan.name}; {count}: {each}"
        name_of = f"selection_helps.{name}against_{control}"
        yield by_test(name_of, "(pruned is better)", gain, "above 0", gain.above(), note)


def _beyond(found: Found, best: str, confirmed: Mapping[int, Result]) -> Iterable[Claim]:
    seeds = found.plan.seeds_of("lenet")
    values = [100 * float(confirmed[seed]["accuracy"]) for seed in seeds]
    saved = 100 * fmean(float(confirmed[seed]["saved"]) for seed in seeds)
    yield Claim("beyond.saved_percent", None, saved, "at least 15", saved >= 15 - 1e-9, f"chosen by the search: {best}")
    yield Claim("beyond.accuracy", None, fmean(values), None, None, f"{len(seeds)} seeds: {listed(values)}")
    for control in ("random", "shortened"):
        others = found.accuracies("lenet", control)
        gain = paired(values, others, found.plan.sizes["lenet"].tested)
        note = f"points; {listed([one - other for one, other in zip(values, others, strict=True)])}"
        yield by_test(f"beyond.no_worse_than_{control}", "(no worse)", gain, "at least 0", gain.above(), note)


def rows(found: Found, best: str, confirmed: Mapping[int, Result]) -> list[dict[str, Any]]:
    """The runs as rows of the card."""
    timing = {"kind": "timing", **found.timed}
    arms = [
        {"kind": "training", "model": model, "arm": arm, "seed": seed, **_row(result)}
        for (model, arm, seed), result in found.arms.items()
    ]
    tried = [
        {"kind": "search", "variant": name, "seed": seed, **_row(result)}
        for (name, seed), result in found.tried.items()
    ]
    chosen = [
        {"kind": "confirmed", "variant": best, "rule": _rule(found, best), "seed": seed, **_row(result)}
        for seed, result in confirmed.items()
    ]
    return [timing, *arms, *tried, *chosen]


def _rule(found: Found, name: str) -> dict[str, Any]:
    rule = found.plan.variants()[name]
    return {} if rule is None else {"name": type(rule).__name__, **table_of(rule)}


def _row(result: Result) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("times_pruned", "trends")}
