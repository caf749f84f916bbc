"""What the runs of a plan came to: errors in percent, Diff_LG in points, speeds relative to MA-DNN's global model."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from reproductions.ec_dnn.plan import FEWEST, Results, Runs, Taus, rows
from reproductions.ec_dnn.training import COSTS, Case, Training

Result = Mapping[str, Any]
CLOCKS = {"steps": COSTS[:1], "steps_relabelling": COSTS[:2], "all": COSTS}  # what a method is charged for


@dataclass(frozen=True)
class Findings:
    """Looks up results by method, number of workers and seed."""

    runs: Runs
    taus: Taus
    results: Results

    def seeds(self, workers: int) -> Sequence[int]:
        """S-DNN has one worker and is run once for each seed, whatever the others have."""
        grids = dict(self.runs.plan.grids)
        return grids[FEWEST] if workers == 1 else grids[workers]

    def case(self, method: str, workers: int) -> Case:
        """With the tau that was chosen."""
        return next(case for case in rows(workers, self.taus) if case.method == method)

    def errors(self, case: Case, final: str, seeds: Sequence[int] | None = None) -> list[float]:
        """Test errors of the final model (``g``, ``l`` or ``l_validated``) in percent, one for each seed."""
        wanted = self.seeds(case.workers) if seeds is None else seeds
        return [percent(self.results[self.runs.run(case, seed)][f"error_{final}"]) for seed in wanted]

    def differences(self, case: Case, other: Case, final: str = "g") -> list[float]:
        """By how many points the error of a case is below that of another, seed by seed."""
        seeds = self.seeds(case.workers)
        pairs = zip(self.errors(case, final, seeds), self.errors(other, final, seeds), strict=True)
        return [theirs - own for own, theirs in pairs]

    def speeds(self, case: Case, final: str, clock: str = "all") -> list[float]:
        """One for each seed."""
        return [
            speed(self._curve(case, seed, final, clock), self._curve(self._averaging(case), seed, "g", clock))
            for seed in self.seeds(case.workers)
        ]

    def costs(self, case: Case) -> dict[str, float]:
        """Virtual seconds of a worker in the whole run; the same for every seed but for rounding."""
        last = self.results[self.runs.run(case, self.seeds(case.workers)[0])]["curve"][-1]
        return {name: float(last[name]) for name in COSTS}

    def _averaging(self, case: Case) -> Case:
        return self.case("ma", case.workers)

    def _curve(self, case: Case, seed: int, final: str, clock: str) -> list[tuple[float, float]]:
        return curve(self.results[self.runs.run(case, seed)], final, clock)


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
    return [
        100 * (fmean(point["errors"]) - point["error" if averaged else "simple_error"])
        for run, point in _communications(results)
        if (run.case.method == "ma") == averaged
    ]


def violations(results: Results) -> tuple[int, int]:
    """How often the loss of a simple ensemble exceeds the mean loss, and of how many single samples."""
    seen = [(run, point) for run, point in _communications(results) if run.case.method != "ma"]
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
