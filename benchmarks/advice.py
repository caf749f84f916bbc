"""The record of advice: what ``paceline advise`` says of a fleet, and what comes of it, beside the whole grid of rules.

    python benchmarks/advice.py --list                                the cases, and which half each is in
    python benchmarks/advice.py simulated [--half tuning] [--only convex]
    python benchmarks/advice.py prepare                               real cases: targets and learning rates, simulated
    python benchmarks/advice.py grid [--only "one slow"]              real cases: a profile, and every rule of the grid
    python benchmarks/advice.py advice [--half tuning]                real cases: the advice, from the profile alone
    python benchmarks/advice.py advised [--half tuning]               real cases: what comes of it
    python benchmarks/advice_report.py [--save]                       what came of it

**Cases.** A case is a fleet, a task and its data. Simulated: the 36 cells of benchmarks/cases.py, whose grid of rules
with tuned learning rates is that of benchmarks/map.py and is not run again; here the advice is asked, and its own
choice and learning rate are run on the same seeds. Processes: four workers that sleep until a drawn time is over.
Links: Ray nodes in network namespaces with a slow link between them.

**Halves.** The names of the cases of each kind are sorted by the SHA-256 of their text. Those at even places (0, 2, 4)
are for tuning the advisor; those at odd places are held out: run once, when it is ready. This rule was committed before
any result was looked at; ``--list`` names them.

Learning rates of real cases are found on simulated workers with the same delays, by the search of the map.

**Resumable.** A finished part of a case is a line of benchmarks/results/advice_cases.jsonl, and is not run again.
"""

import argparse
import csv
import hashlib
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from advice_links import ADDRESS, linked
from cases import AIMED, CASES, COMPARED, FLEETS, TASKS, TUNED, Case, tuned_rate
from cases import run as run_simulated

import paceline as pl
from paceline.data.partition import Partition
from paceline.delays import Delay, LogNormal, Pareto
from paceline.prediction.advice import Advice
from paceline.strategies.names import parse_strategy
from paceline.strategy import Step, Strategy

FOUND = Path(__file__).parent / "results" / "advice_cases.jsonl"
MAP = Path(__file__).parent / "results" / "map_runs.csv"
SEEDS = COMPARED[:3]  # that the advice is run on, in simulated cases
WORKERS, UNIT = 4, 0.06  # of real fleets; seconds a mini-batch on a usual worker
ROUNDS = 25  # of the synchronous rule on equal workers: what it reaches by then is the target of real cases
PROFILE, LEAST = 8.0, 5.0  # seconds of a profile, and of a real run at least
PROFILES = Path(tempfile.gettempdir()) / "paceline-advice"
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
        "notes": [note for note in advice.notes if "Measured" in note or "Trials" in note], "lines": list(advice.lines),
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


