"""What *Group SGD* claims, checked.

The paper's losses are only in its figures, and it does not say how long it trained. So its claims about training are
orders. How they are checked was settled before the runs:

- An order at the end is tested by differences of the same seed, against each of the others: it holds if each 95 %
  interval is on the right side of 0, and does not if one is on the wrong side. One seed cannot tell.
- On the way, the same at every evaluation after the first tenth. The beginning is left out because the paper says
  itself that ASGD is fast at first.
- Accuracies are "basically equal" if the interval of their difference is within 1 percentage point: three standard
  errors of an accuracy near 88 % on 10,000 test images.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import Stop
from reproductions.group_sgd.theorem import Toy, theorem_3_1
from reproductions.group_sgd.training import MODELS, PERIOD, STRATEGIES, update_grid, updates_of
from reproductions.pipeline.claims import Claim, within
from reproductions.pipeline.verdicts import over_seeds

Runs = Sequence[Mapping[str, Any]]
Values = Mapping[str, list[float]]  # strategy -> one value for each seed
UPDATES = {"ssgd": 2, "gsgd": 11, "asgd": 52}
STALENESS = {"ssgd": 0, "gsgd": 2, "asgd": 15}
TOY, TOY_UPDATES = Toy(lr=0.02), 220


def timing_claims(toy: Toy = TOY, toy_updates: int = TOY_UPDATES) -> list[Claim]:
    """What needs no data: these are exact, and their tolerance is 0 or that of rounding."""
    periods = {name: updates_of(name, Stop(seconds=5 * PERIOD)) for name in STRATEGIES}
    claims = []
    for name, made in periods.items():
        first = sum(each.at <= PERIOD for each in made)
        claims.append(within(f"updates_per_6_units.{name}", UPDATES[name], first, 0, "follows from the paper's times"))
    for name, made in periods.items():
        mean = fmean(each.staleness for each in made if each.at > PERIOD)
        note = "follows from the paper's times; after the first period, ties in the order of the workers"
        claims.append(within(f"mean_staleness.{name}", STALENESS[name], mean, 0, note))
    return claims + [theorem_claim(name, toy, toy_updates) for name in STRATEGIES]


def theorem_claim(strategy: str, toy: Toy, updates: int) -> Claim:
    """Theorem 3.1 with all expectations exact. It says nothing where its assumption is not met."""
    bound = theorem_3_1([made.move for made in updates_of(strategy, Stop(updates=updates))], toy)
    ours = f"{bound.left[-1]:.6e} <= {bound.right[-1]:.6e}" if bound.holds else "broken"
    note = f"F = w^2/2, learning rate {toy.lr:g}, {updates} updates: gamma {bound.gamma:.7f}, alpha {bound.alpha:.7f}"
    if not bound.applies:
        note += "; assumption 3.5 (gamma <= 1) is not met, so the theorem says nothing here"
    holds = bound.holds if bound.applies else None
    return Claim(f"theorem_3_1.{strategy}", "loss <= bound", ours, "after every update", holds, note)


def training_claims(runs: Runs, units: float, reduced: str) -> list[Claim]:
    """The orders that the paper claims, with its own learning rates and with those of the controls."""
    claims = [claim for model in MODELS for claim in _of_model(runs, model, units)]
    if not reduced:
        return claims
    return [replace(claim, note=_joined(claim.note, f"reduced: {reduced}")) for claim in claims]


def _of_model(runs: Runs, model: str, units: float) -> list[Claim]:
    mine = [run for run in runs if run["model"] == model]
    paper = [run for run in mine if run["rates"] == "paper"]
    loss, accuracy = _ends(paper, "loss"), _ends(paper, "accuracy")
    return [
        *_losses_at_the_end(model, loss, units),
        _against_time(model, paper, units),
        _against_updates(model, paper),
        _ordered(f"{model}.asgd_ends_worst", "asgd has the highest loss", loss, "asgd", highest=True),
        _ordered(f"{model}.asgd_ends_least_accurate", "asgd is least accurate", accuracy, "asgd", highest=False),
        _as_accurate(model, accuracy),
        *(_control(model, rule, mine) for rule in ("common", "tuned")),
    ]


def _as_accurate(model: str, accuracy: Values) -> Claim:
    apart = f"{100 * fmean(accuracy['gsgd']):.2f} % and {100 * fmean(accuracy['ssgd']):.2f} %"
    found = over_seeds([100 * (one - other) for one, other in zip(accuracy["gsgd"], accuracy["ssgd"], strict=True)])
    name, said, tolerance = f"{model}.gsgd_as_accurate_as_ssgd", "basically equal", "1 percentage point"
    if found is None:
        return Claim(name, said, apart, tolerance, None, "at the end", "one seed: no test")
    return Claim(name, said, apart, tolerance, found.within(1.0), "at the end", f"points, {found.words}")


def _losses_at_the_end(model: str, loss: Values, units: float) -> list[Claim]:
    """One for each strategy: what the paper says of it, and our mean."""
    count = len(loss["gsgd"])
    said = {"ssgd": ("above gsgd", ["gsgd"], True), "gsgd": ("lowest", ["ssgd", "asgd"], False),
            "asgd": ("highest", ["ssgd", "gsgd"], True)}  # fmt: skip
    rates = MODELS[model].learning_rates
    claims = []
    for name, (words, others, higher) in said.items():
        holds, test = _extreme(loss, name, others, highest=higher)
        spread = f"from {min(loss[name]):.5f} to {max(loss[name]):.5f}" * (count > 1)
        note = _joined(f"learning rate {rates[name]:g}", spread)
        mean = fmean(loss[name])
        claims.append(Claim(f"{model}.loss_at_{units:g}.{name}", words, mean, "beyond chance", holds, note, test))
    return claims


def _extreme(values: Values, name: str, others: Sequence[str], *, highest: bool) -> tuple[bool | None, str]:
    """Is one strategy above (or below) each of the others, by paired differences? And by which test."""
    sign = 1 if highest else -1
    found = {
        o: over_seeds([sign * (one - other) for one, other in zip(values[name], values[o], strict=True)])
        for o in others
    }
    known = {other: each for other, each in found.items() if each is not None}
    if len(known) < len(others):
        diverged = any(not all(map(math.isfinite, values[each])) for each in (name, *others))
        return (
            (_by_divergence(values, name, others, sign), "a run diverged") if diverged else (None, "one seed: no test")
        )
    verdicts = [each.above() for each in known.values()]
    words = "; ".join(f"{'above' if highest else 'below'} {other} by {each.mean:.3g}, 95 % interval {each.low:.3g} to "
                      f"{each.high:.3g}" for other, each in known.items())  # fmt: skip
    holds = False if False in verdicts else None if None in verdicts else True
    return holds, f"paired over {len(values[name])} seeds: {words}"


def _by_divergence(values: Values, name: str, others: Sequence[str], sign: int) -> bool | None:
    """An infinite loss is above all others, in every seed or it cannot be told."""
    pairs = [sign * one > sign * other for o in others for one, other in zip(values[name], values[o], strict=True)]
    return True if all(pairs) else False if not any(pairs) else None


def _against_time(model: str, paper: Runs, units: float) -> Claim:
    instants = [t for t in np.arange(PERIOD, units + 1, PERIOD).tolist() if t >= units / 10]
    curves = {name: _curves(paper, name, "units", instants) for name in STRATEGIES}
    pairs = [(curves[other], curves["gsgd"]) for other in ("ssgd", "asgd")]
    return _counted(f"{model}.gsgd_lowest_against_time", "gsgd has the lowest loss", "gsgd lowest", pairs, "instants")


def _against_updates(model: str, paper: Runs) -> Claim:
    most = min(run["updates"][-1] for run in paper)
    counts = [float(count) for count in update_grid(most) if count >= most / 10]
    curves = {name: _curves(paper, name, "updates", counts) for name in STRATEGIES}
    pairs = [(curves["gsgd"], curves["ssgd"]), (curves["asgd"], curves["gsgd"])]
    return _counted(f"{model}.order_against_updates", "ssgd < gsgd < asgd", "in that order", pairs, "counts")


def _control(model: str, rule: str, mine: Runs) -> Claim:
    """Whether GSGD would still end best if the learning rates were chosen by a rule that is the same for all."""
    runs = [run for run in mine if run["rates"] == rule]
    chosen = {run["strategy"]: run["learning_rate"] for run in runs}
    listed = f"{chosen['gsgd']:g}" if rule == "common" else ", ".join(f"{s} {chosen[s]:g}" for s in STRATEGIES)
    note = f"control, not in the paper; {rule} learning rate{'s' * (rule == 'tuned')}: {listed}"
    name, said = f"{model}.{rule}_rate.gsgd_lowest", "(gsgd has the lowest loss)"
    return _ordered(name, said, _ends(runs, "loss"), "gsgd", highest=False, note=note)


def _ordered(name: str, said: str, values: Values, strategy: str, *, highest: bool, note: str = "") -> Claim:
    means = {each: fmean(values[each]) for each in values}
    ours = " < ".join(f"{each} {means[each]:.4f}" for each in sorted(means, key=means.__getitem__))
    others = [other for other in values if other != strategy]
    holds, test = _extreme(values, strategy, others, highest=highest)
    return Claim(name, said, ours, "beyond chance", holds, note, test)


Curves = NDArray[np.float64]


def _counted(name: str, said: str, what: str, pairs: Sequence[tuple[Curves, Curves]], places: str) -> Claim:
    """At how many places the first of each pair is above the second, in the mean over the seeds, and beyond chance.

    Of as many tests at 95 %, one in twenty may be missed.
    """
    in_the_mean = np.all([(higher.mean(0) > lower.mean(0)) for higher, lower in pairs], axis=0)
    count, seeds = len(in_the_mean), len(pairs[0][0])
    ours, tolerance = f"{what} at {int(in_the_mean.sum())} of {count} {places}", "at all after the first tenth"
    if seeds < 2:
        return Claim(name, said, ours, tolerance, None, "in the mean", "one seed: no test")
    verdicts = [[_above(column.tolist()) for column in (higher - lower).T] for higher, lower in pairs]
    told = sum(all(each is True for each in column) for column in zip(*verdicts, strict=True))
    wrong = sum(any(each is False for each in column) for column in zip(*verdicts, strict=True))
    holds = False if wrong > 0.05 * count else True if in_the_mean.all() and told >= 0.95 * count else None
    test = (
        f"paired over {seeds} seeds at each of {count} {places}: {told} so, {wrong} otherwise, the rest within chance"
    )
    return Claim(name, said, ours, tolerance, holds, "in the mean", test)


def _above(differences: Sequence[float]) -> bool | None:
    found = over_seeds(differences)
    return None if found is None else found.above()


def _ends(runs: Runs, what: str) -> dict[str, list[float]]:
    """Strategy -> what each seed ended with, in the order of the seeds; infinite loss if it diverged."""
    ordered = sorted(runs, key=lambda run: run["seed"])
    return {name: [_finite(run, what) for run in ordered if run["strategy"] == name] for name in STRATEGIES}


def _finite(run: Mapping[str, Any], what: str) -> float:
    value = run[what][-1]
    return math.inf if what == "loss" and (run["ended"] == "diverged" or value is None) else float(value)


def _curves(runs: Runs, strategy: str, abscissa: str, places: Sequence[float]) -> Curves:
    """The loss that was last seen at each place, a row for each seed, in their order."""
    curves = []
    for run in sorted(runs, key=lambda run: run["seed"]):
        if run["strategy"] == strategy:
            seen = np.searchsorted(run[abscissa], places, side="right") - 1
            losses = np.array([math.inf if loss is None else loss for loss in run["loss"]])
            curves.append(losses[seen])
    return np.array(curves)


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
