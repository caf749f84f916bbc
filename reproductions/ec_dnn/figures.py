"""The figures of EC-DNN and its Table 2 in the paper's own layout, from the card."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from paceline.look import SERIES, lines, series, tidy
from reproductions.ec_dnn.long import LONG
from reproductions.ec_dnn.networks import table as network_table
from reproductions.ec_dnn.networks import times
from reproductions.ec_dnn.plan import COMPRESSING, Taus
from reproductions.ec_dnn.training import COSTS
from reproductions.pipeline.card import Card
from reproductions.pipeline.figures import Drawing, blank

Row = Mapping[str, Any]
NAMES = {"ma": "MA-DNN", "e": "E-DNN", "ec_s": "EC-DNN-S", "ec_r": "EC-DNN-R", "ec_m": "EC-DNN-M"}
RULES = {
    "ma": "ma:every=1",
    "ec_s": "ec-dnn-s:every=1",
    "ec_r": "ec-dnn-r:every=1",
    "ec_m": "ec-dnn-m:every=1",
    "e": "e-dnn:steps=1",
}
LOOKS = dict(zip(RULES, lines([*RULES.values()], markers=False), strict=True))
WORSE, BETTER = SERIES[1], SERIES[0]
NETWORKS = {"digits": "MNIST, 1,000 labels", "lenet": "LeNet"}
NOT_RUN = " not run yet | | |"
ON_NETWORKS = (
    "Seconds of a whole run on other networks and for other sizes of model, 4 workers, the first seed (the errors are "
    "those of LeNet):"
)
CASES = {"local": "1: without local training", "diversity": "2: without diversity", None: "3: whole"}


def draw(card: Card) -> dict[str, Drawing]:
    """All that the card has the runs for, and the tables; at length those of each part whose tau is chosen."""
    runs = [row for row in card.runs if row["workers"] > 1]
    lenet = [row for row in runs if row["model"] == "lenet"]
    if card.settings["plan"] == LONG.name:
        return _at_length(card.runs, card.settings["parts"].values())
    taus = Taus(**card.settings["taus"])
    return {
        "ec-dnn-gain.png": _gains(runs),
        "ec-dnn-curves.png": _curves(lenet, taus),
        "ec-dnn-tau-ablation.png": _tau_and_ablation(lenet, taus),
        "ec-dnn-tables.md": tables(card),
    }


def _at_length(rows: Sequence[Row], parts: Iterable[Mapping[str, Any]]) -> dict[str, Drawing]:
    """The curves of a model with the tau that was chosen for it, what each method came to, and the time it takes."""
    drawn: dict[str, Drawing] = {}
    for part in parts:
        (model,) = part["learning_rates"]
        mine = [row for row in rows if row["model"] == model and row["workers"] > 1]
        if part["chosen"] and mine:
            drawn[f"ec-dnn-full-{model}.png"] = _curves(mine, Taus(**part["taus"]), NETWORKS[model], at_length=True)
            told = [f"**{part['plan']}**, {_choices(part)}", _tables(part["table"])]
            if model == "lenet":
                told += [ON_NETWORKS, _on_networks(mine)]
            drawn[f"ec-dnn-full-{model}.md"] = "\n\n".join(each.rstrip("\n") for each in told) + "\n"
    return drawn


def _choices(part: Mapping[str, Any]) -> str:
    (rate,) = part["learning_rates"].values()
    taus = Taus(**part["taus"])
    own = {f"EC-DNN-{method[-1].upper()}": taus.of(method) for method in COMPRESSING}
    told = ", ".join(f"{tau} for {name}" for name, tau in own.items())
    compressing = f"{taus.compressing} for EC-DNN" if len({*own.values()}) == 1 else told
    return f"learning rate {rate:g}, τ = {taus.averaging} for MA-DNN and {compressing}."


def _on_networks(rows: Sequence[Row]) -> str:
    """For every tau that was tried, with the error of the global model; 4 workers, the first seed."""
    first = min(row["seed"] for row in rows)
    tried = [row for row in rows if (row["workers"], row["seed"]) == (4, first) and not row["without"]]
    listed = {}
    for method, name in (("ma", "MA"), ("ec_s", "EC-S"), ("e", "E-DNN")):
        own = [row for row in _usual(tried) if row["method"] == method]
        for row in sorted(own, key=lambda row: row["tau"] or 0):
            tau = f", τ = {row['tau']}" if row["tau"] else ""
            listed[f"{name}{tau} ({100 * row['error_g']:.1f} %)"] = {cost: row["curve"][-1][cost] for cost in COSTS}
    return network_table(times(listed))


def _gains(rows: Sequence[Row]) -> Figure:
    """How much better the global model is than the local ones, at all communications (Figs. 1 and 2)."""
    figure = blank(10, 3.8)
    panels = figure.subplots(1, 2, sharex=True)
    titles = ("averages of parameters (MA-DNN)", "simple ensembles (E-DNN, EC-DNN)")
    found = [
        [
            100 * (fmean(point["errors"]) - point["error" if averaged else "simple_error"])
            for row in rows
            if (row["method"] == "ma") == averaged
            for point in row["curve"]
        ]
        for averaged in (True, False)
    ]
    lowest, highest = (edge(map(edge, found)) for edge in (min, max))
    edges = np.arange(np.floor(lowest), np.ceil(highest) + 1, 1.0)
    for axis, title, gains in zip(panels, titles, found, strict=True):
        counts, _ = np.histogram(gains, edges)
        colours = [WORSE if left < 0 else BETTER for left in edges[:-1]]
        axis.bar(edges[:-1], 100 * counts / len(gains), width=0.92, align="edge", color=colours)
        negative = 100 * fmean(gain < 0 for gain in gains)
        tidy(axis, f"{title}\n{len(gains)} communications, {negative:.0f} % below 0", "Diff_LG, points", "%")
    return figure


def _curves(rows: Sequence[Row], taus: Taus, network: str = "LeNet", *, at_length: bool = False) -> Figure:
    """Test error of the global model against virtual time (Fig. 3): thin lines are seeds, thick ones their means.

    At length both scales are logarithmic: errors differ where they are small, and relabelling takes ten times as long
    as training.
    """
    workers = sorted({row["workers"] for row in rows})
    figure = blank(1 + 4.7 * len(workers), 4.2)
    panels = figure.subplots(1, len(workers), squeeze=False, sharey=True)[0]
    for axis, each in zip(panels, workers, strict=True):
        for method, name in NAMES.items():
            tau = {"ma": taus.averaging, "e": None}.get(method, taus.of(method))
            _lines(axis, _those(rows, method, each, tau), name, LOOKS[method])
        tidy(axis, f"{network}, {each} workers", "virtual seconds", "" if axis is not panels[0] else "test error, %")
        if at_length:
            axis.set(xscale="log", yscale="log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_formatter(StrMethodFormatter("{x:g}"))
                scale.set_minor_formatter(NullFormatter())
    panels[0].legend(frameon=False, fontsize=9)
    return figure


def _those(rows: Sequence[Row], method: str, workers: int, tau: int | None, without: str | None = None) -> list[Row]:
    wanted = (method, workers, tau, without)
    return [row for row in _usual(rows) if (row["method"], row["workers"], row["tau"], row["without"]) == wanted]


def _usual(rows: Iterable[Row]) -> list[Row]:
    """Runs with the paper's own p and mu: those that try others have other times and errors."""
    return [row for row in rows if "relabel" not in row]


