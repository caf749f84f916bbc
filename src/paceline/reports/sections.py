"""The tables and sentences of a report page, as HTML. Everything that comes from files is escaped."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from paceline.reports.picture import WorkerSums
from paceline.storage.description import spell
from paceline.trace.measure import WorkerTime
from paceline.trace.timeline import KINDS

if TYPE_CHECKING:
    from paceline.reports.page import Described

METRICS = 6  # besides loss and accuracy
STRAGGLERS = 32  # rows of one run's table
WAITED = 4  # runs on the first screen


@dataclass(frozen=True)
class Overview:
    """What a page says above its runs: sentences, a table, and notes below it."""

    title: str
    sentences: Sequence[str]
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def metric_names(runs: Sequence["Described"]) -> list[str]:
    """The metrics of the runs' last evaluations besides loss and accuracy, in their order; the first few."""
    last = (name for run in runs if run.saved.rows for name in run.saved.rows[-1].metrics)
    return [name for name in dict.fromkeys(last) if name not in ("loss", "accuracy")][:METRICS]


class Html(str):
    """Text that is markup already. Any other text in a cell is escaped."""

    __slots__ = ()


def answer_section(runs: Sequence["Described"], overview: Overview | None) -> str:
    """The first thing on a page: which rule won, by how much, and who was waited for."""
    first = "" if overview is None or not overview.sentences else escape(overview.sentences[0])
    said = f"<p class=first>{first}</p>" if first else '<p class=first id="verdict" aria-live="polite"></p>'
    found = [each for each in map(_waited, range(len(runs)), runs) if each]
    left = len(found) - WAITED
    more = [f"and {left} more run{'s' * (left > 1)}: see Stragglers, below"] if left > 0 else []
    waited = "".join(f"<li>{each}</li>" for each in (*found[:WAITED], *more))
    who = f"<h3>Who was waited for</h3><ul class=waited>{waited}</ul>" if waited else ""
    return f"<section id=answer aria-label='In short'><h2>In short</h2><div class=said>{said}</div>{who}</section>"


def _waited(number: int, run: "Described") -> str:
    """How long the workers of a run waited, and for whom most."""
    sums, updates = run.picture.workers, run.measures.updates
    if not sums or not updates:
        return ""
    idle = f"workers waited {run.measures.idle_share:.0%} of their time"
    last = max(sums, key=lambda worker: (sums[worker].held_up, sums[worker].waited_for))
    if sums[last].waited_for:
        share = sums[last].waited_for / updates
        idle += f", most for worker {last}: it came last in {share:.0%} of the updates"
        idle += f", and held the others up for {sums[last].held_up:,.3g} s"
    else:
        idle += "; no update waited for anybody"
    return f'<span class="swatch run{number}"></span><b>{escape(run.name)}</b>: {escape(idle)}.'


def overview_section(overview: Overview) -> str:
    """The table of a comparison, and what is to be said about it besides the first sentence, which is on top."""
    said = "".join(f"<p>{escape(each)}</p>" for each in overview.sentences[1:])
    body = "".join(f"<tr>{cells(overview.headings, row)}</tr>" for row in overview.rows)
    table = f"<table class=cards><thead><tr>{_heads(overview.headings)}</tr></thead><tbody>{body}</tbody></table>"
    notes = "".join(f"<p class=note>{escape(each)}</p>" for each in overview.notes)
    return (
        f"<section id=overview><h2>{escape(overview.title)}</h2>{scrolled(table, overview.title)}"
        f"<div class=said>{said}</div>{notes}</section>"
    )


def scrolled(table: str, name: str) -> str:
    """A table that may be wider than the screen: the keyboard can scroll it, and a reader is told what it is."""
    return f'<div class=scroll role=region tabindex=0 aria-label="{escape(name)}">{table}</div>'


SETTINGS = ("optimizer", "learning rate", "batch size", "model", "data", "seed")


