"""The figures of *Group SGD*, drawn from a card."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, MultipleLocator, PercentFormatter

from paceline import Stop
from paceline.look import DASHES, DIM, colour, line, lines, tidy, words
from reproductions.group_sgd.claims import TOY, TOY_UPDATES
from reproductions.group_sgd.nonconvex import NONCONVEX, RULES
from reproductions.group_sgd.theorem import Toy, theorem_3_1
from reproductions.group_sgd.training import MODELS, STRATEGIES, UNITS, updates_of
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import seeds_in_words
from reproductions.pipeline.figures import Drawing, blank

TASK_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
NAMES = {"svm": "smooth SVM", "logistic": "logistic regression"}
Runs = Sequence[Mapping[str, Any]]


def draw(card: Card) -> dict[str, Drawing]:
    """The paper's Figs 5 to 8, the controls, and the theorem; of the runs at length their losses and accuracies."""
    if card.settings.get("plan") == NONCONVEX.name:
        return {"group-sgd-full.png": _nonconvex([run for run in card.runs if run["kind"] == "training"])}
    seeds = seeds_in_words(len(card.settings["seeds"]))
    filled: dict[str, Callable[[Figure], None]] = {
        "group-sgd-svm": lambda figure: _paper(figure, card.runs, "svm", seeds),
        "group-sgd-logistic": lambda figure: _paper(figure, card.runs, "logistic", seeds),
        "group-sgd-controls": lambda figure: _controls(figure, card.runs, seeds),
        "group-sgd-theorem": lambda figure: _theorem(figure, TOY, TOY_UPDATES),
    }
    drawings: dict[str, Drawing] = {}
    for name, fill in filled.items():
        drawings[f"{name}.png"] = figure = blank(10, 4 if name == "group-sgd-theorem" else 6.8)
        fill(figure)
    return drawings


def _paper(figure: Figure, runs: Runs, model: str, seeds: str) -> None:
    """Loss and accuracy, against updates and against time: the paper's Figs 5 and 7, or 6 and 8."""
    axes = figure.subplots(2, 2)
    mine = [run for run in runs if run["model"] == model and run["rates"] == "paper"]
    for across, abscissa in enumerate(("updates", "units")):
        for down, ordinate in enumerate(("loss", "accuracy")):
            _curves(axes[down][across], mine, abscissa, ordinate)
        axes[1][across].set_xlabel({"updates": "updates (logarithmic)", "units": "units of time"}[abscissa])
        axes[0][across].set_title(f"against {'time' if across else 'updates'}", fontsize=11)
        axes[1][across].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes[1][across].yaxis.set_major_locator(MultipleLocator(0.05))
        axes[1][across].set_ylim(0.7, 0.92)
    axes[0][0].set_ylabel("training loss with penalty (log.)")
    axes[1][0].set_ylabel("test accuracy")
    _finish(figure, axes, f"{NAMES[model]}, the paper's learning rates, {seeds}: means and ranges")


def _controls(figure: Figure, runs: Runs, seeds: str) -> None:
    """Loss against time with learning rates that were chosen by one rule for all."""
    axes = figure.subplots(2, 2)
    for down, model in enumerate(MODELS):
        for across, rule in enumerate(("common", "tuned")):
            axis = axes[down][across]
            mine = [run for run in runs if run["model"] == model and run["rates"] == rule]
            _curves(axis, mine, "units", "loss")
            chosen = {run["strategy"]: run["learning_rate"] for run in mine}
            listed = ", ".join(f"{strategy} {chosen[strategy]:g}" for strategy in STRATEGIES)
            rates = f"one learning rate: {chosen['gsgd']:g}" if rule == "common" else f"tuned: {listed}"
            axis.set_title(f"{NAMES[model]}, {rates}", fontsize=10)
        axes[down][0].set_ylabel("training loss with penalty (log.)")
    for axis in axes[1]:
        axis.set_xlabel("units of time")
    _finish(figure, axes, f"Controls that the paper lacks, {seeds}: means and ranges")


