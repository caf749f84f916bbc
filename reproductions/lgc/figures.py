"""The figures of the reproduction of live compensation, drawn from the runs of its card."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from paceline.look import DIM, SERIES, colour, family, lines, tidy
from reproductions.lgc.late import LOW
from reproductions.lgc.plan import FULL
from reproductions.lgc.timing import PERIODS, QUORUM, QUORUMS, TIME_MODELS, WORKERS, expected_saving
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import seeds_in_words
from reproductions.pipeline.figures import Drawing, blank

Row = Mapping[str, Any]
LABELS = {"full": "Full-SGD", "k": "K-SGD", "lgc": "LGC-SGD"}
RULES = {"full": "ssgd", "k": f"k-sgd:quorum={QUORUM}", "lgc": f"lgc:quorum={QUORUM}"}
LOOKS = dict(zip(RULES, lines([*RULES.values()], markers=False), strict=True))
MARKS = {method: family(rule).marker for method, rule in RULES.items()}
MODELS = {"vgg": "VGG-11, 1/8 width", "lenet": "LeNet"}


def draw(card: Card) -> dict[str, Drawing]:
    """All that the card has the runs for."""
    timing = [row for row in card.runs if row["kind"] == "timing"]
    training = [row for row in card.runs if row["kind"] == "training"]
    chosen = {model: each["shared"] for model, each in card.settings["learning_rates"].items()}
    shared = [row for row in training if row["learning_rate"] == chosen[row["model"]]]
    if card.settings["plan"] == FULL.name:
        whole = [row for row in shared if row["epochs"] == FULL.size.epochs]
        gaps = [row for row in card.runs if row["kind"] == "gap"]
        return {"lgc-full.png": full_figure(whole, gaps), "lgc-full.md": full_table(whole)}
    return {
        "lgc-timing.png": _timing(timing),
        "lgc-accuracy.png": _accuracy(shared),
        "lgc-convergence.png": _convergence(shared, next(iter(chosen))),
        "lgc-frontier-partial.png": _frontier_and_partial(shared),
    }


AT_LENGTH = {  # at c = 3, h = 10: method and what late workers do
    ("full", "complete"): "Full-SGD",
    ("k", "complete"): "K-SGD, 7 of 10",
    ("lgc", "complete"): "LGC-SGD, late workers complete their batch in no time",
    ("lgc", "block"): "LGC-SGD, late workers end a block",
    ("lgc", "finish"): "LGC-SGD, late workers finish their batch",
}


LATE = {"complete": "complete in no time", "block": "end a block", "finish": "finish"}


def full_figure(rows: Sequence[Row], gaps: Sequence[Row] = ()) -> Figure | None:
    """At the paper's length: test accuracy and training loss against time, and how far below Full-SGD methods end."""
    usual = [row for row in rows if row["quorum"] in (QUORUM, WORKERS) and row["blocks_done"] == "4"]
    mine: dict[tuple[str, str], list[Row]] = {}
    for row in usual:
        if (row["c"], row["h"]) == (3, 10):
            mine.setdefault((row["method"], row["late"]), []).append(row)
    drawn = [key for key in AT_LENGTH if key in mine]
    if not drawn:
        return None
    figure = blank(10, 8.2)
    panels = figure.subplot_mosaic([["accuracy", "loss"], ["gaps", "gaps"]], height_ratios=(3, 2))
    for key, style in zip(drawn, lines([RULES[method] for method, _ in drawn]), strict=True):
        for name, column, times in (("accuracy", 3, 100.0), ("loss", 2, 1.0)):
            _means_and_ranges(panels[name], mine[key], column, times, label=AT_LENGTH[key], **style)
    seeds = seeds_in_words(max(map(len, mine.values())))
    tidy(panels["accuracy"], f"LeNet, c=3, h=10, {seeds}: means and ranges", "virtual seconds", "test accuracy, %")
    panels["loss"].set_yscale("log")
    panels["loss"].axhline(LOW, color=DIM, linewidth=0.9, linestyle=(0, (2, 2)))
    tidy(panels["loss"], f"the same; dotted: {LOW:g}", "virtual seconds", "training loss (logarithmic)")
    _gaps(panels["gaps"], gaps)
    handles, labels = panels["accuracy"].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=9)
    return figure


