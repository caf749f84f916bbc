"""Which rule wins where: every rule in every case of benchmarks/cases.py, with a tuned learning rate, on five seeds.

    campaign map env OMP_NUM_THREADS=1 .venv/bin/python benchmarks/map.py [--tasks convex language] [--seeds 0 1 2]
    python benchmarks/map_report.py [--save]        what came of it

A finished run is a line of benchmarks/results/map_runs.csv. What is there is not run again: the same command continues
a map that was interrupted, and loses one run at most. Several processes may work on different tasks at once.

First comes every cell (a rule in a case) with the first seed, then every cell with the second, and so on: whatever
seeds are complete are a map. The learning rate of a rule is tuned for every task and its data on the fleet
``TUNED_ON``, and used on all fleets: how stale gradients are, in updates, hardly depends on the fleet. It does for
groups, which are as many as there are speeds: their rates are tuned on every fleet. The search begins with ``START``,
for unlike data with the rate for like ones.
"""

import argparse
import csv
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from cases import CASES, COMPARED, TASKS, TUNED, Case, run, tuned_rate

from paceline import Pathological

RUNS = Path(__file__).parent / "results" / "map_runs.csv"
RULES: Mapping[str, str] = {
    "Synchronous": "ssgd",
    "UnequalBatches": "unequal:total={total}",
    "Malenia": "malenia:batch=12",
    "FastestK": "k-sgd:quorum=6",
    "Rennala": "rennala:batch=8",
    "Replicated": "replicated:groups=0+7/1+6/2+5/3+4",
    "LiveCompensation": "lgc:quorum=6,blocks=4",
    "Anytime": "anytime:seconds=1.2,blocks=4",
    "QuorumGrace": "quorum-grace:quorum=6,grace=0.5",
    "Grouped": "gsgd",
    "Regrouped": "gsgd-measured",
    "Asynchronous": "asgd",
    "Buffered": "buffered:size=4",
    "BoundedStaleness": "bounded-staleness:slack=3",
    "NewestOfEach": "newest-of-each",
    "StalenessAware": "staleness-aware:size=4",
    "DelayAdaptive": "delay-adaptive",
    "Rescaled": "rescaled",
    "Ringmaster": "ringmaster:threshold=8",
    "ModelAveraging": "ma:every=8",
    "DiLoCo": "diloco:every=8",
    "FedBuff": "fedbuff:every=8,size=4",
    "EASGD": "easgd:every=8",
    "EnsembleCompression": "ec-dnn-s:every=8,relabel=0.05",
}
TUNED_ON = "three kinds"
TUNED_EVERYWHERE = ("Grouped", "Regrouped")
STEPS_ON_ONE = ("Asynchronous", "BoundedStaleness", "NewestOfEach", "DelayAdaptive", "Rescaled", "Ringmaster")
START = {rule: 0.125 if rule in STEPS_ON_ONE else 0.5 for rule in RULES}  # of a mean of gradients four times as much


class Line(NamedTuple):
    """One finished run. ``reached`` is in virtual seconds, infinite if the target was not."""

    rule: str
    fleet: str
    task: str
    data: str
    seed: int
    rate: float
    reached: float
    least: float
    updates: int
    staleness: float
    ended: str

    @property
    def case(self) -> Case:
        return Case(self.fleet, self.task, self.data)


Key = tuple[str, Case, int, float]


def possible(rule: str, case: Case) -> bool:
    """Can the rule be used with these data?

    UnequalBatches deals samples anew, so that nobody could keep data of its own. Replicated has the shards of four
    workers, and two classes each are not all ten.
    """
    refused = {"UnequalBatches": case.data == "unlike", "Replicated": isinstance(case.partition, Pathological)}
    return not refused.get(rule, False)


def read_runs(path: Path = RUNS) -> dict[Key, Line]:
    """What is finished. A torn last line is none."""
    if not path.exists():
        return {}
    text = path.read_text()
    found = {}
    for row in csv.reader(text[: text.rfind("\n") + 1].splitlines()[1:]):
        if len(row) == len(Line._fields):
            numbers = (int(row[4]), *map(float, row[5:8]), int(row[8]), float(row[9]))
            line = Line(row[0], row[1], row[2], row[3], *numbers, row[10])  # type: ignore[arg-type]
            found[line.rule, line.case, line.seed, line.rate] = line
    return found


class Runs:
    """Runs that are done once, and kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.done, self.new = path, read_runs(path), 0
        if not path.exists() or not path.stat().st_size:
            path.write_text(",".join(Line._fields) + "\n")
        elif not path.read_text().endswith("\n"):  # a line was torn
            with path.open("a") as file:
                file.write("\n")

    def of(self, rule: str, case: Case, seed: int, rate: float) -> Line:
        key = rule, case, seed, rate
        if key not in self.done:
            curve = run(case, RULES[rule], rate, seed)
            line = Line(
                rule, *case, seed, rate, round(curve.reached, 4), round(curve.least, 5) if curve.losses else math.inf,
                curve.updates, round(curve.staleness, 3), curve.ended.split(" ")[0],
            )  # fmt: skip
            with self.path.open("a") as file:
                file.write(",".join(map(str, line)) + "\n")
            self.done[key] = line
            self.new += 1
        return self.done[key]

    def rate(self, rule: str, case: Case) -> float:
        """The rule's learning rate for a task and its data, tuned on a seed of its own."""
        if rule not in TUNED_EVERYWHERE:
            case = case._replace(fleet=TUNED_ON)
        start = START[rule] if case.data == "like" else self.rate(rule, case._replace(data="like"))

        def judged(rate: float) -> tuple[float, float]:
            line = self.of(rule, case, TUNED, rate)
            return line.reached, line.least

        return tuned_rate(start, judged)


def cells(tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[int, str, Case]]:
    for seed, case, rule in product(seeds, CASES, RULES):
        if case.task in tasks and possible(rule, case):
            yield seed, rule, case


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=[*TASKS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[*COMPARED], choices=[*COMPARED])
    parser.add_argument("--runs", type=Path, default=RUNS, help="the file of finished runs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    runs, plan, begin = Runs(asked.runs), [*cells(asked.tasks, asked.seeds)], time.monotonic()
    for number, (seed, rule, case) in enumerate(plan, start=1):
        before, at = runs.new, time.monotonic()
        line = runs.of(rule, case, seed, runs.rate(rule, case))
        if runs.new > before:
            spent = time.monotonic() - begin
            left = (len(plan) - number) * spent / runs.new  # a run a cell, tuning left aside
            print(
                f"{number}/{len(plan)} seed {seed}, {', '.join(case)}, {rule}: rate {line.rate:g}, "
                f"{line.reached:.1f} of {case.budget:.0f} s; {time.monotonic() - at:.0f} s; "
                f"{runs.new} runs, {spent / 60:.0f} min, about {left / 60:.0f} min left", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
