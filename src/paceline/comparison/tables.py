"""Tables for the terminal: a comparison, and the list of strategies."""

import math
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from paceline.comparison.jobs import WORKER_SECONDS, Comparison, Entry
from paceline.strategies.names import STRATEGIES


def comparison_table(comparison: Comparison) -> Table:
    """A table with one row per strategy, sorted by the time to the target: medians over the seeds (and ranges)."""
    target = comparison.config.target
    table = Table(
        title=title(comparison), title_justify="left", pad_edge=False, box=None, header_style="bold", expand=False
    )
    reach = (
        "time to target" if target is None else f"time to {target:.0%}" if _whole(target) else f"time to {target:.1%}"
    )
    table.add_column("strategy", overflow="fold", max_width=34)
    for heading in (
        "lr",
        reach,
        "speed-up",
        "updates",
        "samples",
        "staleness\nmean / max",
        "wasted\nwork",
        "final\nloss",
    ):
        table.add_column(heading, justify="right")
    table.add_column("final\naccuracy", justify="right")
    apart = any(each.measures.hands_in_models for entry in comparison.entries for each in entry.outcomes)
    if apart:
        table.add_column("worker-seconds: training\n/ relabelling / messages", justify="right")
    synchronous = comparison.entry("synchronous")
    for entry in comparison.entries:
        table.add_row(*_cells(entry, synchronous), *([worker_seconds(entry)] if apart else []))
    return table


def worker_seconds(entry: Entry) -> str:
    """The workers' time in seconds: training / relabelling / messages, without waiting."""
    seconds = [entry.middle(of) for of in WORKER_SECONDS.values()]
    return " / ".join(f"{each:,.0f}" for each in seconds)


def _cells(entry: Entry, synchronous: Entry | None) -> list[str]:
    middle = entry.middle
    most = max(each.measures.max_staleness for each in entry.outcomes)
    accuracy = entry.accuracy
    end = "[red]diverged[/]" if len(entry.diverged) == len(entry.outcomes) else f"{entry.loss:.3f}"
    return [
        entry.label,
        "as set" if entry.lr is None else f"{entry.lr:g}",
        _reached(entry),
        speed_up(entry, synchronous),
        f"{middle(lambda each: each.measures.updates):,.0f}",
        f"{middle(lambda each: each.history[-1].samples):,.0f}",
        f"{middle(lambda each: each.measures.mean_staleness):.1f} / {most}",
        f"{middle(lambda each: each.measures.wasted_share):.0%}",
        end + ("" if not entry.diverged or end.startswith("[") else f"\n[red]{len(entry.diverged)} diverged[/]"),
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
    return f"{config.task.data}, {config.task.model} model, {config.fleet.workers} workers, {seeds}"


def _whole(share: float) -> bool:
    return abs(share * 100 - round(share * 100)) < 1e-9


def non_finite_line(label: str, counts: Mapping[int, int]) -> str:
    """One line about contributions that were left out because they were not finite; ``counts``: how many per worker."""
    listed = ", ".join(f"worker {worker} ({count})" for worker, count in counts.items())
    return f"{label}: {sum(counts.values())} contributions were not finite and left out, from {listed}"


def strategies_table() -> Table:
    """A table of the strategies: names, rule, example, paper."""
    table = Table(pad_edge=False, box=None, header_style="bold", padding=(0, 2, 1, 0))
    for heading in ("names", "also known as", "rule", "try", "paper"):
        table.add_column(heading, overflow="fold")
    for named in STRATEGIES:
        table.add_row("\n".join(named.names[:3]), named.acronyms, named.rule, named.example, f"[dim]{named.paper}[/]")
    return table


def console(stderr: bool = False) -> Console:
    """A rich console on stdout or stderr, 140 columns wide if that is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, highlight=False, soft_wrap=False)
