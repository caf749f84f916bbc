"""Runs as one HTML file that needs nothing else: tables, curves, the timeline of the workers, staleness, stragglers.

Everything that comes from files is escaped. The page forbids itself any request, and any script but those that are
named by their SHA-256 in its content security policy: these are Paceline's own, and uPlot (MIT), which draws curves.
"""

import hashlib
import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from paceline import __version__, look
from paceline.engine.loop import seldom_collecting
from paceline.pruning.record import read_pruning
from paceline.reports.picture import Picture, PictureReader, gather
from paceline.reports.sections import (
    Overview,
    answer_section,
    metric_names,
    overview_section,
    runs_table,
    scrolled,
    settings_section,
    straggler_tables,
)
from paceline.storage.reading import SavedRun
from paceline.trace.measure import MeasureReader, Measures
from paceline.trace.timeline import KINDS

MARKS = 12_000  # of one run's timeline: some 0.3 MB
WORKERS = 64  # rows of one run's timeline
POINTS = 1_000  # of one curve
BINS = 40  # of one histogram
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
    rule: look.Rule

    @property
    def words(self) -> str:
        """Its rule in words."""
        return look.words(self.rule, len(self.measures.workers) or None)


def describe(name: str, saved: SavedRun, *, rule: look.Rule | None = None, marks: int = MARKS) -> Described:
    """Read a run's trace. ``rule`` decides on its colour; by default it is what the run's directory tells."""
    told = saved.config.get("strategy") if rule is None else rule
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
    return Described(name, saved, measures, picture, drawn, saved.strategy if told is None else told)


def spread(values: Sequence[int], most: int) -> list[int]:
    """All values, or as many as allowed, evenly spread."""
    if len(values) <= most:
        return list(values)
    return [values[number * len(values) // most] for number in range(most)]


def page(runs: Sequence[Described], overview: Overview | None = None) -> str:
    """The whole file."""
    shown = {span.kind for run in runs for span in run.picture.spans}
    kinds = [kind for kind in KINDS if kind in shown]
    names = metric_names(runs)
    details = [_data(run, kinds, names) for run in runs]
    for each, style in zip(details, look.lines([run.rule for run in runs], markers=False), strict=True):
        each["dashes"] = [] if style["linestyle"] == "-" else [2 * length for length in style["linestyle"][1]]
    curves = _curves(details, names)
    data = {"kinds": kinds, "clock": _clock(runs), "curves": curves, "runs": details}
    parts = {
        "title": escape(overview.title if overview is not None else ", ".join(run.name for run in runs)),
        "subtitle": escape(_subtitle(runs)),
        "answer": answer_section(runs, overview),
        "overview": "" if overview is None else overview_section(overview),
        "runs-table": scrolled(runs_table(runs, curves), "Runs"),
        "verdict": "" if overview is None else '<p id="verdict" aria-live="polite"></p>',
        "curves": _figures(curves),
        "settings": settings_section(runs),
        "limits": "".join(f"<p class=note>{escape(text)}</p>" for run in runs for text in limits(run)),
        "pruning": _pruning(runs),
        "stragglers": straggler_tables(runs),
        "data": script_safe(json.dumps(data, separators=(",", ":"), allow_nan=False)),
        "style": _asset("uPlot.min.css") + style_sheet(runs) + _asset("report.css"),
        "licence": escape(_asset("uPlot.LICENSE")),
        "theme": THEME,
        "library": _asset("uPlot.iife.min.js"),
        "script": "\n".join(map(_asset, ("charts.js", "timeline.js", "report.js"))),
    }
    parts["allowed"] = " ".join(_source_hash(parts[name]) for name in ("theme", "library", "script"))
    pieces = _asset("report.html").split("@@")  # text, name, text, name, ..., text
    text = "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))
    return text.encode(errors="replace").decode()  # the name of a directory may be no UTF-8


def style_sheet(runs: Sequence[Described]) -> str:
    """The colours of the runs, by their rules, and of what workers do: on white, and on dark ground."""
    pairs = [(name, *pair) for name, pair in look.KINDS.items()]
    tones = (look.lines([run.rule for run in runs], markers=False, dark=dark) for dark in (False, True))
    pairs += [(f"run{n}", one["color"], two["color"]) for n, (one, two) in enumerate(zip(*tones, strict=True))]
    light, dark = (" ".join(f"--{each[0]}: {each[place]};" for each in pairs) for place in (1, 2))
    classes = " ".join(f".{name} {{ background: var(--{name}); }}" for name, *_ in pairs)
    return f':root {{ {light} }}\n@media not print {{ :root[data-theme="dark"] {{ {dark} }} }}\n{classes}\n'


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
