"""The record of advice: what ``paceline advise`` says of a fleet, and what comes of it, beside the whole grid of rules.

    python benchmarks/advice.py --list                                the cases, and which half each is in
    python benchmarks/advice.py simulated [--half tuning] [--only convex]
    python benchmarks/advice.py processes [--half tuning] [--only "one slow"]
    python benchmarks/advice.py links     [--half tuning]
    python benchmarks/advice_report.py [--save]                       what came of it

**Cases.** A case is a fleet, a task and its data. Simulated: the 36 cells of benchmarks/cases.py, whose grid of rules
with tuned learning rates is that of benchmarks/map.py and is not run again; here the advice is asked, and its own
choice and learning rate are run on the same seeds. Processes: four workers that sleep until a drawn time is over.
Links: Ray nodes in network namespaces with a slow link between them.

**Halves.** The names of the cases of each kind are sorted by the SHA-256 of their text. Those at even places (0, 2, 4)
are for tuning the advisor; those at odd places are held out: run once, when it is ready. This rule was committed before
any result was looked at; ``--list`` names them.

**Resumable.** A finished case is a line of benchmarks/results/advice_cases.jsonl; what is there is not run again.
"""

import argparse
import csv
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from cases import AIMED, CASES, COMPARED, FLEETS, TASKS, TUNED, Case, tuned_rate
from cases import run as run_simulated

import paceline as pl
from paceline.data.partition import Partition
from paceline.delays import Delay, LogNormal, Pareto
from paceline.prediction.advice import Advice
from paceline.strategies.names import parse_strategy
from paceline.strategy import Strategy

FOUND = Path(__file__).parent / "results" / "advice_cases.jsonl"
MAP = Path(__file__).parent / "results" / "map_runs.csv"
SEEDS = COMPARED[:3]  # that the advice is run on, in simulated cases
WORKERS, UNIT = 4, 0.06  # of real fleets; seconds a mini-batch on a usual worker
ROUNDS = 25  # of the synchronous rule on equal workers: what it reaches by then is the target of real cases
PROFILE = 8.0  # seconds
USUAL, SLOW = LogNormal(UNIT, 0.1), LogNormal(4 * UNIT, 0.1)
REAL_FLEETS: Mapping[str, tuple[Delay, ...]] = {
    "equal": (USUAL,) * 4,
    "one slow": (USUAL, USUAL, USUAL, SLOW),
    "two kinds": (USUAL, USUAL, LogNormal(2.5 * UNIT, 0.1), LogNormal(2.5 * UNIT, 0.1)),
    "noisy": (LogNormal(UNIT, 0.5),) * 4,
    "heavy tail": (Pareto(0.63 * UNIT, 1.5),) * 4,
}
REAL_DATA = (("convex", "like"), ("convex", "unlike"), ("language", "like"))
LINKS = {"equal, 10 ms": ("equal", 10), "one slow, 10 ms": ("one slow", 10), "equal, 40 ms": ("equal", 40)}
GRID = (
    "ssgd", "unequal:total={total}", "k-sgd:quorum=3", "lgc:quorum=3,blocks=4", "quorum-grace:quorum=2,grace=0.015",
    "gsgd", "asgd", "buffered:size=2",
)  # fmt: skip
NOW = "ssgd"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@dataclass(frozen=True)
class RecordCase:
    """One case of the record."""

    kind: str  # simulated, processes or links
    fleet: str
    task: str
    data: str

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.fleet}; {self.task}, {self.data} data"

    @property
    def half(self) -> str:
        order = sorted((case.name for case in ALL if case.kind == self.kind), key=_digest)
        return "tuning" if order.index(self.name) % 2 == 0 else "held out"


ALL = (
    *(RecordCase("simulated", *case) for case in CASES),
    *(RecordCase("processes", fleet, *task) for fleet in REAL_FLEETS for task in REAL_DATA),
    *(RecordCase("links", fleet, "convex", "like") for fleet in LINKS),
)


