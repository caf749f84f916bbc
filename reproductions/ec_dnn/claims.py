"""What the paper says of EC-DNN, set beside what the runs came to."""

from collections.abc import Iterable
from dataclasses import asdict
from statistics import fmean
from typing import Any

from reproductions.ec_dnn.findings import CLOCKS, Findings, gains, percent, spread, violations
from reproductions.ec_dnn.plan import COMPRESSING, FEWEST, FIRST_SEED, EcDnnPlan, Results, ablation, pooled
from reproductions.ec_dnn.training import BATCH, DROPOUT, EVALUATIONS, GIGABIT, NIN_WIDTH, SECONDS, VALIDATED, Case
from reproductions.pipeline.claims import Claim, by_test, listed, of_plan, seeds_in_words
from reproductions.pipeline.verdicts import over_seeds

METHODS = ("ma", "e", *COMPRESSING)
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
    parts = (_aggregation, _errors, _orders, _speeds, _ablation, _influence, _nin)
    return of_plan((claim for part in parts for claim in part(found)), found.runs.plan.name)


def _aggregation(found: Findings) -> Iterable[Claim]:
    """Figs. 1 and 2, and Eq. (4)."""
    ensembles, averages = (gains(found.results, averaged=averaged) for averaged in (False, True))
    of = f"points; {len(ensembles)} communications of E-DNN and EC-DNN"
    yield Claim("diff_lg.ensemble.min", "above 0", min(ensembles), 0.0, min(ensembles) > 0, of)
    large = 100 * fmean(gain > 5 for gain in ensembles)
    yield Claim("diff_lg.ensemble.share_above_5", "over 20", large, None, large > 20, f"per cent above 5 {of}")
    negative, of = 100 * fmean(gain < 0 for gain in averages), f"{len(averages)} communications of MA-DNN"
    yield Claim("diff_lg.ma.share_negative", "over 10", negative, None, negative > 10, f"per cent of {of}")
    yield Claim("diff_lg.ma.min", "down to -30", min(averages), None, None, f"points; {of}")
    broken, samples = violations(found.results)
    note = f"of {samples} losses of single samples under a simple ensemble"
    yield Claim("jensen.violations", 0, broken, 0, broken == 0, note)


def _suffix(workers: int) -> str:
    return "" if workers == FEWEST else f".k{workers}"


def _errors(found: Findings) -> Iterable[Claim]:
    """Table 2; the paper's numbers are of another network and of five times the data."""
    for workers, _ in found.runs.plan.grids:
        for final in ("g", "l"):
            for method in METHODS:
                case = found.case(method, workers)
                values = found.errors(case, final)
                note = f"%, {workers} workers, {_seeds_and_spread(values)}; the paper's is of NiN on all of CIFAR-10"
                paper = ERRORS[final][method][COLUMN[workers]]
                yield Claim(f"error.{method}_{final}{_suffix(workers)}", paper, fmean(values), None, None, note)
    values = found.errors(Case("s", 1), "g")
    yield Claim("error.s", 10.41, fmean(values), None, None, f"%, one worker, {_seeds_and_spread(values)}")


def _seeds_and_spread(values: list[float]) -> str:
    deviation = f", standard deviation {spread(values):.2f}" if len(values) > 1 else ""
    return seeds_in_words(len(values)) + deviation


def _orders(found: Findings) -> Iterable[Claim]:
    for workers, _ in found.runs.plan.grids:
        for lower, higher, final in LOWER:
            differences = found.differences(found.case(lower, workers), found.case(higher, workers), final)
            name = f"lower.{lower}_{final}_than_{higher}_{final}{_suffix(workers)}"
            yield _order(name, differences, f"{workers} workers")


def _order(name: str, differences: list[float], where: str) -> Claim:
    """Lower, by a paired test over the seeds; of one seed it cannot be told."""
    note, found = f"points, {where}; seed by seed {listed(differences)}", over_seeds(differences)
    if found is None:
        return Claim(name, "lower", fmean(differences), "above 0", None, note, "one seed: no test")
    return by_test(name, "lower", found, "above 0", found.above(), note)


def _speeds(found: Findings) -> Iterable[Claim]:
    for workers, _ in found.runs.plan.grids:
        for final, published in SPEEDS.items():
            for method, paper in published.items():
                case = found.case(method, workers)
                values = found.speeds(case, final)
                steps = fmean(found.speeds(case, final, "steps"))
                note = f"{workers} workers; seed by seed {listed(values)}; {steps:.2f} if only steps are charged"
                yield _speed(f"speed.{method}_{final}{_suffix(workers)}", paper[COLUMN[workers]], values, note)
    costs = found.costs(found.case("ec_s", FEWEST))
    share = 100 * costs["relabelling"] / sum(costs.values())
    note = f"per cent of the time of EC-DNN-S, {FEWEST} workers, tau {found.taus.compressing}"
    yield Claim("relabelling_share.ec_s", "very small", share, SMALL_SHARE, share <= SMALL_SHARE, note)


