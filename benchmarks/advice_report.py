"""What became of the record of advice (benchmarks/advice.py): each bar, for the half that was held out and the other.

    python benchmarks/advice_report.py [--save]      writes benchmarks/results/advice.json and docs/results/advice.png

Time to target   of the advice, with its own learning rate, over that of the best rule of the grid with a tuned one. In
                 simulated cases the mean over the seeds that both have, in real ones a single run of each.
Coverage         of the 80 % intervals of all candidates that have one and are in the grid: the gain that was found is
                 the time to target of the synchronous rule over that of the candidate.
Speed            updates a second of each rule, predicted from the profile of another one, over those of the run.
"""

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from advice import ALL, FOUND, MAP, RecordCase, read_found
from measuring import RESULTS, write

from paceline import look

FIGURE = Path(__file__).parents[1] / "docs" / "results" / "advice.png"
MODELS = ("ModelAveraging", "DiLoCo", "FedBuff", "EASGD", "EnsembleCompression")  # of which advice says nothing
KINDS = {  # of rules by how their names begin, in the advice: those of the map and of the grid
    "ssgd": "Synchronous", "unequal": "UnequalBatches", "k-sgd:quorum=6": "FastestK",
    "lgc:quorum=6": "LiveCompensation",
    "asgd": "Asynchronous", "softsync:size=4": "Buffered", "ssp:slack=3": "BoundedStaleness", "iag": "NewestOfEach",
    "sasgd:size=4": "StalenessAware", "delay-adaptive-asgd": "DelayAdaptive", "rescaled-asgd": "Rescaled",
    "ringmaster-asgd:threshold=8": "Ringmaster", "malenia-sgd:batch=8": "Malenia", "rennala-sgd:batch=8": "Rennala",
}  # fmt: skip
REAL = {
    "ssgd": "ssgd", "unequal": "unequal:total={total}", "k-sgd:quorum=3": "k-sgd:quorum=3", "gsgd": "gsgd",
    "lgc:quorum=3": "lgc:quorum=3,blocks=4", "asgd": "asgd", "softsync:size=2": "buffered:size=2",
}  # fmt: skip
BARS = {
    "speed, median error": 0.05, "speed, share within 10 %": 0.9, "regret, median": 0.05, "regret, worst": 0.2,
    "left where synchronous or unequal was best": 0.05, "diverged": 0, "coverage of 80 %": (0.75, 0.85),
}  # fmt: skip


class Outcome(NamedTuple):
    """One case: what was advised, what the grid did, and what came of it."""

    case: RecordCase
    advice: Mapping[str, Any]
    grid: Mapping[str, Sequence[float]]  # rule -> time to target on each seed; infinite if not reached
    own: Sequence[float]
    speeds: Mapping[str, float]  # of real rules

    @property
    def best(self) -> str:
        return min(self.grid, key=lambda rule: fmean(self.grid[rule]))

    @property
    def regret(self) -> float:
        """Time to target over that of the best of the grid, less one; what beats the grid has none."""
        return max(0.0, fmean(self.own) / fmean(self.grid[self.best]) - 1)

    def now(self) -> Sequence[float]:
        return self.grid["Synchronous" if self.case.kind == "simulated" else "ssgd"]


