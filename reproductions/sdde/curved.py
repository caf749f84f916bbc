"""LeNet's asynchronous SGD beside its delay equation: what is claimed of it, and its figure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from paceline.look import DIM, SERIES, series, tidy
from paceline.theory import critical_step, discrete_stationary_variance
from reproductions.pipeline.claims import Claim, waiting
from reproductions.pipeline.figures import blank
from reproductions.pipeline.verdicts import over_seeds

Study = Mapping[str, Any]
NEAR = 1.25  # times: how far variances may be apart
GROWN = 10.0  # times the predicted deviation at nine tenths of the limit: a path that goes farther has left


def network_claims(study: Study | None) -> list[Claim]:
    """The variance for each learning rate below the limit, and the limit itself."""
    if study is None:
        command = "python -m reproductions sdde --full --data DIR"
        return [waiting("network.limit", "grows above, stays below", "one in ten", command)]
    below = [row for row in study["rows"] if row["share"] < 1]
    return [*(_variance(row) for row in below), _limit(study)]


def _variance(row: Mapping[str, Any]) -> Claim:
    """The mean over the directions of the ratio of variances, with its interval over them."""
    kind = "random" if row["random"] else "fixed"
    name = f"network.variance_ratio.{kind}.{row['share']:g}"
    said, tolerance = "1", f"{1 / NEAR:g} to {NEAR:g}"
    pairs = [(f, p) for f, p in zip(row["found"], row["predicted"], strict=True) if f and p]
    logs = [math.log(f / p) for f, p in pairs]
    found = over_seeds(logs)
    alone = [f / u for f, u in zip(row["found"], row["undelayed"], strict=True) if f and u]
    without = math.exp(float(np.mean(np.log(alone))))
    note = f"{row['share']:.0%} of the largest stable learning rate; {without:.2f} times what it is without a delay"
    if found is None:
        return Claim(name, said, None, tolerance, None, note, "too few directions are stable")
    low, high = math.exp(found.low), math.exp(found.high)
    test = f"geometric mean over {len(logs)} directions, 95 % interval {low:.3g} to {high:.3g}"
    return Claim(name, said, math.exp(found.mean), tolerance, found.within(math.log(NEAR)), note, test)


def _limit(study: Study) -> Claim:
    """Below the limit the sharpest direction stays, above it grows."""
    fixed = [row for row in study["rows"] if not row["random"]]
    stays = {row["share"]: farthest(study, row) <= GROWN for row in fixed}
    ours = ", ".join(f"{share:g} {'stays' if stay else 'grows'}" for share, stay in stays.items())
    right = all(stay == (share < 1) for share, stay in stays.items())
    test = f"farthest along the sharpest direction, above {GROWN:g} predicted deviations at 0.9 of the limit or not"
    note = f"learning rate {study['limit']:.4g} = {critical_step(study['delay']):.4g} / {study['curvatures'][0]:.4g}"
    return Claim("network.limit", "stays below 1, grows above", ours, "one in ten", right, note, test)


def farthest(study: Study, row: Mapping[str, Any]) -> float:
    """In deviations that are predicted at nine tenths of the limit, the largest that are."""
    lr = 0.9 * study["limit"]
    step, noise = lr * study["curvatures"][0], lr * study["deviations"][0]
    deviation = math.sqrt(discrete_stationary_variance(step, study["delay"], noise))
    return float(max(row["sharpest"])) / deviation


def network_figure(study: Study) -> Figure:
    """The spectrum, the variance of every direction, and the sharpest direction against the learning rate."""
    figure = blank(11, 3.9)
    spectrum, variances, sharpest = figure.subplots(1, 3)
    places = np.arange(1, len(study["curvatures"]) + 1)
    spectrum.plot(places, study["curvatures"], "o-", color=SERIES[0], label="curvature")
    spectrum.plot(
        places, np.square(study["deviations"]) * 16, "s--", color=SERIES[1], label="variance of a sample's gradient"
    )
    tidy(spectrum, "LeNet at its minimum", "direction, sharpest first", "curvature; variance of a gradient")
    spectrum.set_ylim(0)
    spectrum.legend(frameon=False, fontsize=8)
    _variances(variances, [row for row in study["rows"] if row["share"] < 1])
    _sharpest(sharpest, study)
    return figure


def _variances(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    for number, row in enumerate(rows):
        pairs = [(p, f) for p, f in zip(row["predicted"], row["found"], strict=True) if p and f]
        label = f"{row['share']:.0%}" + (", random" if row["random"] else "")
        axis.loglog(
            *zip(*pairs, strict=True),
            "o^sDvP"[number % 6],
            color=SERIES[number % len(SERIES)],
            markersize=5,
            label=label,
        )
    ends = np.array(axis.get_xlim())
    axis.loglog(ends, ends, color="0.5", linewidth=0.9)
    tidy(axis, "variance of each direction", "predicted by the delay equation", "16 workers")
    axis.legend(frameon=False, fontsize=8, loc="upper left", title="of the limit", title_fontsize=8)


def _sharpest(axis: Any, study: Study) -> None:
    """Deviations, in units of the undelayed one at a tenth of the limit."""
    fixed = [row for row in study["rows"] if not row["random"]]
    curvature, deviation, limit = study["curvatures"][0], study["deviations"][0], study["limit"]
    shares = np.linspace(0.05, 0.99, 80)
    for number, (delay, label) in enumerate(((study["delay"], "predicted, delay 15"), (0, "predicted, no delay"))):
        theory = [
            math.sqrt(discrete_stationary_variance(s * limit * curvature, delay, s * limit * deviation)) for s in shares
        ]
        axis.semilogy(shares, theory, **series(number), label=label)
    found = [(row["share"], math.sqrt(row["found"][0])) for row in fixed if row["found"][0]]
    axis.semilogy(*zip(*found, strict=True), "o", color="0.15", label="16 workers")
    axis.axvline(1, color=DIM, linewidth=0.9)
    axis.annotate("limit", (1, 0.02), xycoords=("data", "axes fraction"), xytext=(3, 0), textcoords="offset points",
                  fontsize=8)  # fmt: skip
    tidy(axis, "the sharpest direction", "learning rate / largest stable one", "standard deviation of weights")
    axis.legend(frameon=False, fontsize=8)