def settings_section(runs: Sequence["Described"]) -> str:
    """What each run was made of; once, where it is the same for all."""
    found = [_settings(run.saved.config) for run in runs]
    known = [name for name in SETTINGS if any(each[name] for each in found)]
    if not known:
        return ""
    same = [name for name in known if len({each[name] for each in found}) == 1]
    body = "".join(
        f"<dt>{name}</dt><dd>{escape(found[0][name])}</dd>"
        if name in same
        else f"<dt>{name}</dt><dd>{_by_run(runs, [each[name] for each in found])}</dd>"
        for name in known
    )
    return f"<h3>Settings</h3><dl class=settings>{body}</dl>"


def _by_run(runs: Sequence["Described"], values: Sequence[str]) -> str:
    return "".join(
        f'<span data-run="{number}"><span class="swatch run{number}"></span>{escape(value or "–")}</span>'
        for number, (_, value) in enumerate(zip(runs, values, strict=True))
    )


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a run in words; empty where its directory does not tell."""
    kept = config.get("settings")
    told = kept if isinstance(kept, Mapping) else {}
    model, data = (each if isinstance(each := told.get(name), Mapping) else {} for name in ("model", "data"))
    test = f", {_words(data['test_samples'])} to test" if "test_samples" in data else ""
    return {
        "optimizer": spell(told["optimizer"]) if "optimizer" in told else "",
        "learning rate": _words(told.get("learning_rate")),
        "batch size": _words(config.get("batch_size")),
        "model": f"{_words(model.get('kind'))}, {_words(model.get('parameters'))} parameters" if model else "",
        "data": f"{_words(data.get('kind'))}, {_words(data.get('samples'))} samples{test}" if data else "",
        "seed": _words(config.get("seed")),
    }


def _words(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else spell(value)


def runs_table(runs: Sequence["Described"], curves: Iterable[str]) -> str:
    """One row a run. The script fills in the time to the target, an accuracy, which the reader may change.

    curves  what has a curve: without a loss or an accuracy there are no columns for them
    """
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
        *(names := metric_names(runs)),
        *(["training / relabelling / messages"] if apart else []),
    )
    absent = {"loss", "accuracy"}.difference(curves)
    absent |= {"time to target"} if "accuracy" in absent else set()
    kept = [place for place, heading in enumerate(headings) if heading not in absent]
    headings = tuple(headings[place] for place in kept)
    rows = [[*_run_cells(number, run, names, apart)] for number, run in enumerate(runs)]
    body = "".join(
        f'<tr data-run="{number}">{cells(headings, [row[place] for place in kept])}</tr>'
        for number, row in enumerate(rows)
    )
    problems = "".join(
        f"<p class=problem>{escape(run.name)}: {escape(run.saved.problem)}</p>" for run in runs if run.saved.problem
    )
    return f"<table class=cards><thead><tr>{_heads(headings)}</tr></thead><tbody>{body}</tbody></table>{problems}"


def _run_cells(number: int, run: "Described", names: Sequence[str], apart: bool) -> Iterable[str]:
    measures, saved = run.measures, run.saved
    last = saved.rows[-1] if saved.rows else None
    rule = "" if run.name.startswith(run.words) else escape(_shortened(run.words))
    yield Html(
        f'<span class="swatch run{number}"></span><b>{escape(run.name)}</b>'
        f'<span class=strategy title="{escape(saved.strategy)}">{rule}</span>'
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
    for name in names:
        value = last.metrics.get(name, math.nan) if last else math.nan
        yield f"{value:.4g}" if math.isfinite(value) else "–"
    if apart:
        yield f"{measures.compute:,.1f} / {measures.relabelling:,.1f} / {measures.transfer:,.1f} s"


def straggler_tables(runs: Sequence["Described"]) -> str:
    """For each run: who was waited for, how long, and what was wasted; the one that cost most first."""
    return "".join(
        f'<details data-run="{number}"{" open" * (number == 0 or len(runs) <= 3)}>'
        f'<summary><span class="swatch run{number}"></span>{escape(run.name)}</summary>{_stragglers(run)}</details>'
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
        f"<tr>{cells(headings, _worker_cells(run, worker, sums[worker], times[worker]))}</tr>"
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


def cells(headings: Iterable[str], cells: Iterable[str]) -> str:
    return "".join(
        f'<td data-label="{escape(heading)}">{cell if isinstance(cell, Html) else escape(cell)}</td>'
        for heading, cell in zip(headings, cells, strict=True)
    )


def _shortened(text: str, most: int = 90) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