def _lines(axis: Any, rows: Sequence[Row], label: str, style: Mapping[str, Any]) -> None:
    if not rows:
        return
    errors = np.array([[100 * point["error"] for point in row["curve"]] for row in rows])
    seconds = np.array([[point["seconds"] for point in row["curve"]] for row in rows])
    for at, error in zip(seconds, errors, strict=True):
        axis.plot(at, error, linewidth=0.7, alpha=0.35, **style)
    axis.plot(seconds.mean(axis=0), errors.mean(axis=0), linewidth=1.8, marker=".", label=label, **style)


def _tau_and_ablation(rows: Sequence[Row], taus: Taus) -> Figure | None:
    """EC-DNN-S with 4 workers: other tau, of one seed (Fig. 5), and parts left out (Fig. 6)."""
    mine = [row for row in rows if row["method"] == "ec_s" and row["workers"] == min(r["workers"] for r in rows)]
    if not any(row["without"] for row in mine):
        return None
    figure = blank(10.4, 4.2)
    left, right = figure.subplots(1, 2, sharey=True)
    seed = min(row["seed"] for row in mine)
    first = [row for row in rows if row["seed"] == seed and row["workers"] == mine[0]["workers"]]
    for number, tau in enumerate(sorted({row["tau"] for row in mine})):
        _lines(left, _those(first, "ec_s", mine[0]["workers"], tau), f"τ = {tau}", series(number))
    _lines(left, _those(first, "e", mine[0]["workers"], None), "E-DNN", {"color": "0.4", "linestyle": "--"})
    tidy(left, f"EC-DNN-S, 4 workers, seed {seed}", "virtual seconds", "test error, %")
    left.legend(frameon=False, fontsize=9)
    for number, (without, name) in enumerate(CASES.items()):
        _lines(right, _those(mine, "ec_s", mine[0]["workers"], taus.compressing, without), name, series(number))
    tidy(right, f"EC-DNN-S, 4 workers, τ = {taus.compressing}", "virtual seconds", "")
    right.legend(frameon=False, fontsize=9)
    return figure