def train(case: RecordCase, fleet: Any, rule: Strategy, rate: float, seed: int, *, goal: float | None = None) -> pl.Run:
    """To the target, or as long as six times the rounds of the synchronous rule take; without one, for these rounds.

    Real workers go on after the target, so that their speed is measured over some seconds.
    """
    setting, real = TASKS[case.task], not isinstance(fleet, pl.SimulatedFleet)
    longest = budget(case) * (1.0 if goal is None else 1.4 if real else 6.0)
    limit = {} if goal is None or real else {"metric": "loss", "below": goal}
    return pl.train(
        setting.make(seed), strategy=rule, fleet=fleet, optimizer=sgd(rate),
        stop=pl.Stop(seconds=max(longest, LEAST) if real else longest, **limit),  # type: ignore[arg-type]
        batch_size=None if isinstance(rule, pl.UnequalBatches | pl.Advised) else setting.batch_size,
        partition=partition_of(case), every=pl.Every(seconds=budget(case) / 50), seed=seed, progress=False,
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
        return min(losses(train(case, simulated_fleet, pl.Synchronous(), rate, seed)))

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
    """When the target was reached, and updates a second once the workers had warmed up."""
    at, now = list[float](), 0.0
    for fact in run.trace:
        now = getattr(fact, "at", now)
        if isinstance(fact, Step):
            at.append(now)
    first = len(at) // 5
    return {
        "reached": _finite(reached(run, goal)), "updates": len(at), "seconds": round(run.history[-1].seconds, 3),
        "updates_per_second": (len(at) - 1 - first) / (at[-1] - at[first]) if len(at) > first + 1 else None,
        "ended": run.ended.split(" ")[0], "staleness": round(run.mean_staleness, 3),
    }  # fmt: skip


def prepared(case: RecordCase) -> dict[str, Any]:
    """What is found out on simulated workers beforehand: target and rates."""
    return {"target": aim(case.task, case.data)[1], "rates": {text: tuned(case, text) for text in grid(case)}}


def profile_of(case: RecordCase) -> Path:
    return PROFILES / _digest(case.name)[:12]


def measured_grid(case: RecordCase, plan: Mapping[str, Any], fleet: Any) -> dict[str, Any]:
    """A profile, which is kept, and all rules of the grid."""
    setting, goal = TASKS[case.task], plan["target"]
    shutil.rmtree(profile_of(case), ignore_errors=True)
    pl.profile(
        setting.make(TUNED), fleet=fleet, seconds=PROFILE, batch_size=setting.batch_size, seed=TUNED,
        partition=partition_of(case), directory=profile_of(case),
    )  # fmt: skip
    runs = {text: train(case, fleet, rule_of(text, case), rate, 0, goal=goal) for text, rate in plan["rates"].items()}
    return {"grid": {text: measured(run, goal) for text, run in runs.items()}}


def advice_of(case: RecordCase, plan: Mapping[str, Any]) -> dict[str, Any]:
    """What is advised, from the profile and the task."""
    setting, rate, begin = TASKS[case.task], plan["rates"][NOW], time.process_time()
    advice = pl.advise(
        setting.make(TUNED), recording=profile_of(case), optimizer=sgd(rate), batch_size=setting.batch_size,
        strategy=NOW, partition=partition_of(case), seed=TUNED, metric="loss", below=plan["target"],
    )  # fmt: skip
    return {"now_rate": rate, "advice": told(advice, time.process_time() - begin)}


def advised(case: RecordCase, plan: Mapping[str, Any], advice: Mapping[str, Any], fleet: Any) -> dict[str, Any]:
    """What comes of the advice on the real workers."""
    if advice["without"] or advice["learning_rate"] is None:
        return {"advised": None}
    rule = rule_of(advice["strategy"], case)
    run = train(case, fleet, rule, advice["learning_rate"], 0, goal=plan["target"])
    return {"advised": measured(run, plan["target"])}


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


def done(
    case: RecordCase, part: str, known: Mapping[tuple[str, str], dict[str, Any]], runs: Path
) -> dict[str, Any] | None:
    """Do one part of a case; nothing if what it needs is not there yet."""
    if part == "simulated":
        rate = known_rate(case, runs)
        return None if rate is None else simulated(case, rate)
    if part == "prepared":
        return prepared(case)
    plan = known.get(("prepared", case.name))
    if plan is None:
        return None
    if part == "advice":
        if ("grid", case.name) not in known or ("refused", case.name) in known:
            return None
        try:
            return advice_of(case, plan)
        except pl.PacelineError as error:  # also an answer, and told as such
            keep(case, "refused", {"why": str(error)})
            return None
    if part == "grid":
        return measured_grid(case, plan, workers_of(case))
    if ("advice", case.name) not in known:
        return None
    return advised(case, plan, known["advice", case.name]["advice"], workers_of(case))


def workers_of(case: RecordCase) -> Any:
    """The real workers of a case."""
    if case.kind == "processes":
        return fleet_of(case, real=True)
    slow = dict(enumerate(REAL_FLEETS[LINKS[case.fleet][0]]))
    return pl.RayFleet(WORKERS, address=os.environ[ADDRESS], slow=slow)


def behind_link(case: RecordCase, part: str) -> None:
    """The same command for one case, on the server's side of its link."""
    command = [sys.executable, __file__, part, "--kind", "links", "--only", case.name]
    with linked(LINKS[case.fleet][1]) as begin:
        subprocess.run([*begin, *command], check=True)


def work(cases: Iterable[RecordCase], part: str, limit: float, runs: Path) -> None:
    begin = time.monotonic()
    for case in cases:
        known = read_found()
        if (part, case.name) in known or time.monotonic() - begin > limit:
            continue
        at = time.monotonic()
        if case.kind == "links" and part in ("grid", "advised") and ADDRESS not in os.environ:
            behind_link(case, part)
        elif (found := done(case, part, known, runs)) is not None:
            keep(case, part, found)
            print(f"{part}, {case.name} ({case.half}): {time.monotonic() - at:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=["simulated", "prepare", "grid", "advice", "advised"])
    parser.add_argument("--half", choices=["tuning", "held out"])
    parser.add_argument("--kind", choices=["processes", "links"], default="processes", help="of real cases")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no case is begun")
    parser.add_argument("--share", default="0/1", help="1/2: the second half of the cases, for two at once")
    parser.add_argument("--map", type=Path, default=MAP, help="the runs of benchmarks/map.py")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("paceline").setLevel(logging.ERROR)
    chosen = [case for case in ALL if asked.only in case.name and asked.half in (None, case.half)]
    if asked.list or asked.part is None:
        for case in chosen:
            print(f"{case.half:8}  {case.name}")
        return
    kind = "simulated" if asked.part == "simulated" else asked.kind
    own, of = map(int, asked.share.split("/"))
    part = "prepared" if asked.part == "prepare" else asked.part
    work([case for case in chosen if case.kind == kind][own::of], part, asked.limit, asked.map)


if __name__ == "__main__":
    main()