def _speed(name: str, paper: float, values: list[float], note: str) -> Claim:
    """Faster than MA-DNN? A run that never reaches its error has a speed of 0."""
    found = over_seeds(values)
    if found is None:
        holds = False if values == [0.0] else None
        return Claim(
            name, paper, fmean(values), "above 1", holds, note, "one seed: told only if its error is never reached"
        )
    return by_test(name, paper, found, "above 1", found.above(1.0), note)


def _ablation(found: Findings) -> Iterable[Claim]:
    """Fig. 6."""
    if not found.runs.plan.ablation:
        return
    no_local, no_diversity = ablation(found.taus)
    whole = found.case("ec_s", FEWEST)
    yield _order("ablation.local_training", found.differences(no_diversity, no_local), "case 2 below case 1")
    yield _order("ablation.diversity", found.differences(whole, no_diversity), "case 3 below case 2")
    pool, own = (found.errors(case, "g", [FIRST_SEED])[0] for case in (pooled(found.taus), found.case("ec_r", FEWEST)))
    note = f"%, one seed, regression on the samples of all workers; on each worker's own {own:.2f}"
    yield Claim("error.ec_r_g.pooled", None, pool, None, None, note)


def _influence(found: Findings) -> Iterable[Claim]:
    """Fig. 5, of which there is one seed."""
    plan = found.runs.plan
    if not plan.influence:
        return
    cases = {f"tau {tau}": Case("ec_s", FEWEST, tau) for tau in (*plan.compressing, *plan.influence)}
    cases["E-DNN"] = Case("e", FEWEST)
    errors = ", ".join(f"{found.errors(case, 'g', [FIRST_SEED])[0]:.2f} ({name})" for name, case in cases.items())
    yield Claim("influence_of_tau", "worse if too large", errors, None, None, f"error in %, {FEWEST} workers, one seed")


def _nin(found: Findings) -> Iterable[Claim]:
    for run in found.runs.of_nin():
        note = f"%, narrow NiN, {FEWEST} workers, tau {run.case.tau or '-'}, one seed"
        error = percent(found.results[run]["error_g"])
        yield Claim(f"nin.error.{run.case.method}_g", ERRORS["g"][run.case.method][0], error, None, None, note)


def settings(found: Findings) -> dict[str, Any]:
    plan = found.runs.plan
    return {
        "plan": plan.name,
        "data": {model: _size_in_words(plan, model) for model in plan.sizes},
        "as_in_the_paper": "alpha 0.6, beta 0.4, p a tenth of tau, mu 70 %, flipped pictures, dropout, momentum 0.9",
        "ours": f"batches of {BATCH}, dropout {DROPOUT}, weight decay 1e-4, step size / 10 after 3/4 of the steps",
        "networks": {"lenet": "LeNet, 62,006 parameters", "nin": f"NiN of width {NIN_WIDTH}, 17,058 parameters"},
        "step_size_rule": _learning_rate_rule(plan),
        "step_sizes": dict(found.runs.learning_rates),
        "tau_rule": (
            f"smallest validation error of MA_G and EC-S_G, {FEWEST} workers, seed {plan.seed}; -R and -M as -S"
        ),
        "taus": asdict(found.taus),
        "taus_tried": {"averaging": plan.averaging, "compressing": plan.compressing, "influence": plan.influence},
        "seeds": {str(workers): [plan.seed + seed for seed in seeds] for workers, seeds in plan.grids},
        "clock": f"seconds for a mini-batch: {SECONDS}; a third of that to pass one forward; {GIGABIT}",
        "looks": f"at every communication, but at most {EVALUATIONS} in a run",
        "table": table_rows(found),
    }


def _size_in_words(plan: EcDnnPlan, model: str) -> str:
    size = plan.sizes[model]
    return (
        f"{size.samples} of 50000 training pictures, {VALIDATED} others for validation, {size.steps} steps a worker "
        f"(S-DNN: {4 * size.steps}), {size.followed} test pictures on the way and {size.tested} at the end"
    )


def _learning_rate_rule(plan: EcDnnPlan) -> str:
    if len(plan.learning_rates) == 1:
        return "not tuned; all methods share it"
    return (
        f"of {list(plan.learning_rates)}, the smallest validation error of S-DNN in as many steps as one worker makes, "
        f"seed {plan.seed}; all methods share it"
    )


def table_rows(found: Findings) -> list[dict[str, Any]]:
    """Table 2: of each number of workers and method, first the global model, then the local one; then S-DNN."""
    made = []
    for workers, _ in found.runs.plan.grids:
        for final in ("g", "l"):
            for method in METHODS:
                case = found.case(method, workers)
                made.append(_row(found, case, final))
    errors = found.errors(Case("s", 1), "g")
    return [*made, {"method": "s", "workers": 1, "final": "g", "error": fmean(errors), "spread": spread(errors)}]


def _row(found: Findings, case: Case, final: str) -> dict[str, Any]:
    errors = found.errors(case, final)
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
            "without": run.case.without or None, "step_size": run.lr, "seed": run.seed,
            "steps": run.steps,
            **{name: value for name, value in result.items() if name != "curve"},
            "curve": [{name: value for name, value in point.items() if name != "losses"} for point in result["curve"]],
        }
        for run, result in results.items()
    ]  # fmt: skip
