"""The figures of *Differential Equations for Modeling Asynchronous Algorithms*, and those of docs/theory.md."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from paceline.look import DASHES, DIM, SERIES, colour, series, tidy
from paceline.theory import (
    corollary_4_3,
    critical_step,
    discrete_stationary_variance,
    mean_square_critical_step,
    oscillation_limit,
    recursion_moments,
    stationary_variance,
)
from reproductions.pipeline.card import Card
from reproductions.pipeline.figures import Drawing, blank
from reproductions.sdde.claims import TOY, toy_bounds, toy_moments, toy_sampled
from reproductions.sdde.curved import network_figure
from reproductions.sdde.experiment import DELAY, LR, RATE, SIGMA, THINNED

Rows = Sequence[Mapping[str, Any]]
_tidy = partial(tidy, size=10)
TONES = {"sgd": colour("ssgd"), "asgd": colour("asgd"), "sde": SERIES[2], "sdde": SERIES[2]}


def draw(card: Card) -> dict[str, Drawing]:
    """Those of the paper, and those of docs/theory.md."""
    paths = {row["method"]: row for row in card.runs if row["what"] == "paths"}
    errors = [row for row in card.runs if row["what"] == "error"]
    studied = next((row for row in card.runs if row["what"] == "network"), None)
    filled: dict[str, tuple[float, Callable[[Figure], None]]] = {
        "sdde-paths": (4.0, lambda figure: _paths(figure, paths)),
        "sdde-moments": (4.0, lambda figure: _moments(figure, paths)),
        "sdde-errors": (3.8, lambda figure: _errors(figure, errors)),
        "sdde-bounds": (3.8, _bounds),
        "theory-regimes": (3.4, _regimes),
        "theory-limits": (4.2, _limits),
        "theory-random": (4.0, _random),
        "theory-variance": (4.0, _variance),
    }
    drawings: dict[str, Drawing] = {f"{name}.png": _filled(height, fill) for name, (height, fill) in filled.items()}
    return {**drawings, "sdde-network.png": None if studied is None else network_figure(studied)}


def _filled(height: float, fill: Callable[[Figure], None]) -> Figure:
    figure = blank(10, height)
    fill(figure)
    return figure


def _paths(figure: Figure, paths: Mapping[str, Mapping[str, Any]]) -> None:
    """Fig. 1 (a) and (b): one path of each, and where 95 % of them are."""
    axes = figure.subplots(1, 2, sharey=True)
    for axis, letter, algorithm, equation in zip(axes, "ab", ("asgd", "sgd"), ("sdde", "sde"), strict=True):
        row = paths[equation]
        mean, spread = np.array(row["exact_mean"]), 1.96 * np.sqrt(row["exact_variance"])
        places = THINNED * np.arange(len(mean))
        axis.fill_between(places, mean - spread, mean + spread, color="0.85", label="95 %, exact", linewidth=0)
        for number, name in enumerate((algorithm, equation)):
            path = paths[name]["first_path"]
            axis.plot(
                THINNED // 2 * np.arange(len(path)), path, color=TONES[name], linewidth=1.1,
                linestyle=DASHES[number], label=f"{name.upper()}, one path",
            )  # fmt: skip
        _tidy(
            axis, f"({letter}) {algorithm.upper()} and {equation.upper()}", "iterations", "x" if letter == "a" else ""
        )
        axis.legend(frameon=False)
        inset = axis.inset_axes((0.42, 0.22, 0.55, 0.36))
        for number, name in enumerate((algorithm, equation)):
            path = paths[name]["first_path"][-120:]
            inset.plot(
                2000 - THINNED // 2 * np.arange(len(path))[::-1], path, color=TONES[name], linewidth=0.9,
                linestyle=DASHES[number],
            )  # fmt: skip
        inset.tick_params(labelsize=7)
        inset.set_title("the last 600", fontsize=8)


def _moments(figure: Figure, paths: Mapping[str, Mapping[str, Any]]) -> None:
    """Sampled and exact moments of ASGD with real mini-batches and of the SDDE."""
    left, right = figure.subplots(1, 2)
    for name in ("sgd", "asgd", "sdde"):
        row = paths[name]
        places = THINNED * np.arange(len(row["mean"]))
        for axis, what in ((left, "mean"), (right, "variance")):
            axis.plot(places, row[f"exact_{what}"], color=TONES[name], linewidth=1.4, label=f"{name.upper()}, exact")
            axis.plot(places[::4], row[what][::4], ".", markersize=4, color=TONES[name])
    left.plot([], [], ".", markersize=4, color=DIM, label="dots: sampled, in the same colours")
    left.set_xlim(0, 400)
    closed = stationary_variance(RATE, DELAY * LR, LR**0.5 * SIGMA)
    right.axhline(closed, color=DIM, linestyle=(0, (2, 2)), label="closed form of the SDDE")
    right.legend(frameon=False, fontsize=8, loc="lower right", handles=right.lines[-1:])
    _tidy(left, "mean: with a learning rate this small the delay even helps", "iterations", "mean of x")
    _tidy(right, "variance: what the delay costs", "iterations", "variance of x")
    left.legend(frameon=False, fontsize=8)


def _errors(figure: Figure, errors: Rows) -> None:
    """Distance of the SDDE from the algorithm, by updates and by mini-batch."""
    left, right = figure.subplots(1, 2, sharey=True)
    readings = {"mean": "of the means, exact", "coupled": "same Brownian path", "uncoupled": "nothing in common"}
    by_grid = sorted(({row["updates"]: row for row in errors if row["batch_size"] == 1}).values(), key=_updates)
    grid = next(_updates(row) for row in errors if row["batch_size"] > 1)
    by_batch = sorted(({row["batch_size"]: row for row in errors if _updates(row) == grid}).values(), key=_batch)
    for axis, rows, key in ((left, by_grid, _updates), (right, by_batch, _batch)):
        places = [key(row) for row in rows]
        for number, (what, label) in enumerate(readings.items()):
            axis.loglog(
                places, [row[what] for row in rows], marker="o", markersize=4, color=SERIES[number],
                linestyle=DASHES[number], label=label,
            )  # fmt: skip
        bound = 1.5 * rows[0]["uncoupled"] * (places[0] / np.array(places)) ** 0.5
        axis.loglog(places, bound, color="0.6", label="slope -1/2: theorem 3.4")
        axis.set_xticks(places, [str(place) for place in places], minor=False)
        axis.set_xticks([], minor=True)
    _tidy(left, f"E|X - x| at t = 1, delay {DELAY}", "updates K (learning rate 1/K)", "distance")
    _tidy(right, f"the same for K = {grid}", "mini-batch b", "")
    left.legend(frameon=False, fontsize=8)


def _updates(row: Mapping[str, Any]) -> int:
    return int(row["updates"])


def _batch(row: Mapping[str, Any]) -> int:
    return int(row["batch_size"])


def _bounds(figure: Figure) -> None:
    """Corollary 4.3 and theorem 3.1 of Group SGD beside exact values."""
    left, right = figure.subplots(1, 2)
    times, sampled = toy_sampled(1000)
    left.semilogy(times, corollary_4_3(times, **TOY), color=DIM, linestyle=DASHES[1], label="bound of corollary 4.3")
    left.semilogy(times, toy_moments(times), color=SERIES[0], label="exact")
    left.semilogy(times[::4], sampled[::4], ".", color=SERIES[1], label="sampled, 1,000 paths")
    _tidy(left, "falling learning rates 1/k, no delay", "time t", "E |X - x*|^2")
    for name, bound in ((key[0], b) for key, b in toy_bounds().items() if key[1] == 0.02):
        right.semilogy(bound.left, color=colour(name), label=f"{name.upper()}, exact")
        right.semilogy(bound.right, color=colour(name), linestyle=DASHES[2], label="bound of theorem 3.1")
    _tidy(right, "Group SGD, learning rate 0.02", "updates", "E F - F*")
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=8)


def _regimes(figure: Figure) -> None:
    """One delay, four learning rates: from slow to divergent."""
    axes = figure.subplots(1, 4, sharey=True)
    limit, quiet = critical_step(DELAY), oscillation_limit(DELAY)
    for axis, rate, label in zip(
        axes, (quiet, 0.5 * limit, 0.95 * limit, 1.05 * limit),
        ("oscillation limit", "half the critical rate", "5 % below critical", "5 % above critical"), strict=True,
    ):  # fmt: skip
        mean = recursion_moments(rate, DELAY, 0.0, start=1.0, updates=300).mean
        axis.plot(mean, color=SERIES[0] if rate < limit else SERIES[1], linewidth=1.2)
        _tidy(axis, f"{label}\nrate x curvature {rate:.4f}", "updates", "error" if axis is axes[0] else "")
        axis.set_ylim(-2.2, 2.2)


def _limits(figure: Figure) -> None:
    """The critical learning rate by delay, with and without momentum."""
    axis = figure.subplots()
    delays = np.unique(np.geomspace(1, 200, 40).astype(int))
    for number, momentum in enumerate((0.0, 0.5, 0.9, 0.99)):
        limits = [critical_step(int(delay), momentum) for delay in delays]
        axis.loglog(delays, limits, color=SERIES[number], linestyle=DASHES[number], label=f"momentum {momentum:g}")
    for momentum, place in ((0.0, (10, 0.1495)), (0.9, (10, 0.01139))):
        axis.plot(10, critical_step(10, momentum), "o", color="0.2", markersize=5)
        axis.annotate(f"{place[1]:.4g}", place, xytext=(7, 4), textcoords="offset points", fontsize=9)
    axis.set_xticks([1, 2, 5, 10, 20, 50, 100, 200], ["1", "2", "5", "10", "20", "50", "100", "200"])
    _tidy(axis, "largest rate x curvature that is stable in the mean", "delay, updates", "rate x curvature")
    axis.legend(frameon=False)


def _random(figure: Figure) -> None:
    """Random delays with the same mean: either 0 or 20 updates, in any proportion."""
    axis = figure.subplots()
    means = np.linspace(0.5, 19.5, 39)
    mixes = [{0: 1 - mean / 20, 20: mean / 20} for mean in means.tolist()]
    whole = np.arange(1, 21)
    axis.semilogy(whole, [critical_step(int(d)) for d in whole], "o", color="0.3", markersize=4, label="fixed delay")
    axis.semilogy(means, [critical_step(mix) for mix in mixes], color=SERIES[0], label="0 or 20: in the mean")
    axis.semilogy(
        means, [mean_square_critical_step(mix) for mix in mixes], color=SERIES[1], linestyle=DASHES[1],
        label="0 or 20: in mean square",
    )  # fmt: skip
    _tidy(axis, "the mean delay does not decide", "mean delay, updates", "largest stable rate x curvature")
    axis.legend(frameon=False)


def _variance(figure: Figure) -> None:
    """What noise leaves in the end, by the learning rate."""
    axis = figure.subplots()
    for number, (delay, momentum) in enumerate(((0, 0.0), (10, 0.0), (10, 0.5), (10, 0.9))):
        limit = critical_step(delay, momentum)
        rates = np.geomspace(5e-4, 0.995 * limit, 200)
        # sigma = 1 and curvature 1; with momentum the same long-run rate has eta (1 - m)
        values = [discrete_stationary_variance(h, delay, h, momentum) for h in rates.tolist()]
        label = f"delay {delay}, momentum {momentum:g}"
        axis.loglog(
            rates / (1 - momentum), values, **series(number), label=label
        )  # fmt: skip
        axis.axvline(limit / (1 - momentum), color=SERIES[number], linewidth=0.6)
    axis.set_ylim(1e-4, 30)
    _tidy(
        axis,
        "variance that noise keeps up (sigma 1, curvature 1)",
        "learning rate / (1 - momentum)",
        "stationary variance",
    )
    axis.legend(frameon=False)