def _nonconvex(runs: Runs) -> Figure | None:
    """Test accuracy of LeNet against time, and the training loss at the end; a line and a row for each rule."""
    tasks = [task for task in TASK_NAMES if any(run["task"] == task for run in runs)]
    if not tasks:
        return None
    figure = blank(10, 0.9 + 3.4 * len(tasks))
    axes = figure.subplots(len(tasks), 2, squeeze=False, width_ratios=(3, 2))
    named = {rule: words(strategy, workers=len(UNITS)) for rule, strategy in RULES.items()}
    styles = dict(zip(RULES, lines([*RULES.values()]), strict=True))
    for (curves, ends), task in zip(axes, tasks, strict=True):
        drawn = [rule for rule in RULES if any((run["task"], run["rule"]) == (task, rule) for run in runs)]
        rows = []
        for place, rule in enumerate(drawn):
            mine = [run for run in runs if (run["task"], run["rule"]) == (task, rule)]
            whole = [run["curve"] for run in mine if len(run["curve"]) == max(len(each["curve"]) for each in mine)]
            values = np.array([[100 * point[3] for point in curve] for curve in whole])
            seconds = [point[0] for point in whole[0]]
            rows.append(f"{named[rule]}\nlearning rate {mine[0]['learning_rate']:g}")
            curves.plot(seconds, values.mean(axis=0), label=named[rule], **styles[rule])
            curves.fill_between(
                seconds, values.min(axis=0), values.max(axis=0), color=styles[rule]["color"], alpha=0.12, linewidth=0
            )
            losses = [run["train_loss"] for run in mine if run["train_loss"] is not None]
            ends.plot(losses, [place] * len(losses), "o", color=styles[rule]["color"], markersize=5)
        ends.set_yticks(range(len(drawn)), rows, fontsize=8)
        ends.invert_yaxis()
        tidy(curves, f"LeNet, {TASK_NAMES[task]}: means and ranges of the seeds", "units of time", "test accuracy, %")
        tidy(ends, "at the end, each seed", "training loss", "")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def _curves(axis: Any, runs: Runs, abscissa: str, ordinate: str) -> None:
    for strategy in STRATEGIES:
        mine = [run for run in runs if run["strategy"] == strategy]
        places = sorted(set.intersection(*(set(run[abscissa]) for run in mine)))
        values = np.array([_seen(run, abscissa, ordinate, places) for run in mine])
        rate = f" (learning rate {mine[0]['learning_rate']:g})" if mine[0]["rates"] == "paper" else ""
        tone = colour(strategy)
        axis.plot(places, values.mean(axis=0), linewidth=1.8, label=strategy.upper() + rate, **line(strategy))
        axis.fill_between(places, values.min(axis=0), values.max(axis=0), color=tone, alpha=0.12, linewidth=0)
    if abscissa == "updates":
        axis.set_xscale("symlog", linthresh=1)
        axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    if ordinate == "loss":
        axis.set_yscale("log")


def _seen(run: Mapping[str, Any], abscissa: str, ordinate: str, places: Sequence[float]) -> list[float]:
    """What was last seen at each place."""
    last = np.searchsorted(run[abscissa], places, side="right") - 1
    return [math.nan if (value := run[ordinate][place]) is None else value for place in last]


def _theorem(figure: Figure, toy: Toy, updates: int) -> None:
    """Exact expectations and the bound, where the theorem applies."""
    axes = figure.subplots(1, len(STRATEGIES), sharey=True, squeeze=False)
    for number, strategy in enumerate(STRATEGIES):
        axis = axes[0][number]
        bound = theorem_3_1([made.move for made in updates_of(strategy, Stop(updates=updates))], toy)
        axis.plot(bound.left, color=colour(strategy), linewidth=1.8, label="expected loss, exact")
        if bound.applies:
            axis.plot(bound.right, color=DIM, linestyle=DASHES[1], linewidth=1.5, label="bound of theorem 3.1")
        gamma = f"gamma {bound.gamma:.4f}" + ("" if bound.applies else " > 1:\nthe theorem does not apply")
        axis.set_title(f"{strategy.upper()}, {gamma}", fontsize=10)
        axis.set_yscale("log")
        axis.set_xlabel("updates")
        axis.legend(frameon=False, fontsize=9)
    axes[0][0].set_ylabel("F(w) - F*  (logarithmic)")
    _style(axes)
    figure.suptitle(f"Theorem 3.1 on F = w²/2, learning rate {toy.lr:g}", fontsize=12)


def _finish(figure: Figure, axes: Any, title: str) -> None:
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    figure.suptitle(title, fontsize=12)
    _style(axes)


def _style(axes: Any) -> None:
    for axis in axes.flat:
        axis.margins(x=0.01)
        tidy(axis)
