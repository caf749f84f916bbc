"""What the map of rules shows: ratios to the synchronous rule, to the best and to the lower bound, with intervals.

    python benchmarks/map_report.py [--runs FILE] [--save]

Reads the runs that benchmarks/map.py has finished, prints the tables of docs/map.md, and with --save writes
benchmarks/results/map.json and docs/images/map.png. Of every task
and its data those seeds count for which all cells are finished.

A run that does not reach the target counts with the time at which it ended, 1.25 times the synchronous budget: a ratio
of such runs is a lower limit, and marked so. Ratios are geometric means over the cases of a fleet. Rules are paired by
case and seed: same data, mini-batches, delays and first weights. The 95 % interval of a mean of log-ratios over cases
is that of strata with one variance (Student's t): what differs between cases is no chance.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from cases import AIMED, CASES, FLEETS, LONGEST, TASKS, Case, run_to_target
from map import RULES, RUNS, TUNED_EVERYWHERE, Line, possible, read_runs
from measuring import write
from scipy.special import stdtrit

import paceline as pl
from paceline import look
from paceline.learning.noise_scale import noise_scale
from paceline.theory import TimeBound, yardstick

FIGURE = Path(__file__).parent.parent / "docs" / "images" / "map.png"
UNBIASED = ("LiveCompensation", "Rescaled", "Malenia", "NewestOfEach")
SECONDS = 4000.0  # of a simulation that counts what each worker hands in


class Mean(NamedTuple):
    """A geometric mean of ratios with its 95 % interval; ``missed``: the share of runs without the target."""

    ratio: float
    low: float
    high: float
    missed: float

    def includes_one(self) -> bool:
        return self.low <= 1.0 <= self.high

    def text(self) -> str:
        return f"{'>' if self.missed else ''}{self.ratio:.2f}"

    def table(self) -> list[float | None]:
        return [round(each, 3) if math.isfinite(each) else None for each in self]


class Map:
    """The finished cells: times to the target by rule, case and seed."""

    def __init__(self, lines: Mapping[Any, Line]) -> None:
        found: dict[tuple[str, Case, int], Line] = {}
        for line in lines.values():
            if line.seed < AIMED[0] // 2:  # tuning has a seed of its own
                found[line.rule, line.case, line.seed] = line
        cells = [(rule, case) for case in CASES for rule in RULES if possible(rule, case)]
        self.complete = {
            (task, data): [
                seed
                for seed in sorted({each[2] for each in found})
                if all((rule, case, seed) in found for rule, case in cells if case[1:] == (task, data))
            ]
            for task in TASKS
            for data in ("like", "unlike")
        }
        self.lines = {key: line for key, line in found.items() if key[2] in self.seeds(key[1])}
        self.cases = [case for case in CASES if self.seeds(case)]

    def seeds(self, case: Case) -> list[int]:
        """Those for which every rule is finished on every fleet, with this task and these data."""
        return self.complete[case.task, case.data]

    def time(self, rule: str, case: Case, seed: int) -> float:
        """Seconds to the target, or those after which a run without it was ended."""
        return min(self.lines[rule, case, seed].reached, LONGEST * case.budget)

    def of(self, fleet: str | None = None, data: str | None = None) -> list[Case]:
        return [case for case in self.cases if fleet in (None, case.fleet) and data in (None, case.data)]

    def ratio(self, rule: str, other: str, cases: Sequence[Case]) -> Mean | None:
        """How many times as long a rule takes as another one, over all of the cases that both can be used in."""
        both = [case for case in cases if possible(rule, case) and possible(other, case)]
        return None if not both else self._mean(
            [[math.log(self.time(rule, case, seed) / self.time(other, case, seed)) for seed in self.seeds(case)]
             for case in both],
            self.missed(rule, both),
        )  # fmt: skip

    def missed(self, rule: str, cases: Sequence[Case]) -> float:
        runs = [self.lines[rule, case, seed] for case in cases for seed in self.seeds(case)]
        return fmean(not math.isfinite(line.reached) for line in runs)

    @staticmethod
    def _mean(strata: Sequence[Sequence[float]], missed: float) -> Mean:
        means = [fmean(each) for each in strata]
        middle, freedom = fmean(means), sum(len(each) - 1 for each in strata)
        if not freedom:
            return Mean(math.exp(middle), math.nan, math.nan, missed)
        squares = sum((value - mean) ** 2 for each, mean in zip(strata, means, strict=True) for value in each)
        error = math.sqrt(squares / freedom * sum(1 / len(each) for each in strata)) / len(strata)
        reach = float(stdtrit(freedom, 0.975)) * error
        return Mean(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), missed)

    def best(self, cases: Sequence[Case]) -> tuple[str, list[str]]:
        """The rule with the smallest mean time, and those that cannot be told apart from it."""
        usable = [rule for rule in RULES if all(possible(rule, case) for case in cases)]
        means = {rule: self.ratio(rule, "Synchronous", cases) for rule in usable}
        first = min(usable, key=lambda rule: means[rule].ratio)  # type: ignore[union-attr]
        alike = [rule for rule in usable if rule != first and not self._slower(rule, first, cases)]
        return first, alike

    def _slower(self, rule: str, first: str, cases: Sequence[Case]) -> bool:
        found = self.ratio(rule, first, cases)
        return found is not None and (math.isnan(found.low) or found.low > 1.0)

    def to_best(self, rule: str, cases: Sequence[Case]) -> float | None:
        """How many times as long as the best rule of each case, which is not the same one in all of them."""
        logs = []
        for case in cases:
            if possible(rule, case):
                first, _ = self.best([case])
                found = self.ratio(rule, first, [case])
                assert found is not None
                logs.append(math.log(found.ratio))
        return math.exp(fmean(logs)) if logs else None


@cache
def gradients_a_second(fleet: str) -> tuple[float, ...]:
    """What each worker hands in when it never waits, its messages and absences included."""
    counts = [0] * FLEETS[fleet].workers
    for event in pl.simulate("asgd", FLEETS[fleet], pl.Stop(seconds=SECONDS), seed=AIMED[0]):
        if isinstance(event, pl.strategy.Arrived):
            counts[event.ticket.worker] += 1
    return tuple(count / SECONDS for count in counts)


@cache
def noise_at_target(task: str, data: str) -> float:
    """In mini-batches: how many have to be averaged until noise and gradient are alike, where the rule arrives."""
    case = Case("equal", task, data)
    model = run_to_target(case, "ssgd", 0.5, AIMED[0]).model
    return noise_scale(TASKS[task].make(AIMED[0]), model=model).value / TASKS[task].batch_size


def bound(found: Map, case: Case) -> TimeBound | None:
    """The yardstick of theory for a case: from the updates that the synchronous rule took on equal workers."""
    equal, noise = case._replace(fleet="equal"), noise_at_target(case.task, case.data)
    updates = [found.lines["Synchronous", equal, seed].updates for seed in found.seeds(case)]
    if not math.isfinite(noise):
        return None
    seconds = [1 / each for each in gradients_a_second(case.fleet)]
    return yardstick(seconds, updates=fmean(updates), noise=noise, unlike=case.data == "unlike")


def to_bound(found: Map, rule: str, cases: Sequence[Case]) -> float | None:
    logs = []
    for case in cases:
        least = bound(found, case) if possible(rule, case) else None
        if least is not None:
            logs += [math.log(found.time(rule, case, seed) / least.seconds) for seed in found.seeds(case)]
    return math.exp(fmean(logs)) if logs else None


def table(found: Map, data: str) -> list[list[str]]:
    """A row for each rule: ratios to the synchronous rule on every fleet, then over all fleets."""
    winners = {fleet: found.best(found.of(fleet, data)) for fleet in FLEETS}
    rows = []
    for rule, text in RULES.items():
        cells = []
        for fleet in FLEETS:
            mean = found.ratio(rule, "Synchronous", found.of(fleet, data))
            first, alike = winners[fleet]
            mark = "**" if rule == first else "*" if rule in alike else ""
            cells.append("-" if mean is None else f"{mark}{mean.text()}{mark}")
        whole, far = found.ratio(rule, "Synchronous", found.of(data=data)), to_bound(found, rule, found.of(data=data))
        last = ["-"] * 3
        if whole is not None:
            interval = f"{whole.text()} ({whole.low:.2f} to {whole.high:.2f})"
            last = [interval, f"{whole.missed:.0%}", "-" if far is None else f"{far:.1f}"]
        rows.append([f"`{text}`", *cells, *last])
    return rows


def draw(found: Map, path: Path) -> None:
    """Three panels, rules by fleets: like and unlike data against the synchronous rule, and all against the best."""
    import matplotlib.pyplot as plt

    panels = {
        "like data: time to target,\nSynchronous = 1": lambda rule, fleet: _value(found, rule, fleet, "like"),
        "unlike data: time to target,\nSynchronous = 1": lambda rule, fleet: _value(found, rule, fleet, "unlike"),
        "both: time to target,\nbest rule of each case = 1": lambda rule, fleet: (
            found.to_best(rule, found.of(fleet)), False
        ),
    }  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(15.5, 10.5), sharey=True, layout="constrained")
    for place, (axis, (title, value)) in enumerate(zip(axes, panels.items(), strict=True)):
        values = [[value(rule, fleet) for fleet in FLEETS] for rule in RULES]
        shades = [[math.nan if each is None else math.log2(each) for each, _ in row] for row in values]
        span = 1.6
        axis.imshow(
            shades, cmap="RdBu_r" if place < 2 else "Reds", vmin=-span if place < 2 else 0, vmax=span, aspect="auto"
        )
        for row, cells in enumerate(values):
            for column, (number, censored) in enumerate(cells):
                text = "-" if number is None else f"{'>' if censored else ''}{number:.2f}"
                dark = number is not None and abs(math.log2(number)) > 1.1
                axis.text(column, row, text, ha="center", va="center", fontsize=9.5, color="white" if dark else "black")
        axis.set_xticks(range(len(FLEETS)), FLEETS, rotation=35, ha="right", fontsize=10.5)
        axis.set_title(title, fontsize=12)
        axis.tick_params(length=0)
        for side in axis.spines.values():
            side.set_visible(False)
    axes[0].set_yticks(
        range(len(RULES)),
        [look.words(text.replace("{total}", "128"), workers=8) for text in RULES.values()],
        fontsize=10.5,
    )
    for label, text in zip(axes[0].get_yticklabels(), RULES.values(), strict=True):
        label.set_color(look.colour(text.replace("{total}", "128")))
    look.write(figure, path)


def _value(found: Map, rule: str, fleet: str, data: str) -> tuple[float | None, bool]:
    mean = found.ratio(rule, "Synchronous", found.of(fleet, data))
    return (None, False) if mean is None else (mean.ratio, mean.missed > 0)


def result(found: Map) -> dict[str, Any]:
    by_case = defaultdict[str, dict[str, Any]](dict)
    for case in found.cases:
        for rule in RULES:
            mean = found.ratio(rule, "Synchronous", [case])
            if mean is not None:
                by_case[", ".join(case)][rule] = mean.table()
    bounds = {", ".join(case): bound(found, case) for case in found.cases}
    kinds = ("like", "unlike")
    return {
        "what": "time to target over that of Synchronous: mean, 95 % interval, and the share of runs that missed it",
        "seeds": {", ".join(key): seeds for key, seeds in found.complete.items()},
        "rules": dict(RULES),
        "rates": _rates(found),
        "noise in mini-batches": {
            ", ".join(key): noise_at_target(*key) for key in found.complete if found.complete[key]
        },
        "bound, seconds": {case: None if least is None else round(least.seconds, 2) for case, least in bounds.items()},
        "times the bound": {rule: {k: to_bound(found, rule, found.of(data=k)) for k in kinds} for rule in RULES},
        "winners": {
            f"{fleet}, {data}": dict(zip(("first", "not told apart"), found.best(found.of(fleet, data)), strict=True))
            for fleet in FLEETS
            for data in kinds
        },
        "cases": by_case,
    }


def _rates(found: Map) -> dict[str, float]:
    """The learning rate of each rule by task and data, of groups also by fleet."""
    rates = {}
    for (rule, case, _), line in found.lines.items():
        where = case if rule in TUNED_EVERYWHERE else case[1:]
        rates[", ".join((rule, *where))] = line.rate
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--save", action="store_true", help="write the result, the figure, and nothing else")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = Map(read_runs(asked.runs))
    for key, seeds in found.complete.items():
        print(", ".join(key), "data: complete are the seeds", seeds)
    print(len(found.lines), "runs")
    for data in ("like", "unlike"):
        print(f"\n{data} data\n| rule | {' | '.join(FLEETS)} | all fleets (95 %) | missed | times the bound |")
        print("|---|" + "---|" * (len(FLEETS) + 3))
        for row in table(found, data):
            print(f"| {' | '.join(row)} |")
        for fleet in FLEETS:
            first, alike = found.best(found.of(fleet, data))
            print(f"{fleet}: {first}; not told apart: {', '.join(alike) or 'none'}")
    print_pairs(found)
    if asked.save:
        draw(found, FIGURE)
        write("map", result(found), save=True)


PAIRS = (
    ("Grouped", "Buffered"), ("Regrouped", "Buffered"), ("LiveCompensation", "FastestK"),
    ("LiveCompensation", "QuorumGrace"), ("LiveCompensation", "Buffered"), ("EnsembleCompression", "ModelAveraging"),
    ("UnequalBatches", "Buffered"), ("Asynchronous", "Buffered"), ("Rescaled", "Asynchronous"),
    *((rule, "Synchronous") for rule in UNBIASED),
)  # fmt: skip


def print_pairs(found: Map) -> None:
    """The pairs that docs/map.md speaks of."""
    for (rule, other), data in product(PAIRS, ("like", "unlike")):
        mean = found.ratio(rule, other, found.of(data=data))
        if mean is None:
            continue
        fleets = {fleet: found.ratio(rule, other, found.of(fleet, data)) for fleet in FLEETS}
        cells = [f"{name} {each.ratio:.2f} [{each.low:.2f} {each.high:.2f}]" for name, each in fleets.items() if each]
        print(f"{rule} / {other}, {data}: {mean.ratio:.2f} [{mean.low:.2f} {mean.high:.2f}]; {', '.join(cells)}")


if __name__ == "__main__":
    main()
