"""Runs as one HTML file that needs nothing else: tables, curves, the timeline of the workers, staleness, stragglers.

Everything that comes from files is escaped. The page forbids itself any request, and any script but those that are
named by their SHA-256 in its content security policy: these are Paceline's own, and uPlot (MIT), which draws curves.
"""

import hashlib
import json
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from paceline import __version__
from paceline.engine.loop import seldom_collecting
from paceline.pruning.record import read_pruning
from paceline.reports.picture import Picture, PictureReader, WorkerSums, gather
from paceline.storage.description import spell
from paceline.storage.reading import SavedRun
from paceline.trace.measure import MeasureReader, Measures, WorkerTime
from paceline.trace.timeline import KINDS

MARKS = 12_000  # of one run's timeline: some 0.3 MB
WORKERS = 64  # rows of one run's timeline
POINTS = 1_000  # of one curve
BINS = 40  # of one histogram
METRICS = 6  # besides loss and accuracy
STRAGGLERS = 32  # rows of one run's table
THEME = (
    'document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";'
)


@dataclass(frozen=True)
class Described:
    """A run, and what its trace says."""

    name: str
    saved: SavedRun
    measures: Measures
    picture: Picture
    drawn: Sequence[int]  # the workers whose timeline is drawn


def describe(name: str, saved: SavedRun, *, marks: int = MARKS) -> Described:
    """Read a run's trace."""
    about = saved.trace.about
    drawn = spread(range(int(about.get("workers", 0))), WORKERS)
    measuring, drawing = MeasureReader(about), PictureReader(marks, frozenset(drawn))
    with seldom_collecting():
        history = saved.trace.follow(measuring, drawing)
        measures, picture = measuring.measures(history), drawing.picture(history, saved.stopped_at)
        everybody = spread([each.worker for each in measures.workers], WORKERS)
        if everybody != drawn:  # more workers came than the first line tells of
            drawn = everybody
            picture = gather(saved.trace, limit=marks, workers=frozenset(drawn), end=saved.stopped_at)
    return Described(name, saved, measures, picture, drawn)


