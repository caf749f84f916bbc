"""The tables of a report page, as HTML."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from paceline.reports.picture import WorkerSums
from paceline.trace.measure import WorkerTime
from paceline.trace.timeline import KINDS

if TYPE_CHECKING:
    from paceline.reports.page import Described

STRAGGLERS = 32  # rows of one run's table


class Html(str):
    """Text that is markup already. Any other text in a cell is escaped."""

    __slots__ = ()


def runs_table(runs: Sequence["Described"]) -> str:
    """One row a run. The script fills in the time to the target, which the reader may change."""
    apart = any(run.measures.hands_in_models for run in runs)
    headings = (
        "run",
        "ended by",
        "time to target",
        "updates",
        "samples",
        "staleness",
        "wasted",
        "idle",
        "loss",
        "accuracy",
        *(["training / relabelling / messages"] if apart else []),
    )
    body = "".join(
        f'<tr data-run="{number}">{_cells(headings, _run_cells(number, run, apart))}</tr>'
        for number, run in enumerate(runs)
    )
    problems = "".join(
        f"<p class=problem>{escape(run.name)}: {escape(run.saved.problem)}</p>" for run in runs if run.saved.problem
    )
    return f"<table class=cards><thead><tr>{_heads(headings)}</tr></thead><tbody>{body}</tbody></table>{problems}"


def _run_cells(number: int, run: "Described", apart: bool) -> Iterable[str]:
    measures, saved = run.measures, run.saved
    last = saved.rows[-1] if saved.rows else None
    yield Html(
        f'<span class="swatch run{number % 7}"></span><b>{escape(run.name)}</b>'
        f'<span class=strategy title="{escape(saved.strategy)}">{escape(_shortened(saved.strategy))}</span>'
    )
    bad = "bad" if saved.ended in ("diverged", "not finished") else ""
    yield Html(f'<span class="{bad}">{escape(saved.ended)}</span>')
    yield Html("<span class=reached>–</span>")
    yield f"{measures.updates:,}"
    yield f"{last.samples:,}" if last else "–"
    yield f"{measures.mean_staleness:.1f} / {measures.max_staleness}"
    yield f"{measures.wasted_share:.1%}"
    yield f"{measures.idle_share:.1%}"
    yield f"{last.loss:.4f}" if last and math.isfinite(last.loss) else "–"
    yield f"{last.accuracy:.1%}" if last and math.isfinite(last.accuracy) else "–"
    if apart:
        yield f"{measures.compute:,.1f} / {measures.relabelling:,.1f} / {measures.transfer:,.1f} s"


def straggler_tables(runs: Sequence["Described"]) -> str:
    """For each run: who was waited for, how long, and what was wasted; the one that cost most first."""
    return "".join(
        f'<details data-run="{number}"{" open" * (number == 0 or len(runs) <= 3)}>'
        f'<summary><span class="swatch run{number % 7}"></span>{escape(run.name)}</summary>{_stragglers(run)}</details>'
        for number, run in enumerate(runs)
    )


def _stragglers(run: "Described") -> str:
    headings = ("worker", "came last", "held up the others", "used", "thrown away", "wasted", "where its time went")
    sums, times = run.picture.workers, {each.worker: each for each in run.measures.workers}

    def cost(worker: int) -> tuple[float, float, int]:
        return -sums[worker].held_up, -times[worker].wasted, worker

    ranked = sorted(sums.keys() & times.keys(), key=cost)
    if not ranked:
        return "<p class=note>Nothing has happened yet.</p>"
    body = "".join(
        f"<tr>{_cells(headings, _worker_cells(run, worker, sums[worker], times[worker]))}</tr>"
        for worker in ranked[:STRAGGLERS]
    )
    more = len(ranked) - STRAGGLERS
    rest = f"<p class=note>{more:,} more workers held the others up for less time.</p>" if more > 0 else ""
    return f"<table class=slim><thead><tr>{_heads(headings)}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _worker_cells(run: "Described", worker: int, sums: WorkerSums, times: WorkerTime) -> Iterable[str]:
    updates = run.measures.updates
    yield Html(f"<b>worker {escape(str(worker))}</b>")
    share = f"<small> ({sums.waited_for / updates:.0%} of updates)</small>" if sums.waited_for else ""
    yield Html(f"{sums.waited_for:,}×{share}") if sums.waited_for else "–"
    yield f"{sums.held_up:,.1f} s" if sums.held_up else "–"
    yield f"{times.contributions:,}"
    yield f"{sums.thrown_away:,}" if sums.thrown_away else "–"
    wasted = f"<small> ({times.wasted / times.busy:.0%})</small>" if times.busy else ""
    yield Html(f"{times.wasted:,.1f} s{wasted}") if times.wasted else "–"
    yield _bar(sums)


def _bar(sums: WorkerSums) -> str:
    whole = sum(sums.seconds.values())
    if not whole:
        return "–"
    shares = {kind: sums.seconds[kind] / whole for kind in KINDS}
    words = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items() if share >= 0.005)
    pieces = "".join(f'<i class="{kind}" style="width:{share:.3%}"></i>' for kind, share in shares.items() if share > 0)
    return Html(f'<span class=bar role=img title="{words}" aria-label="{words}">{pieces}</span>')


def _heads(headings: Iterable[str]) -> str:
    return "".join(f"<th scope=col>{escape(heading)}</th>" for heading in headings)


def _cells(headings: Iterable[str], cells: Iterable[str]) -> str:
    return "".join(
        f'<td data-label="{escape(heading)}">{cell if isinstance(cell, Html) else escape(cell)}</td>'
        for heading, cell in zip(headings, cells, strict=True)
    )


def _shortened(text: str, most: int = 90) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
