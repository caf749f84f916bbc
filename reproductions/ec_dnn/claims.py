"""What the paper says of EC-DNN, set beside what the runs came to."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from fractions import Fraction
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import nn

from reproductions.ec_dnn.findings import CLOCKS, Findings, gains, percent, spread, violations
from reproductions.ec_dnn.plan import (
    COMPRESSING,
    FEWEST,
    FIRST_SEED,
    EcDnnPlan,
    Results,
    ablation,
    is_chosen,
    pooled,
    sweeps,
)
from reproductions.ec_dnn.training import (
    BATCH,
    DROPOUT,
    EVALUATIONS,
    GIGABIT,
    NIN_WIDTH,
    SECONDS,
    VALIDATED,
    Case,
    Flipped,
    Swept,
    network,
)
from reproductions.pipeline.claims import Claim, NotRun, by_test, listed, made, of_plan, seeds_in_words
from reproductions.pipeline.verdicts import over_seeds

METHODS = ("ma", "e", *COMPRESSING)
PICTURES = {"lenet": 50_000, "nin": 50_000, "digits": 60_000}  # of the published training sets
# Table 2, NiN on all of CIFAR-10: errors and speeds with 4 and 8 workers, of the global and of the local model
ERRORS = {
    "g": {"ma": (10.3, 9.99), "e": (9.44, 9.05), "ec_s": (8.43, 8.19), "ec_r": (8.32, 8.16), "ec_m": (8.13, 8.06)},
    "l": {"ma": (10.55, 10.54), "e": (11.04, 10.95), "ec_s": (10.04, 9.88), "ec_r": (9.92, 9.79), "ec_m": (9.84, 9.7)},
}
SPEEDS = {
    "g": {"e": (1.58, 1.92), "ec_s": (1.92, 2.05), "ec_r": (2.05, 2.11), "ec_m": (2.05, 2.14)},
    "l": {"ec_s": (1.36, 1.26), "ec_r": (1.42, 1.32), "ec_m": (1.45, 1.38)},
}
COLUMN = {4: 0, 8: 1}
LOWER = (  # what the paper finds lower than what, and of which final model
    ("e", "ma", "g"),
    ("ec_s", "e", "g"),
    ("ec_s", "ma", "g"),
    ("ec_s", "e", "l"),
    ("ec_r", "ec_s", "g"),
    ("ec_m", "ec_s", "g"),
)
SMALL_SHARE = 10.0  # per cent: "a very small amount compared to the training time"


def claims(found: Findings) -> list[Claim]:
    """All of them, each marked with the plan that it rests on."""
    parts = (_aggregation, _errors, _orders, _speeds, _ablation, _sweeps, _influence, _nin)
    return of_plan((claim for part in parts for claim in part(found)), found.runs.plan.name)


def _aggregation(found: Findings) -> Iterable[Claim]:
    """Figs. 1 and 2, and Eq. (4). What one seed shows at few communications, another one may not: then it is open."""
    alone = len(found.runs.plan.seeds) == 1
    test = "one seed: no test" if alone else ""

    def ensembles(name: str) -> Claim:
        gained = gains(found.results, averaged=False)
        of = f"points; {len(gained)} communications of E-DNN and EC-DNN"
        if name.endswith("min"):
            return Claim(name, "above 0", min(gained), 0.0, None if alone else min(gained) > 0, of, test)
        large = 100 * fmean(gain > 5 for gain in gained)
        return Claim(name, "over 20", large, None, None if alone else large > 20, f"per cent above 5 {of}", test)

    def averages(name: str) -> Claim:
        gained = gains(found.results, averaged=True)
        of = f"{len(gained)} communications of MA-DNN"
        if name.endswith("min"):
            return Claim(name, "down to -30", min(gained), None, None, f"points; {of}")
        negative = 100 * fmean(gain < 0 for gain in gained)
        return Claim(name, "over 10", negative, None, None if alone else negative > 10, f"per cent of {of}", test)

    def jensen(name: str) -> Claim:
        broken, samples = violations(found.results)
        note = f"of {samples} losses of single samples under a simple ensemble"
        return Claim(name, 0, broken, 0, broken == 0, note)

    yield made("diff_lg.ensemble.min", "above 0", 0.0, ensembles)
    yield made("diff_lg.ensemble.share_above_5", "over 20", None, ensembles)
    yield made("diff_lg.ma.share_negative", "over 10", None, averages)
    yield made("diff_lg.ma.min", "down to -30", None, averages)
    yield made("jensen.violations", 0, 0, jensen)


def _suffix(workers: int) -> str:
    return "" if workers == FEWEST else f".k{workers}"


def _errors(found: Findings) -> Iterable[Claim]:
    """Table 2; the paper's numbers are of another network and of five times the data."""

    def make(name: str, case: Case, final: str, paper: float) -> Claim:
        values = found.errors(case, final)
        note = f"%, {_workers(case.workers)}, {_seeds_and_spread(values)}; the paper's is of NiN on all of CIFAR-10"
        return Claim(name, paper, fmean(values), None, None, note)

    for workers, _ in found.runs.plan.grids:
        for final in ("g", "l"):
            for method in METHODS:
                paper = ERRORS[final][method][COLUMN[workers]]
                one = partial(make, case=found.case(method, workers), final=final, paper=paper)
                yield made(f"error.{method}_{final}{_suffix(workers)}", paper, None, one)
    yield made("error.s", 10.41, None, partial(make, case=Case("s", 1), final="g", paper=10.41))


