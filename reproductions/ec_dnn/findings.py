"""What the runs of a plan came to: errors in percent, Diff_LG in points, speeds relative to MA-DNN's global model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from reproductions.ec_dnn.plan import FEWEST, Results, Runs, Taus, rows
from reproductions.ec_dnn.training import COSTS, Case, Training
from reproductions.pipeline.claims import NotRun
from reproductions.pipeline.samples import unpacked
from reproductions.pipeline.verdicts import FEW, Difference, over_samples, over_seeds

Result = Mapping[str, Any]
CLOCKS = {"steps": COSTS[:1], "steps_relabelling": COSTS[:2], "all": COSTS}  # what a method is charged for


@dataclass(frozen=True)
class Findings:
    """Looks up results by method, number of workers and seed; ``NotRun`` for those that are still missing."""

    runs: Runs
    taus: Taus
    results: Results

    def seeds(self, *cases: Case) -> list[int]:
        """Those of which all these cases were run; S-DNN has one worker, and is run once for each seed."""
        grids = dict(self.runs.plan.grids)
        planned = grids[FEWEST if cases[0].workers == 1 else cases[0].workers]
        both = [seed for seed in planned if all(self.runs.run(case, seed) in self.results for case in cases)]
        if not both:
            missing = next(case for case in cases if self.runs.run(case, planned[0]) not in self.results)
            raise NotRun(self.runs.run(missing, planned[0]).name)
        return both

    def case(self, method: str, workers: int) -> Case:
        """With the tau that was chosen."""
        return next(case for case in rows(workers, self.taus) if case.method == method)

    def result(self, case: Case, seed: int, model: str | None = None) -> Result:
        run = self.runs.run(case, seed, model)
        if run not in self.results:
            raise NotRun(run.name)
        return self.results[run]

    def errors(self, case: Case, final: str, seeds: Sequence[int] | None = None) -> list[float]:
        """Test errors of the final model (``g``, ``l`` or ``l_validated``) in percent, one for each seed."""
        wanted = self.seeds(case) if seeds is None else seeds
        return [percent(self.result(case, seed)[f"error_{final}"]) for seed in wanted]

    def differences(self, case: Case, other: Case, final: str = "g") -> list[float]:
        """By how many points the error of a case is below that of another, seed by seed."""
        seeds = self.seeds(case, other)
        pairs = zip(self.errors(case, final, seeds), self.errors(other, final, seeds), strict=True)
        return [theirs - own for own, theirs in pairs]

    def lower(self, case: Case, other: Case, final: str = "g") -> Difference | None:
        """The same with its interval: over seeds, or for few of them over test samples; None if there is no test."""
        differences, seeds = self.differences(case, other, final), self.seeds(case, other)
        kept = [[self.result(each, seed).get("right") for seed in seeds] for each in (case, other)]
        if len(seeds) >= FEW or final != "g" or not all(text for side in kept for text in side):
            return over_seeds(differences)
        bits = [np.concatenate([unpacked(str(text), self.runs.plan.size.tested) for text in side]) for side in kept]
        return over_samples(bits[0], bits[1])

    def speeds(self, case: Case, final: str, clock: str = "all") -> list[float]:
        """One for each seed."""
        averaging = self.case("ma", case.workers)
        return [
            speed(self._curve(case, seed, final, clock), self._curve(averaging, seed, "g", clock))
            for seed in self.seeds(case, averaging)
        ]

    def costs(self, case: Case) -> dict[str, float]:
        """Virtual seconds of a worker in the whole run; the same for every seed but for rounding."""
        last = self.result(case, self.seeds(case)[0])["curve"][-1]
        return {name: float(last[name]) for name in COSTS}

    def _curve(self, case: Case, seed: int, final: str, clock: str) -> list[tuple[float, float]]:
        return curve(self.result(case, seed), final, clock)


def curve(result: Result, final: str = "g", clock: str = "all") -> list[tuple[float, float]]:
    """Time and test error of the global model, or of the local one that is chosen in the end."""
    return [
        (
            sum(point[name] for name in CLOCKS[clock]),
            point["error"] if final == "g" else point["errors"][result["local"]],
        )
        for point in result["curve"]
    ]


def speed(own: Sequence[tuple[float, float]], averaging: Sequence[tuple[float, float]]) -> float:
    """The time MA-DNN's global model takes to its smallest error, over that until ``own`` is as small; 0 if never."""
    target, needed = min((error, at) for at, error in averaging)
    reached = next((at for at, error in own if error <= target), math.inf)
    return needed / reached


def gains(results: Results, *, averaged: bool) -> list[float]:
    """Diff_LG in points at every communication looked at: of averages, or of simple ensembles."""
    found = [
        100 * (fmean(point["errors"]) - point["error" if averaged else "simple_error"])
        for run, point in _communications(results)
        if (run.case.method == "ma") == averaged
    ]
    if not found:
        raise NotRun("MA-DNN" if averaged else "E-DNN and EC-DNN")
    return found


def violations(results: Results) -> tuple[int, int]:
    """How often the loss of a simple ensemble exceeds the mean loss, and of how many single samples."""
    seen = [(run, point) for run, point in _communications(results) if run.case.method != "ma"]
    if not seen:
        raise NotRun("E-DNN and EC-DNN")
    return sum(point["violations"] for _, point in seen), sum(run.size.followed for run, _ in seen)


def _communications(results: Results) -> Iterator[tuple[Training, Mapping[str, Any]]]:
    for run, result in results.items():
        if run.case.workers > 1:
            yield from ((run, point) for point in result["curve"])


def percent(share: float | None) -> float:
    return math.nan if share is None else 100 * share


def spread(values: Sequence[float]) -> float:
    """The standard deviation over the seeds; of one seed there is none."""
    return stdev(values) if len(values) > 1 else math.nan