def _means_and_ranges(axis: Any, rows: Sequence[Row], column: int, times: float, **style: Any) -> None:
    """One column of the curves of several seeds, which are evaluated after as many updates."""
    curves = [[point for point in row["curve"] if point[column] is not None][1:] for row in rows]
    seconds = np.mean([[point[1] for point in curve] for curve in curves], axis=0)
    values = np.array([[times * point[column] for point in curve] for curve in curves])
    axis.plot(seconds, values.mean(axis=0), **style)
    axis.fill_between(seconds, values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, linewidth=0)


def full_table(rows: Sequence[Row]) -> str | None:
    """What each method came to at the paper's length, the means of its seeds."""
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        method = LABELS[row["method"]] + ("" if row["method"] == "full" else f", {row['quorum']} of {WORKERS}")
        if row["blocks_done"] != "4":
            method += f", {row['blocks_done']} of 4 blocks{'' if row['scaled'] else ', not scaled'}"
        late = "–" if row["method"] == "full" else LATE[row["late"]]
        kinds.setdefault((row["c"], row["h"], method, late), []).append(row)
    if not kinds:
        return None
    lines = [
        "| classes a worker | h | method | late workers | seeds | virtual seconds | test accuracy, % "
        "| training accuracy, % | training loss |",
        "|" + "---|" * 9,
    ]
    for (c, h, method, late), mine in sorted(kinds.items(), key=lambda kind: (kind[0][:2], kind[0][2])):
        means = {what: fmean(row[what] for row in mine) for what in ("seconds", "test_accuracy", "train_accuracy")}
        cells = [c, "–" if method == LABELS["full"] else h, method, late, len(mine), f"{means['seconds']:,.0f}"]
        cells += [f"{100 * means[what]:.1f}" for what in ("test_accuracy", "train_accuracy")]
        cells.append(f"{fmean(row['train_loss'] for row in mine):.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _gaps(axis: Any, gaps: Sequence[Row]) -> None:
    """Points below Full-SGD for each (c, h) that was run, with their intervals."""
    places = sorted({(row["c"], row["h"], row["seeds"]) for row in gaps})
    for number, method in enumerate(("k", "lgc")):
        mine = {(row["c"], row["h"], row["seeds"]): row for row in gaps if row["method"] == method}
        at = [place + (number - 0.5) * 0.16 for place, key in enumerate(places) if key in mine]
        points = [mine[key]["points"] for key in places if key in mine]
        reach = [
            [abs(mine[key][end] - mine[key]["points"]) for key in places if key in mine] for end in ("low", "high")
        ]
        axis.errorbar(
            at, points, reach, fmt=MARKS[method], color=LOOKS[method]["color"], capsize=3, label=LABELS[method]
        )
    axis.axhline(0, color=DIM, linewidth=0.9)
    axis.set_xticks(range(len(places)), [f"c={c}, h={h}\n{seeds_in_words(seeds)}" for c, h, seeds in places])
    axis.set_xlim(-0.5, max(len(places) - 0.5, 0.5))
    title = "at the end: 95 % intervals over the seeds, or of one seed over the test samples"
    tidy(axis, title, "", "points below Full-SGD")
    axis.legend(frameon=False, fontsize=9)


def _timing(rows: Sequence[Row]) -> Figure:
    figure = blank(10, 4)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    quorums = range(5, WORKERS + 1)
    left.plot(quorums, [expected_saving(quorum) for quorum in quorums], color="0.4", label="order statistics, exact")
    simulated = [_saving(rows, "ideal", 1, quorum) for quorum in QUORUMS]
    left.plot(QUORUMS, simulated, "o", color=colour(RULES["k"]), label="simulated (ideal, h=1)")
    tidy(left, "Time saved by waiting for K of 10", "K", "saving, % of Full-SGD's time")
    left.legend(frameon=False, fontsize=9)
    for number, h in enumerate(PERIODS):
        saved = [_saving(rows, model, h) for model in TIME_MODELS]
        places = [place + (number - 1) * 0.27 for place in range(len(TIME_MODELS))]
        bars = right.bar(places, saved, width=0.25, color=SERIES[number], label=f"h={h}")
        right.bar_label(bars, fmt="%.0f", fontsize=8)
    right.axhline(35, color=DIM, linewidth=0.9, linestyle=(0, (2, 2)), label="the paper: ~35 %")
    names = [model.replace("k_", "K-SGD\n").replace("_", "\n") for model in TIME_MODELS]
    right.set_xticks(range(len(TIME_MODELS)), names, fontsize=9)
    tidy(right, "K=7: what late workers do decides", "", "saving, %")
    right.set_ylim(0, 48)
    right.legend(frameon=False, fontsize=9, ncols=4, loc="upper center")
    return figure


def _saving(rows: Sequence[Row], model: str, h: int, quorum: int = QUORUM) -> float:
    """The mean over the repeats."""
    wanted = (model, h, quorum, 0)
    those = [row for row in rows if (row["time_model"], row["h"], row["quorum"], row["warm_up"]) == wanted]
    return fmean(row["saving_percent"] for row in those)


def _accuracy(rows: Sequence[Row]) -> Figure:
    """Test accuracy by classes a worker (the paper's Fig. 3): a row of panels for each model, a panel for each h."""
    usual = [row for row in rows if row["quorum"] in (QUORUM, WORKERS) and row["blocks_done"] == "4"]
    models = list(dict.fromkeys(row["model"] for row in usual))
    periods = sorted({row["h"] for row in usual})
    figure = blank(1.5 + 3.3 * len(periods), 0.6 + 3.1 * len(models))
    panels = figure.subplots(len(models), len(periods), squeeze=False, sharey="row")
    for down, model in enumerate(models):
        for across, h in enumerate(periods):
            axis = panels[down][across]
            for method in LABELS:
                h_of = 10 if method == "full" else h
                mine = [r for r in usual if (r["model"], r["method"], r["h"]) == (model, method, h_of)]
                _by_classes(axis, mine, method)
            tidy(axis, f"{MODELS[model]}, h={h}", "classes of a worker, c", "" if across else "test accuracy, %")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _by_classes(axis: Any, rows: Sequence[Row], method: str) -> None:
    classes = sorted({row["c"] for row in rows})
    places = {c: place for place, c in enumerate((1, 2, 3, 10))}
    means = [fmean(100 * row["test_accuracy"] for row in rows if row["c"] == c) for c in classes]
    axis.plot([places[c] for c in classes], means, marker=MARKS[method], label=LABELS[method], **LOOKS[method])
    for row in rows:
        axis.plot(places[row["c"]], 100 * row["test_accuracy"], ".", color=LOOKS[method]["color"], alpha=0.4)
    axis.set_xticks(list(places.values()), [str(c) for c in places])


def _convergence(rows: Sequence[Row], model: str) -> Figure:
    """Training loss against updates and time at c = 3, h = 10 (Fig. 4)."""
    figure = blank(10, 3.8)
    panels = figure.subplots(1, 2, sharey=True)
    for row in rows:
        if (row["model"], row["c"], row["h"], row["blocks_done"]) != (model, 3, 10, "4") or (
            row["quorum"] != (WORKERS if row["method"] == "full" else QUORUM)
        ):
            continue
        first = row["seed"] == min(each["seed"] for each in rows)
        for axis, column in zip(panels, (0, 1), strict=True):
            axis.plot(
                [point[column] for point in row["curve"]], [point[2] for point in row["curve"]],
                label=LABELS[row["method"]] if first else None, alpha=1 if first else 0.4, **LOOKS[row["method"]],
            )  # fmt: skip
    tidy(panels[0], f"{MODELS[model]}, c=3, h=10", "updates", "loss on 1,000 training samples")
    tidy(panels[1], "the same against virtual time (ideal)", "virtual seconds", "")
    panels[0].legend(frameon=False)
    return figure


def _frontier_and_partial(rows: Sequence[Row]) -> Figure | None:
    """Loss and time for every K (Fig. 5), and accuracy for partial work (Fig. 6); c = 3, h = 10."""
    partial = [row for row in rows if row["blocks_done"] != "4"]
    if not partial:
        return None
    model = partial[0]["model"]
    seeds = {row["seed"] for row in partial}
    mine = [r for r in rows if (r["model"], r["c"], r["h"]) == (model, 3, 10) and r["seed"] in seeds]
    figure = blank(10, 4.2)
    left, right = figure.subplots(1, 2)
    _frontier(left, [row for row in mine if row["blocks_done"] == "4"])
    tidy(left, f"{MODELS[model]}, c=3, h=10: K=5 to 10", "virtual seconds (ideal)", "training loss at the end")
    left.legend(frameon=False, fontsize=9)
    _partial(right, [row for row in mine if row["method"] == "lgc" and row["quorum"] == QUORUM])
    tidy(right, "LGC-SGD, K=7: partial work", "blocks that late workers get done, r of 4", "test accuracy, %")
    return figure


def _frontier(axis: Any, rows: Sequence[Row]) -> None:
    everybody = [row for row in rows if row["method"] == "full"]
    for method in ("k", "lgc"):
        of_method = [row for row in rows if row["method"] == method] + everybody
        quorums = sorted({row["quorum"] for row in of_method})
        points = []
        for quorum in quorums:
            those = [row for row in of_method if row["quorum"] == quorum]
            points.append([fmean(row[what] for row in those) for what in ("seconds", "train_loss", "test_accuracy")])
        axis.plot(
            [p[0] for p in points], [p[1] for p in points], marker=MARKS[method], label=LABELS[method], **LOOKS[method]
        )
        for quorum, (seconds, loss, accuracy) in zip(quorums, points, strict=True):
            if quorum < WORKERS or method == "lgc":
                below = method == "lgc" and QUORUMS[0] < quorum < WORKERS  # close together: slanted
                axis.annotate(
                    f"K={quorum} {100 * accuracy:.0f} %", (seconds, loss), xytext=(2, -3) if below else (4, 4),
                    textcoords="offset points", fontsize=8, rotation=-60 if below else 0,
                    verticalalignment="top" if below else "baseline",
                )  # fmt: skip
        axis.margins(x=0.14, y=0.2)


def _partial(axis: Any, rows: Sequence[Row]) -> None:
    parts = ("1", "2", "3", "4", "uniform")
    for number, scaled in enumerate((True, False)):
        values = [
            fmean(100 * row["test_accuracy"] for row in rows if row["blocks_done"] == done and row["scaled"] in which)
            for done in parts
            for which in [(scaled, True) if done == "4" else (scaled,)]
        ]
        places = [place + (number - 0.5) * 0.38 for place in range(len(parts))]
        bars = axis.bar(places, values, 0.36, color=SERIES[number], label="scaled" if scaled else "not scaled")
        axis.bar_label(bars, fmt="%.1f", fontsize=8)
    axis.set_xticks(range(len(parts)), parts)
    axis.set_ylim(0, 1.3 * max(100 * row["test_accuracy"] for row in rows))
    axis.legend(frameon=False, fontsize=9, ncols=2, loc="upper center")