def sgd(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def told(advice: Advice, seconds: float) -> dict[str, Any]:
    """What is kept of an answer."""
    names = (
        "strategy",
        "gain",
        "interval",
        "learning_rate",
        "updates_per_second",
        "mean_staleness",
        "samples_an_update",
    )
    return {
        "strategy": advice.label, "without": list(advice.without), "learning_rate": advice.learning_rate,
        "gain": advice.gain, "interval": list(advice.interval), "seconds": round(seconds, 2),
        "notes": [note for note in advice.notes if "Measured" in note], "lines": list(advice.lines),
        "candidates": [{name: each.table()[name] for name in names} for each in advice.candidates],
    }  # fmt: skip


# Simulated cases: the grid is the map's.


def simulated(case: RecordCase, rate: float) -> dict[str, Any]:
    cell = Case(case.fleet, case.task, case.data)
    setting = TASKS[cell.task]
    begin = time.process_time()
    advice = pl.advise(
        setting.make(TUNED), fleet=FLEETS[cell.fleet], optimizer=sgd(rate), batch_size=setting.batch_size,
        partition=cell.partition, strategy=NOW, seed=TUNED, metric="loss", below=cell.target,
    )  # fmt: skip
    spent = time.process_time() - begin
    assert advice.learning_rate is not None
    if advice.without:
        return {"now_rate": rate, "advice": told(advice, spent), "advised": None}
    curves = [run_simulated(cell, advice.strategy, advice.learning_rate, seed) for seed in SEEDS]
    return {
        "now_rate": rate, "advice": told(advice, spent),
        "advised": {"reached": [_finite(each.reached) for each in curves], "ended": [each.ended for each in curves]},
    }  # fmt: skip


def known_rate(case: RecordCase, runs: Path) -> float | None:
    """The learning rate of the synchronous rule, which is what is done now: that of the map, if it is there yet."""
    with runs.open() as file:
        for row in csv.DictReader(file):
            if (row["rule"], row["task"], row["data"]) == ("Synchronous", case.task, case.data) and row["seed"] == "0":
                return float(row["rate"])
    return None


# Real workers.


def fleet_of(case: RecordCase, *, real: bool) -> pl.ProcessFleet | pl.SimulatedFleet:
    delays = REAL_FLEETS[LINKS[case.fleet][0] if case.kind == "links" else case.fleet]
    if not real:
        return pl.SimulatedFleet(delays)
    return pl.ProcessFleet(WORKERS, slow=dict(enumerate(delays)), threads=1)


def partition_of(case: RecordCase) -> Partition:
    """Of unlike data, classes are dealt out so that four workers have all ten of them."""
    return pl.Equal() if case.data == "like" else pl.Pathological(3)


def rule_of(text: str, case: RecordCase) -> Strategy:
    text = text.format(total=TASKS[case.task].batch_size * WORKERS)
    return parse_strategy(text).strategy(fleet_of(case, real=False).medians)


def grid(case: RecordCase) -> list[str]:
    """The rules that can be run: sizes need like data, and groups workers that are unlike."""
    alike = len({*fleet_of(case, real=False).medians}) == 1
    return [
        text
        for text in GRID
        if not (case.data == "unlike" and text.startswith("unequal")) and not (alike and text == "gsgd")
    ]


def train(
    case: RecordCase, fleet: Any, rule: Strategy, rate: float, seed: int, *, goal: float | None = None,
    rounds: float | None = None,
) -> pl.Run:  # fmt: skip
    """To the target, or as long as six times the rounds of the synchronous rule take; or for so many rounds."""
    setting = TASKS[case.task]
    longest = budget(case) * (6.0 if rounds is None else rounds / ROUNDS)
    limit = {} if goal is None else {"metric": "loss", "below": goal}
    return pl.train(
        setting.make(seed), strategy=rule, fleet=fleet, optimizer=sgd(rate),
        stop=pl.Stop(seconds=longest, **limit),  # type: ignore[arg-type]
        batch_size=None if isinstance(rule, pl.UnequalBatches | pl.Advised) else setting.batch_size,
        partition=partition_of(case), every=pl.Every(seconds=budget(case) / 50),
        seed=seed, progress=False,
    )  # fmt: skip


@cache
def budget(case: RecordCase) -> float:
    """Seconds that the synchronous rule takes for its rounds, by simulation."""
    trace = pl.simulate(NOW, fleet_of(case, real=False), pl.Stop(updates=ROUNDS), seed=AIMED[0])  # type: ignore[arg-type]
    return max(event.at for event in trace if isinstance(event, pl.strategy.Arrived))


def losses(run: pl.Run) -> list[float]:
    return [row.loss for row in run.history if math.isfinite(row.loss)]


@cache
def aim(task: str, data: str) -> tuple[float, float]:
    """The best rate of the synchronous rule on equal simulated workers, and what it reaches in its rounds."""
    case = RecordCase("processes", "equal", task, data)
    simulated_fleet = fleet_of(case, real=False)

    def least(rate: float, seed: int) -> float:
        return min(losses(train(case, simulated_fleet, pl.Synchronous(), rate, seed, rounds=ROUNDS)))

    rate = tuned_rate(0.25, lambda each: (math.inf, least(each, TUNED)))
    return rate, sorted(least(rate, seed) for seed in AIMED)[1]


def tuned(case: RecordCase, text: str) -> float:
    """The rate of a rule, found on simulated workers with the same delays."""
    start, goal = aim(case.task, case.data)
    simulated_fleet = fleet_of(case, real=False)

    def judged(rate: float) -> tuple[float, float]:
        run = train(case, simulated_fleet, rule_of(text, case), rate, TUNED, goal=goal)
        return reached(run, goal), min(losses(run), default=math.inf)

    return tuned_rate(start, judged)


def reached(run: pl.Run, goal: float) -> float:
    return next((row.seconds for row in run.history if row.loss <= goal), math.inf)


def measured(run: pl.Run, goal: float) -> dict[str, Any]:
    last = run.history[-1]
    return {
        "reached": _finite(reached(run, goal)), "updates": last.updates,
        "updates_per_second": last.updates / last.seconds if last.seconds else None,
        "ended": run.ended.split(" ")[0], "staleness": round(run.mean_staleness, 3),
    }  # fmt: skip


def prepared(case: RecordCase) -> dict[str, Any]:
    """What is found out on simulated workers beforehand: target and rates."""
    return {"target": aim(case.task, case.data)[1], "rates": {text: tuned(case, text) for text in grid(case)}}


def processes(case: RecordCase, plan: Mapping[str, Any], fleet: Any = None) -> dict[str, Any]:
    """Profile, advise, and run the grid and the advice on real workers."""
    fleet = fleet_of(case, real=True) if fleet is None else fleet
    setting, goal, rates = TASKS[case.task], plan["target"], plan["rates"]
    begin = time.monotonic()
    advice = pl.advise(
        setting.make(TUNED), fleet=fleet, optimizer=sgd(rates[NOW]), batch_size=setting.batch_size, strategy=NOW,
        partition=partition_of(case), seconds=PROFILE, seed=TUNED, metric="loss", below=goal,
    )  # fmt: skip
    spent = time.monotonic() - begin
    grid_runs = {
        text: measured(train(case, fleet, rule_of(text, case), rate, 0, goal=goal), goal)
        for text, rate in rates.items()
    }
    own = None
    if not advice.without and advice.learning_rate is not None:
        own = measured(train(case, fleet, advice.strategy, advice.learning_rate, 0, goal=goal), goal)
    return {**plan, "now_rate": rates[NOW], "advice": told(advice, spent), "grid": grid_runs, "advised": own}


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


# What is there already.


def read_found(path: Path = FOUND) -> dict[tuple[str, str], dict[str, Any]]:
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {(line["part"], line["case"]): line for line in lines}


def keep(case: RecordCase, part: str, found: Mapping[str, Any]) -> None:
    line = {"part": part, "case": case.name, "half": case.half, "kind": case.kind, **found}
    with FOUND.open("a") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


def work(cases: Iterable[RecordCase], part: str, limit: float, runs: Path) -> None:
    begin = time.monotonic()
    for case in cases:
        known = read_found()
        if (part, case.name) in known or time.monotonic() - begin > limit:
            continue
        at = time.monotonic()
        if part == "prepared":
            found = prepared(case)
        elif case.kind == "simulated":
            if (rate := known_rate(case, runs)) is None:
                continue
            found = simulated(case, rate)
        elif ("prepared", case.name) not in known:
            continue
        elif case.kind == "links":
            from advice_links import links

            found = links(case, known["prepared", case.name], LINKS[case.fleet][1])
        else:
            found = processes(case, {key: known["prepared", case.name][key] for key in ("target", "rates")})
        keep(case, part, found)
        print(f"{part}, {case.name} ({case.half}): {time.monotonic() - at:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", nargs="?", choices=["simulated", "prepare", "processes", "links"])
    parser.add_argument("--half", choices=["tuning", "held out"])
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no case is begun")
    parser.add_argument("--map", type=Path, default=MAP, help="the runs of benchmarks/map.py")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [case for case in ALL if asked.only in case.name and asked.half in (None, case.half)]
    if asked.list or asked.kind is None:
        for case in chosen:
            print(f"{case.half:8}  {case.name}")
        return
    if asked.kind == "prepare":
        work([case for case in chosen if case.kind != "simulated"], "prepared", asked.limit, asked.map)
        return
    work([case for case in chosen if case.kind == asked.kind], "run", asked.limit, asked.map)


if __name__ == "__main__":
    main()
