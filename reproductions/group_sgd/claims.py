"""What *Group SGD* claims, checked.

The paper's losses are only in its figures, and it does not say how long it trained. So its claims about training are
orders. How they are checked was settled before the runs:

- At the end, an order must be there in every seed: the seeds share no data order, so it is not one draw's luck.
- On the way, it must be there in the mean over the seeds at every evaluation after the first tenth. The beginning is
  left out because the paper says itself that ASGD is fast at first.
- Accuracies are "basically equal" if their means are at most 1 percentage point apart: three standard errors of an
  accuracy near 88 % on 10,000 test images.
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
    note = f"F = w^2/2, step {toy.lr:g}, {updates} updates: gamma {bound.gamma:.7f}, alpha {bound.alpha:.7f}"
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
    paper = [run for run in mine if run["steps"] == "paper"]
    loss, accuracy = _ends(paper, "loss"), _ends(paper, "accuracy")
    gap = 100 * abs(fmean(accuracy["gsgd"]) - fmean(accuracy["ssgd"]))
    apart = f"{100 * fmean(accuracy['gsgd']):.2f} % and {100 * fmean(accuracy['ssgd']):.2f} %"
    return [
        *_losses_at_the_end(model, loss, units),
        _against_time(model, paper, units),
        _against_updates(model, paper),
        _ordered(f"{model}.asgd_ends_worst", "asgd has the highest loss", loss, "asgd", highest=True),
        _ordered(f"{model}.asgd_ends_least_accurate", "asgd is least accurate", accuracy, "asgd", highest=False),
        Claim(
            f"{model}.gsgd_as_accurate_as_ssgd", "basically equal", apart, "1 percentage point", gap <= 1, "at the end"
        ),
        *(_control(model, rule, mine) for rule in ("common", "tuned")),
    ]


def _losses_at_the_end(model: str, loss: Values, units: float) -> list[Claim]:
    """One for each strategy: what the paper says of it, and our mean."""
    count = len(loss["gsgd"])
    said = {
        "ssgd": ("above gsgd", _always(loss, lambda s: s["ssgd"] > s["gsgd"])),
        "gsgd": ("lowest", _always(loss, lambda s: s["gsgd"] < min(s["ssgd"], s["asgd"]))),
        "asgd": ("highest", _always(loss, lambda s: s["asgd"] > max(s["ssgd"], s["gsgd"]))),
    }
    rates = MODELS[model].learning_rates
    return [
        Claim(
            f"{model}.loss_at_{units:g}.{name}", said[name][0], fmean(loss[name]), _in_every_seed(count), said[name][1],
            _joined(f"step {rates[name]:g}", f"from {min(loss[name]):.5f} to {max(loss[name]):.5f}" * (count > 1)),
        )
        for name in STRATEGIES
    ]  # fmt: skip


def _against_time(model: str, paper: Runs, units: float) -> Claim:
    instants = [t for t in np.arange(PERIOD, units + 1, PERIOD).tolist() if t >= units / 10]
    means = {name: _means(paper, name, "units", instants) for name in STRATEGIES}
    lowest = means["gsgd"] < np.minimum(means["ssgd"], means["asgd"])
    return _counted(f"{model}.gsgd_lowest_against_time", "gsgd has the lowest loss", "gsgd lowest", lowest, "instants")


def _against_updates(model: str, paper: Runs) -> Claim:
    most = min(run["updates"][-1] for run in paper)
    counts = [float(count) for count in update_grid(most) if count >= most / 10]
    means = {name: _means(paper, name, "updates", counts) for name in STRATEGIES}
    ordered = (means["ssgd"] < means["gsgd"]) & (means["gsgd"] < means["asgd"])
    return _counted(f"{model}.order_against_updates", "ssgd < gsgd < asgd", "in that order", ordered, "counts")


def _control(model: str, rule: str, mine: Runs) -> Claim:
    """Whether GSGD would still end best if the learning rates were chosen by a rule that is the same for all."""
    runs = [run for run in mine if run["steps"] == rule]
    chosen = {run["strategy"]: run["step"] for run in runs}
    listed = f"{chosen['gsgd']:g}" if rule == "common" else ", ".join(f"{s} {chosen[s]:g}" for s in STRATEGIES)
    note = f"control, not in the paper; {rule} step{'s' * (rule == 'tuned')}: {listed}"
    name, said = f"{model}.{rule}_step.gsgd_lowest", "(gsgd has the lowest loss)"
    return _ordered(name, said, _ends(runs, "loss"), "gsgd", highest=False, note=note)


def _ordered(name: str, said: str, values: Values, strategy: str, *, highest: bool, note: str = "") -> Claim:
    def extreme(seed: Mapping[str, float]) -> bool:
        others = [value for other, value in seed.items() if other != strategy]
        return seed[strategy] > max(others) if highest else seed[strategy] < min(others)

    means = {each: fmean(values[each]) for each in values}
    ours = " < ".join(f"{each} {means[each]:.4f}" for each in sorted(means, key=means.__getitem__))
    return Claim(name, said, ours, _in_every_seed(len(values[strategy])), _always(values, extreme), note)


def _counted(name: str, said: str, what: str, true: NDArray[np.bool_], places: str) -> Claim:
    ours = f"{what} at {int(true.sum())} of {len(true)} {places}"
    return Claim(name, said, ours, "at all after the first tenth, in the mean", bool(true.all()))


def _always(values: Values, condition: Any) -> bool:
    seeds = zip(*values.values(), strict=True)
    return all(condition(dict(zip(values, seed, strict=True))) for seed in seeds)


def _ends(runs: Runs, what: str) -> dict[str, list[float]]:
    """Strategy -> what each seed ended with, in the order of the seeds; infinite loss if it diverged."""
    ordered = sorted(runs, key=lambda run: run["seed"])
    return {name: [_finite(run, what) for run in ordered if run["strategy"] == name] for name in STRATEGIES}


def _finite(run: Mapping[str, Any], what: str) -> float:
    value = run[what][-1]
    return math.inf if what == "loss" and (run["ended"] == "diverged" or value is None) else float(value)


def _means(runs: Runs, strategy: str, abscissa: str, places: Sequence[float]) -> NDArray[np.float64]:
    """The mean over the seeds of the loss that was last seen at each place."""
    curves = []
    for run in runs:
        if run["strategy"] == strategy:
            seen = np.searchsorted(run[abscissa], places, side="right") - 1
            losses = np.array([math.inf if loss is None else loss for loss in run["loss"]])
            curves.append(losses[seen])
    mean: NDArray[np.float64] = np.mean(curves, axis=0)
    return mean


def _in_every_seed(count: int) -> str:
    return f"in each of {count} seeds" if count > 1 else "in one seed"


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