def spread(values: Sequence[int], most: int) -> list[int]:
    """All values, or as many as allowed, evenly spread."""
    if len(values) <= most:
        return list(values)
    return [values[number * len(values) // most] for number in range(most)]


@dataclass(frozen=True)
class Overview:
    """What a page says above its runs: sentences, a table, and notes below it."""

    title: str
    sentences: Sequence[str]
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def page(runs: Sequence[Described], overview: Overview | None = None) -> str:
    """The whole file."""
    shown = {span.kind for run in runs for span in run.picture.spans}
    kinds = [kind for kind in KINDS if kind in shown]
    names = metric_names(runs)
    details = [_data(run, kinds, names) for run in runs]
    curves = _curves(details, names)
    data = {"kinds": kinds, "clock": _clock(runs), "curves": curves, "runs": details}
    parts = {
        "title": escape(overview.title if overview is not None else ", ".join(run.name for run in runs)),
        "subtitle": escape(_subtitle(runs)),
        "overview": "" if overview is None else overview_section(overview),
        "runs-table": runs_table(runs, curves),
        "curves": _figures(curves),
        "settings": settings_section(runs),
        "limits": "".join(f"<p class=note>{escape(text)}</p>" for run in runs for text in limits(run)),
        "pruning": _pruning(runs),
        "stragglers": straggler_tables(runs),
        "data": script_safe(json.dumps(data, separators=(",", ":"), allow_nan=False)),
        "style": _asset("uPlot.min.css") + _asset("report.css"),
        "licence": escape(_asset("uPlot.LICENSE")),
        "theme": THEME,
        "library": _asset("uPlot.iife.min.js"),
        "script": "\n".join(map(_asset, ("charts.js", "timeline.js", "report.js"))),
    }
    parts["allowed"] = " ".join(_source_hash(parts[name]) for name in ("theme", "library", "script"))
    pieces = _asset("report.html").split("@@")  # text, name, text, name, ..., text
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _pruning(runs: Sequence[Described]) -> str:
    """The section on pruned samples. Without any, matplotlib is not imported."""
    pruned = {number: saved for number, run in enumerate(runs) if (saved := read_pruning(run.saved.path)) is not None}
    if not any(saved.record.passes for saved in pruned.values()):
        return ""
    from paceline.reports.pruning import pruning_section

    return pruning_section({number: (runs[number].name, saved) for number, saved in pruned.items()})


def _source_hash(script: str) -> str:
    """What a content security policy calls a script by."""
    return f"'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def script_safe(text: str) -> str:
    """JSON that can stand inside a script element, whatever strings it holds."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def limits(run: Described) -> list[str]:
    """What is known of a run only in part, and what the page leaves out of its timeline, in words."""
    picture, left_out = run.picture, [f"{run.name}: {note}" for note in run.saved.trace.about.get("notes", ())]
    if math.isfinite(picture.until):
        left_out.append(
            f"{run.name}: the timeline shows the first {picture.until:,.1f} of {picture.end:,.1f} seconds; "
            "tables and histogram cover the whole run."
        )
    if len(run.drawn) < len(run.measures.workers):
        left_out.append(
            f"{run.name}: the timeline shows {len(run.drawn)} of {len(run.measures.workers):,} workers, evenly chosen."
        )
    return left_out


def _asset(name: str) -> str:
    return (files("paceline.reports") / "assets" / name).read_text(encoding="utf-8")


def _clock(runs: Sequence[Described]) -> str:
    clocks = {str(run.saved.trace.about.get("clock", "")) for run in runs}
    return "virtual seconds" if clocks == {"virtual"} else "seconds"


def _subtitle(runs: Sequence[Described]) -> str:
    fleets = sorted({len(run.measures.workers) for run in runs})
    workers = " or ".join(f"{number:,}" for number in fleets)
    count = "one run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"{count}, {workers} worker{'s' * (fleets != [1])}, {_clock(runs)} · Paceline {__version__}"


def metric_names(runs: Sequence[Described]) -> list[str]:
    """The metrics of the runs' last evaluations besides loss and accuracy, in their order; the first few."""
    last = (name for run in runs if run.saved.rows for name in run.saved.rows[-1].metrics)
    return [name for name in dict.fromkeys(last) if name not in ("loss", "accuracy")][:METRICS]


def _curves(details: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, str]:
    """The names of the curves to draw: what no evaluation of any run returned has none."""
    known = {"loss": "loss", "accuracy": "accuracy"} | {f"metric{place}": name for place, name in enumerate(names)}
    return {
        key: name
        for key, name in known.items()
        if any(value is not None for each in details for value in each["curves"][key])
    }


def _figures(curves: Mapping[str, str]) -> str:
    if not curves:
        return "<p class=note>No evaluation returned a number.</p>"
    return "".join(
        f"<figure><figcaption>{escape(name.capitalize() if key == name else name)} against {words}</figcaption>"
        f'<div class="chart" id="{key}-{across}"></div></figure>'
        for key, name in curves.items()
        for across, words in (("seconds", "time"), ("updates", "updates"))
    )


def _data(run: Described, kinds: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    rows = run.saved.rows
    kept = spread(range(len(rows)), POINTS)
    if kept and kept[-1] != len(rows) - 1:
        kept.append(len(rows) - 1)
    return {
        "name": run.name,
        "strategy": run.saved.strategy,
        "target": run.saved.target,
        "curves": {
            "seconds": [rows[number].seconds for number in kept],
            "updates": [rows[number].updates for number in kept],
            "loss": [_number(rows[number].loss) for number in kept],
            "accuracy": [_number(rows[number].accuracy) for number in kept],
            **{
                f"metric{place}": [_number(rows[number].metrics.get(name, math.nan)) for number in kept]
                for place, name in enumerate(names)
            },
        },
        "histogram": histogram(run.picture),
        "timeline": _timeline(run, kinds),
    }


def histogram(picture: Picture) -> dict[str, Any]:
    """How many contributions were how stale: counts for bins of equal ``width``, from 0 on."""
    width = max(picture.staleness, default=0) // BINS + 1
    counts = [0] * (max(picture.staleness, default=-1) // width + 1)
    for staleness, count in picture.staleness.items():
        counts[staleness // width] += count
    return {"width": width, "counts": counts}


def _timeline(run: Described, kinds: Sequence[str]) -> dict[str, Any]:
    picture = run.picture
    digits = 7 - math.ceil(math.log10(picture.end)) if picture.end > 0 else 0
    place = {worker: row for row, worker in enumerate(run.drawn)}
    rows: list[list[float]] = [[] for _ in run.drawn]
    for span in picture.spans:
        ticket = -1 if span.ticket is None else span.ticket
        staleness = -1 if span.staleness is None else span.staleness
        start, end = round(span.start, digits), round(span.end, digits)
        rows[place[span.worker]] += [start, end, kinds.index(span.kind), ticket, staleness]
    return {
        "end": round(picture.end, digits),
        "until": round(picture.until, digits) if math.isfinite(picture.until) else None,
        "workers": list(run.drawn),
        "rows": rows,
        "updates": [
            [
                round(each.at, digits),
                each.number,
                len(each.workers),
                -1 if each.waited_for is None else each.waited_for,
                [place[worker] for worker in each.workers if worker in place],
            ]
            for each in picture.updates
        ],
        "recalls": [[round(each.at, digits), place[each.worker]] for each in picture.recalls],
    }


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


class Html(str):
    """Text that is markup already. Any other text in a cell is escaped."""

    __slots__ = ()


def overview_section(overview: Overview) -> str:
    """The verdict in words, and the table that it rests on."""
    first, *rest = overview.sentences or [""]
    said = f"<p class=first>{escape(first)}</p>" + "".join(f"<p>{escape(each)}</p>" for each in rest)
    body = "".join(f"<tr>{cells(overview.headings, row)}</tr>" for row in overview.rows)
    table = f"<table class=cards><thead><tr>{_heads(overview.headings)}</tr></thead><tbody>{body}</tbody></table>"
    notes = "".join(f"<p class=note>{escape(each)}</p>" for each in overview.notes)
    return (
        f"<section id=overview><h2>Verdict</h2><div class=said>{said}</div><h3>{escape(overview.title)}</h3>"
        f"<div class=scroll>{table}</div>{notes}</section>"
    )


SETTINGS = ("optimizer", "learning rate", "batch size", "model", "data", "seed")


def settings_section(runs: Sequence[Described]) -> str:
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


def _by_run(runs: Sequence[Described], values: Sequence[str]) -> str:
    return "".join(
        f'<span data-run="{number}"><span class="swatch run{number % 7}"></span>{escape(value or "–")}</span>'
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


def runs_table(runs: Sequence[Described], curves: Iterable[str]) -> str:
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


def _run_cells(number: int, run: Described, names: Sequence[str], apart: bool) -> Iterable[str]:
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
    for name in names:
        value = last.metrics.get(name, math.nan) if last else math.nan
        yield f"{value:.4g}" if math.isfinite(value) else "–"
    if apart:
        yield f"{measures.compute:,.1f} / {measures.relabelling:,.1f} / {measures.transfer:,.1f} s"


def straggler_tables(runs: Sequence[Described]) -> str:
    """For each run: who was waited for, how long, and what was wasted; the one that cost most first."""
    return "".join(
        f'<details data-run="{number}"{" open" * (number == 0 or len(runs) <= 3)}>'
        f'<summary><span class="swatch run{number % 7}"></span>{escape(run.name)}</summary>{_stragglers(run)}</details>'
        for number, run in enumerate(runs)
    )


def _stragglers(run: Described) -> str:
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


def _worker_cells(run: Described, worker: int, sums: WorkerSums, times: WorkerTime) -> Iterable[str]:
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