def of_map(path: Path) -> dict[tuple[str, str, str], dict[str, dict[int, float]]]:
    found: dict[tuple[str, str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    if path.exists():
        with path.open() as file:
            for row in csv.DictReader(file):
                if int(row["seed"]) < 5 and row["rule"] not in MODELS:
                    seeds = found[row["fleet"], row["task"], row["data"]][row["rule"]]
                    seed = int(row["seed"])  # of two rates the better one
                    seeds[seed] = min(seeds.get(seed, math.inf), float(row["reached"]))
    return found


def outcomes(path: Path) -> list[Outcome]:
    """The cases of which all parts are there."""
    known, maps, found = read_found(FOUND), of_map(path), []
    for case in ALL:
        if case.kind == "simulated":
            line, rules = known.get(("simulated", case.name)), maps.get((case.fleet, case.task, case.data), {})
            if line is None or line["advised"] is None or len(rules) < 17:
                continue
            seeds = [seed for seed in range(3) if sum(seed in own for own in rules.values()) >= 17]
            grid = {rule: [own[seed] for seed in seeds] for rule, own in rules.items() if {*seeds} <= own.keys()}
            own = [_time(line["advised"]["reached"][seed]) for seed in seeds]
            if seeds and "Synchronous" in grid:
                found.append(Outcome(case, line["advice"], grid, own, {}))
            continue
        lines = [known.get((part, case.name)) for part in ("grid", "advice", "advised")]
        if all(line is not None for line in lines) and lines[2]["advised"] is not None:  # type: ignore[index]
            measured, advice, result = (line for line in lines if line is not None)
            grid = {rule: [_time(run["reached"])] for rule, run in measured["grid"].items()}
            speeds = {rule: run["updates_per_second"] for rule, run in measured["grid"].items()}
            found.append(Outcome(case, advice["advice"], grid, [_time(result["advised"]["reached"])], speeds))
    return found


def _time(value: float | None) -> float:
    return math.inf if value is None else value


def in_grid(label: str, case: RecordCase) -> str | None:
    """What the grid calls a candidate; None if it is not in it."""
    names = KINDS if case.kind == "simulated" else REAL
    for begins, name in names.items():
        if label == begins or (begins in ("unequal", "gsgd") and label.startswith(f"{begins}:")):
            return name
    return None


def speed_errors(found: Iterable[Outcome]) -> list[float]:
    errors = []
    for each in found:
        for candidate in each.advice["candidates"]:
            measured = each.speeds.get(in_grid(candidate["strategy"], each.case) or "")
            if measured:
                errors.append(candidate["updates_per_second"] / measured - 1)
    return errors


def gains(found: Iterable[Outcome], only: str = "") -> list[tuple[float, float, float, float]]:
    """Predicted, its interval, and what was found, of candidates with an interval that are in the grid."""
    pairs = []
    for each in found:
        for candidate in each.advice["candidates"]:
            name = in_grid(candidate["strategy"], each.case)
            chosen = candidate["strategy"] == each.advice["strategy"]
            times = each.own if chosen else each.grid.get(name or "", ())
            if only and candidate["strategy"] != only:
                continue
            if candidate["interval"] and times and candidate["strategy"] != "ssgd" and math.isfinite(sum(times)):
                pairs.append((candidate["gain"], *candidate["interval"], fmean(each.now()) / fmean(times)))
    return [pair for pair in pairs if math.isfinite(pair[3])]


def summary(found: Sequence[Outcome]) -> dict[str, Any]:
    regrets = [each.regret for each in found]
    held = [each for each in found if each.best in ("Synchronous", "UnequalBatches", "ssgd", "unequal:total={total}")]
    left = [each for each in held if not each.advice["strategy"].startswith(("ssgd", "unequal"))]
    errors = [abs(error) for error in speed_errors(found)]
    pairs = gains(found)
    result: dict[str, Any] = {"cases": len(found)}
    if regrets:
        result |= {"regret, median": _round(median(regrets)), "regret, worst": _round(max(regrets))}
        result["worst case"] = max(found, key=lambda each: each.regret).case.name
        result["never reached the target"] = sum(math.isinf(fmean(each.own)) for each in found)
        result["synchronous or unequal was best"] = len(held)
        result["left where synchronous or unequal was best"] = len(left)
        result["what leaving them cost, worst"] = _round(max((each.regret for each in left), default=0.0))
        result["seconds of computing, median"] = _round(median(each.advice["seconds"] for each in found))
    if errors:
        result |= {
            "speeds": len(errors), "speed, median error": _round(median(errors)), "speed, largest": _round(max(errors)),
            "speed, share within 10 %": _round(sum(error <= 0.1 for error in errors) / len(errors)),
        }  # fmt: skip
    if pairs:
        inside = sum(low <= real <= high for _, low, high, real in pairs)
        result |= {"gains": len(pairs), "coverage of 80 %": _round(inside / len(pairs))}
        result["gain, median error"] = _round(median(abs(predicted / real - 1) for predicted, _, _, real in pairs))
    return result


def _round(value: float) -> float | str:
    return round(value, 4) if math.isfinite(value) else "never"


def draw(found: Sequence[Outcome]) -> None:
    """Predicted against measured: gains of all cases, and updates a second of the real ones; full if held out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    seen: dict[str, Any] = {}
    for each in found:
        for candidate in each.advice["candidates"]:
            label, name = candidate["strategy"], in_grid(candidate["strategy"], each.case)
            points = [(left, pair) for pair in gains([each], only=label)]
            if name in each.speeds:
                pace = candidate["updates_per_second"]
                points.append((right, (pace, pace, pace, each.speeds[name])))
            family = look.family(label)
            for axis, (predicted, low, high, real) in points:
                full = family.light if each.case.half == "held out" else "none"
                axis.plot([low, high], [real, real], color=family.light, alpha=0.2, linewidth=1)
                seen[family.name] = axis.scatter(
                    [predicted], [real], s=28, marker=family.marker, facecolors=full, edgecolors=family.light
                )
    unit = "times as soon as synchronous"
    for axis, title, what in ((left, "Time to the same loss", unit), (right, "Real workers", "updates a second")):
        axis.set(xscale="log", yscale="log")
        ends = [*axis.get_xlim(), *axis.get_ylim()]
        ends = [min(ends), max(ends)]
        axis.plot(ends, ends, color=look.DIM, linewidth=1, zorder=0)
        axis.set(xlim=ends, ylim=ends, aspect="equal")
        look.tidy(axis, title, f"predicted: {what}", f"measured: {what}")
    figure.legend(seen.values(), seen, loc="outside lower center", ncols=4, frameon=False)
    look.write(figure, FIGURE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--map", type=Path, default=MAP)
    asked = parser.parse_args()
    found = outcomes(asked.map)
    result: dict[str, Any] = {"bars": BARS}
    for half in ("held out", "tuning"):
        own = [each for each in found if each.case.half == half]
        result[half] = {"all": summary(own)}
        for kind in ("simulated", "processes", "links"):
            if some := [each for each in own if each.case.kind == kind]:
                result[half][kind] = summary(some)
    result["cases"] = [
        {
            "case": each.case.name, "half": each.case.half, "advice": each.advice["strategy"],
            "best of the grid": each.best, "time of the best": _round(fmean(each.grid[each.best])),
            "time of the advice": _round(fmean(each.own)), "time of synchronous": _round(fmean(each.now())),
            "regret": _round(each.regret),
        }
        for each in found
    ]  # fmt: skip
    write("advice", result, save=asked.save)
    if asked.save:
        draw(found)
        print(f"{FIGURE}, {RESULTS / 'advice.json'}")


if __name__ == "__main__":
    main()
