"""The table of a comparison."""

import math
from collections.abc import Mapping

from rich.text import Text

from paceline.comparison.jobs import WORKER_SECONDS, Comparison, Entry
from paceline.terminal import Cell, Column


def comparison_rows(comparison: Comparison) -> tuple[list[Column], list[list[Cell]]]:
    """One row per strategy, sorted by the time to the target: medians over the seeds (and ranges)."""
    target = comparison.config.target
    reach = (
        "time to target" if target is None else f"time to {target:.0%}" if _whole(target) else f"time to {target:.1%}"
    )
    columns = [
        Column("strategy", least=34, left=True),
        Column("lr"),
        Column(reach),
        Column("speed-up", rank=1),
        Column("updates", rank=5),
        Column("samples", rank=6),
        Column("staleness\nmean / max", rank=4),
        Column("wasted\nwork", rank=7),
        Column("final\nloss", rank=3 if target is not None else 0),
        Column("final\naccuracy", rank=2),
        Column("worker-seconds: training\n/ relabelling / messages", rank=8),
    ]
    apart = any(each.measures.hands_in_models for entry in comparison.entries for each in entry.outcomes)
    synchronous = comparison.entry("synchronous")
    rows = [[*_cells(entry, synchronous), worker_seconds(entry) if apart else "-"] for entry in comparison.entries]
    return columns, rows


def worker_seconds(entry: Entry) -> str:
    """The workers' time in seconds: training / relabelling / messages, without waiting."""
    seconds = [entry.middle(of) for of in WORKER_SECONDS.values()]
    return " / ".join(f"{each:,.0f}" for each in seconds)


def _cells(entry: Entry, synchronous: Entry | None) -> list[Cell]:
    middle = entry.middle
    most = max(each.measures.max_staleness for each in entry.outcomes)
    accuracy = entry.accuracy
    end: Cell = f"{entry.loss:.3f}"
    if len(entry.diverged) == len(entry.outcomes):
        end = Text("diverged", "red")
    elif entry.diverged:
        end = Text.assemble(f"{entry.loss:.3f}\n", (f"{len(entry.diverged)} diverged", "red"))
    return [
        entry.label,
        "as set" if entry.lr is None else f"{entry.lr:g}",
        _reached(entry),
        speed_up(entry, synchronous),
        f"{middle(lambda each: each.measures.updates):,.0f}",
        f"{middle(lambda each: each.history[-1].samples):,.0f}",
        f"{middle(lambda each: each.measures.mean_staleness):.1f} / {most}",
        f"{middle(lambda each: each.measures.wasted_share):.0%}",
        end,
        f"{accuracy:.1%}" if math.isfinite(accuracy) else "-",
    ]


def _reached(entry: Entry) -> str:
    if entry.target is None:
        return "-"
    reached = [time for time in entry.times if math.isfinite(time)]
    if not reached:
        return "not reached"
    missed = len(entry.times) - len(reached)
    middle = f"{entry.time:.1f}" if math.isfinite(entry.time) else "not reached"
    spread = f"{min(reached):.1f}-{max(reached):.1f}" if len(reached) > 1 else f"{reached[0]:.1f}"
    return f"{middle} ({spread}{f', {missed} missed' if missed else ''})" if len(entry.times) > 1 else middle


def speed_up(entry: Entry, reference: Entry | None) -> str:
    """How many times faster an entry reaches the target than the reference."""
    if reference is None or not math.isfinite(entry.time) or not math.isfinite(reference.time):
        return "-"
    return f"{reference.time / entry.time:.2f}x"


def title(comparison: Comparison) -> str:
    """Title of a comparison: data, model, number of workers and seeds."""
    config = comparison.config
    seeds = f"{len(config.seeds)} seeds, medians (range)" if len(config.seeds) > 1 else "one seed"
    return f"{config.task.label}, {config.fleet.workers} workers, {seeds}"


def _whole(share: float) -> bool:
    return abs(share * 100 - round(share * 100)) < 1e-9


def non_finite_line(label: str, counts: Mapping[int, int]) -> str:
    """One line about contributions that were left out because they were not finite; ``counts``: how many per worker."""
    listed = ", ".join(f"worker {worker} ({count})" for worker, count in counts.items())
    return f"{label}: {sum(counts.values())} contributions were not finite and left out, from {listed}"