def tables(card: Card) -> str:
    """Error with its spread over the seeds, speed and tau; then what the time went into."""
    return _tables(card.settings["table"])


def _tables(rows: list[Row]) -> str:
    workers = sorted({row["workers"] for row in rows if row["workers"] > 1})
    return f"{_results_table(rows, workers)}\n{_costs_table(rows, workers)}"


def _results_table(rows: list[Row], workers: list[int]) -> str:
    """For each number of workers: error, speed (all that is charged; in brackets, steps alone), tau."""
    lines = ["| |" + "".join(f" K={each}: error, % | speed | τ |" for each in workers)]
    lines.append("|---|" + "---|---|---|" * len(workers))
    for final in ("g", "l"):
        for method, name in NAMES.items():
            cells = "".join(_cell(_entry(rows, method, final, each)) for each in workers)
            lines.append(f"| {name}_{final.upper()} |{cells}")
    for alone in (row for row in rows if row["method"] == "s"):
        lines.append(f"| S-DNN | {_error_and_spread(alone)} |" + " |" * (3 * len(workers) - 1))
    return "\n".join(lines) + "\n"


def _entry(rows: list[Row], method: str, final: str, workers: int) -> Row | None:
    """None if it was not run yet."""
    wanted = (method, final, workers)
    return next((row for row in rows if (row["method"], row["final"], row["workers"]) == wanted), None)


def _cell(row: Row | None) -> str:
    if row is None:
        return NOT_RUN
    chosen = f" [{row['error_validated']:.2f}]" if "error_validated" in row else ""
    speed = f"{row['speed_all']:.2f} ({row['speed_steps']:.2f})"
    return f" {_error_and_spread(row)}{chosen} | {speed} | {row['tau'] or '–'} |"


def _error_and_spread(row: Row) -> str:
    spread = row["spread"]
    return f"{row['error']:.2f}" + ("" if math.isnan(spread) else f" ± {spread:.2f}")


def _costs_table(rows: list[Row], workers: list[int]) -> str:
    """Virtual seconds of a worker, in the whole run."""
    lines = ["| |" + "".join(f" K={each}: steps, s | relabelling, s | messages, s |" for each in workers)]
    lines.append("|---|" + "---|---|---|" * len(workers))
    for method, name in NAMES.items():
        cells = "".join(_costs(_entry(rows, method, "g", each)) for each in workers)
        lines.append(f"| {name} |{cells}")
    return "\n".join(lines) + "\n"


def _costs(row: Row | None) -> str:
    if row is None:
        return NOT_RUN
    return f" {row['compute']:.2f} | {row['relabelling']:.2f} | {row['communication']:.3f} |"