def _workers(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"


def _seeds_and_spread(values: list[float]) -> str:
    deviation = f", standard deviation {spread(values):.2f}" if len(values) > 1 else ""
    return seeds_in_words(len(values)) + deviation


def _orders(found: Findings) -> Iterable[Claim]:
    for workers, _ in found.runs.plan.grids:
        for lower, higher, final in LOWER:
            cases = found.case(lower, workers), found.case(higher, workers)
            name = f"lower.{lower}_{final}_than_{higher}_{final}{_suffix(workers)}"
            yield _order(found, name, cases, f"{workers} workers", final)


def _order(found: Findings, name: str, cases: tuple[Case, Case], where: str, final: str = "g") -> Claim:
    """Is the first case lower? By a paired test over the seeds, or over test samples."""

    def make(name: str) -> Claim:
        differences, tested = found.differences(*cases, final), found.lower(*cases, final)
        note = f"points, {where}; seed by seed {listed(differences)}"
        if tested is None:
            return Claim(name, "lower", fmean(differences), "above 0", None, note, "one seed: no test")
        return by_test(name, "lower", tested, "above 0", tested.above(), note)

    return made(name, "lower", "above 0", make)


def _speeds(found: Findings) -> Iterable[Claim]:
    for workers, _ in found.runs.plan.grids:
        for final, published in SPEEDS.items():
            for method, papers in published.items():
                paper, case = papers[COLUMN[workers]], found.case(method, workers)
                make = partial(_speed, found=found, case=case, final=final, paper=paper)
                yield made(f"speed.{method}_{final}{_suffix(workers)}", paper, "above 1", make)
    yield made("relabelling_share.ec_s", "very small", SMALL_SHARE, partial(_relabelling, found=found))


def _relabelling(name: str, found: Findings) -> Claim:
    costs = found.costs(found.case("ec_s", FEWEST))
    share = 100 * costs["relabelling"] / sum(costs.values())
    note = f"per cent of the time of EC-DNN-S, {FEWEST} workers, tau {found.taus.compressing}"
    return Claim(name, "very small", share, SMALL_SHARE, share <= SMALL_SHARE, note)


def _speed(name: str, found: Findings, case: Case, final: str, paper: float) -> Claim:
    """Faster than MA-DNN? A run that never reaches its error has a speed of 0."""
    values = found.speeds(case, final)
    steps = fmean(found.speeds(case, final, "steps"))
    note = f"{case.workers} workers; seed by seed {listed(values)}; {steps:.2f} if only steps are charged"
    tested = over_seeds(values)
    if tested is None:
        holds = False if values == [0.0] else None
        return Claim(
            name, paper, fmean(values), "above 1", holds, note, "one seed: told only if its error is never reached"
        )
    return by_test(name, paper, tested, "above 1", tested.above(1.0), note)


def _ablation(found: Findings) -> Iterable[Claim]:
    """Fig. 6."""
    if not found.runs.plan.ablation:
        return
    no_local, no_diversity = ablation(found.taus)
    whole = found.case("ec_s", FEWEST)
    yield _order(found, "ablation.local_training", (no_diversity, no_local), "case 2 below case 1")
    yield _order(found, "ablation.diversity", (whole, no_diversity), "case 3 below case 2")

    def regression(name: str) -> Claim:
        cases = pooled(found.taus), found.case("ec_r", FEWEST)
        pool, own = (found.errors(case, "g", [FIRST_SEED])[0] for case in cases)
        note = f"%, one seed, regression on the samples of all workers; on each worker's own {own:.2f}"
        return Claim(name, None, pool, None, None, note)

    yield made("error.ec_r_g.pooled", None, None, regression)


def _sweeps(found: Findings) -> Iterable[Claim]:
    """Table 1: p = 10 % and mu = 70 % were chosen for CIFAR-10, so others should end no lower."""
    if not found.runs.plan.swept:
        return
    chosen = {"p": 0.1, "mu": 0.7}
    whole = found.case("ec_s", FEWEST)
    for (what, value), case in sweeps(found.taus).items():
        name = f"chosen.{what}.{100 * chosen[what]:.0f}_below_{100 * value:.0f}"
        said = f"{what} = {100 * chosen[what]:.0f} % against {100 * value:.0f} %"
        if is_chosen(case):
            yield Claim(name, "lower", None, "above 0", None, f"{said}: the same number of the {case.tau} steps")
        else:
            yield _order(found, name, (whole, case), said)


def _influence(found: Findings) -> Iterable[Claim]:
    """Fig. 5, of which there is one seed."""
    plan = found.runs.plan
    if not plan.influence:
        return
    cases = {f"tau {tau}": Case("ec_s", FEWEST, tau) for tau in (*plan.compressing, *plan.influence)}
    cases["E-DNN"] = Case("e", FEWEST)

    def make(name: str) -> Claim:
        errors = ", ".join(f"{found.errors(case, 'g', [FIRST_SEED])[0]:.2f} ({said})" for said, case in cases.items())
        return Claim(name, "worse if too large", errors, None, None, f"error in %, {FEWEST} workers, one seed")

    yield made("influence_of_tau", "worse if too large", None, make)


def _nin(found: Findings) -> Iterable[Claim]:
    def make(name: str, case: Case) -> Claim:
        note = f"%, narrow NiN, {FEWEST} workers, tau {case.tau or '-'}, one seed"
        error = percent(found.result(case, FIRST_SEED, "nin")["error_g"])
        return Claim(name, ERRORS["g"][case.method][0], error, None, None, note)

    for run in found.runs.of_nin():
        case = run.case
        yield made(f"nin.error.{case.method}_g", ERRORS["g"][case.method][0], None, partial(make, case=case))


def settings(found: Findings) -> dict[str, Any]:
    plan = found.runs.plan
    return {
        "plan": plan.name,
        "data": {model: _size_in_words(plan, model) for model in plan.sizes},
        "as_in_the_paper": f"alpha 0.6, beta 0.4, p a tenth of tau, mu 70 %, {_mirrored(found)}dropout, momentum 0.9",
        "ours": f"batches of {BATCH}, dropout {DROPOUT}, weight decay 1e-4, {_decays(plan)}",
        "networks": {model: _network_in_words(found, model) for model in plan.sizes},
        "learning_rate_rule": _learning_rate_rule(plan),
        "learning_rates": dict(found.runs.learning_rates),
        "tau_rule": _tau_rule(plan),
        "taus": {name: tau for name, tau in asdict(found.taus).items() if tau is not None},
        "taus_tried": _taus_tried(plan),
        "seeds": {str(workers): [plan.seed + seed for seed in seeds] for workers, seeds in plan.grids},
        "clock": (
            f"seconds for a mini-batch: {', '.join(f'{SECONDS[model]:g} ({model})' for model in plan.sizes)}; a third "
            f"of that to pass one forward; {GIGABIT}"
        ),
        "looks": f"at every communication, but at most {EVALUATIONS} in a run",
        "table": table_rows(found),
    }


def _tau_rule(plan: EcDnnPlan) -> str:
    own = {"M": plan.by_margin, "R": plan.regressing}
    chosen = ["MA_G", "EC-S_G", *(f"EC-{name}_G" for name, taus in own.items() if taus)]
    others = [f"-{name}" for name, taus in own.items() if not taus]
    rest = f"; {' and '.join(others)} as -S" if others else ""
    return f"smallest validation error of {', '.join(chosen)} each, {FEWEST} workers, seed {plan.seed}{rest}"


def _taus_tried(plan: EcDnnPlan) -> dict[str, Sequence[int]]:
    own = {"by_margin": plan.by_margin, "regressing": plan.regressing}
    return {
        "averaging": plan.averaging, "compressing": plan.compressing, "influence": plan.influence,
        **{name: taus for name, taus in own.items() if taus},
    }  # fmt: skip


def _size_in_words(plan: EcDnnPlan, model: str) -> str:
    size = plan.sizes[model]
    steps = f"with 4 workers, in all {4 * size.steps} with any number" if size.in_all else f"(S-DNN: {4 * size.steps})"
    return (
        f"{size.samples} of {PICTURES[model]} training pictures, {VALIDATED} others for validation, {size.steps} steps "
        f"a worker {steps}, {size.followed} test pictures on the way and {size.tested} at the end"
    )


def _decays(plan: EcDnnPlan) -> str:
    """When the learning rate falls, of each size of the plan if they differ."""
    told = {
        model: "learning rate / 10 after " + " and ".join(str(Fraction(share)) for share in size.decays)
        for model, size in plan.sizes.items()
    }
    if len({*told.values()}) == 1:
        return f"{next(iter(told.values()))} of the steps"
    return "; ".join(f"{model}: {words} of the steps" for model, words in told.items())


def _mirrored(found: Findings) -> str:
    """Do the networks of the plan see mirrored pictures in training? A mirrored digit is none."""
    flips = [isinstance(part, Flipped) for model in found.runs.plan.sizes for part in _net(found, model)]
    return "mirrored pictures, " if any(flips) else ""


def _network_in_words(found: Findings, model: str) -> str:
    count = sum(parameter.numel() for parameter in _net(found, model).parameters())
    kind = f"NiN of width {NIN_WIDTH:g}" if model == "nin" else "LeNet"
    return f"{kind}, {count:,} parameters"


def _net(found: Findings, model: str) -> nn.Sequential:
    """The network of a run, made to be looked at; torch's generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        made = network(found.runs.run(Case("s", 1), FIRST_SEED, model))
    assert isinstance(made, nn.Sequential)
    return made


def _learning_rate_rule(plan: EcDnnPlan) -> str:
    if len(plan.learning_rates) == 1:
        return "not tuned; all methods share it"
    further = f" and, while the best is at an end, {list(plan.further)}" if plan.further else ""
    return (
        f"of {list(plan.learning_rates)}{further}, the smallest validation error of S-DNN in as many steps as one "
        f"worker makes, seed {plan.seed}; all methods share it"
    )


def table_rows(found: Findings) -> list[dict[str, Any]]:
    """Table 2: of each number of workers and method, first the global model, then the local one; then S-DNN.

    A row of which nothing was run is left out.
    """
    wanted = [
        (found.case(method, workers), final)
        for workers, _ in found.runs.plan.grids
        for final in ("g", "l")
        for method in METHODS
    ]
    rows = []
    for case, final in [*wanted, (Case("s", 1), "g")]:
        with suppress(NotRun):
            rows.append(_row(found, case, final))
    return rows


def _row(found: Findings, case: Case, final: str) -> dict[str, Any]:
    errors = found.errors(case, final)
    if case.method == "s":
        return {"method": "s", "workers": 1, "final": "g", "error": fmean(errors), "spread": spread(errors)}
    speeds = {f"speed_{clock}": fmean(found.speeds(case, final, clock)) for clock in CLOCKS}
    row = {"method": case.method, "workers": case.workers, "final": final, "tau": case.tau or None}
    row |= {"error": fmean(errors), "spread": spread(errors), **speeds, **found.costs(case)}
    if final == "l":
        row["error_validated"] = fmean(found.errors(case, "l_validated"))
    return row


def run_rows(results: Results) -> list[dict[str, Any]]:
    """One for each run, for the card."""
    return [
        {
            "model": run.model, "method": run.case.method, "workers": run.case.workers, "tau": run.case.tau or None,
            "without": run.case.without or None, **_swept(run.case), "learning_rate": run.lr, "seed": run.seed,
            "steps": run.steps,
            **{name: value for name, value in result.items() if name != "curve"},
            "curve": [{name: value for name, value in point.items() if name != "losses"} for point in result["curve"]],
        }
        for run, result in results.items()
    ]  # fmt: skip


def _swept(case: Case) -> dict[str, float]:
    return {"relabel": case.relabel, "compression": case.compression} if isinstance(case, Swept) else {}
