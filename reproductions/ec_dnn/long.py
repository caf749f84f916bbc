"""EC-DNN where it is meant to work: networks near convergence. First digits with few labels, then all of CIFAR-10."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from reproductions.ec_dnn.claims import claims, run_rows, settings
from reproductions.ec_dnn.findings import Findings
from reproductions.ec_dnn.plan import (
    DIGITS,
    FULL,
    REGRESSION,
    EcDnnPlan,
    Results,
    Runs,
    Taus,
    choose_learning_rates,
    choose_taus,
    cost,
    tuning,
)
from reproductions.ec_dnn.training import Training, run_in_campaign
from reproductions.pipeline.campaign import Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import Claim, waiting
from reproductions.pipeline.plan import Plan


@dataclass(frozen=True, kw_only=True)
class LongPlan(Plan):
    """Plans by the word that the names of their claims begin with; of the last one they have no such word."""

    parts: Mapping[str, EcDnnPlan]


LONG = LongPlan(name="near convergence", parts=MappingProxyType({"digits.": DIGITS, "": FULL}))


def long_card(plan: LongPlan, data: str, campaign: Campaign) -> Card:
    """The claims of each part, of the runs that there are."""
    listed, rows, told = list[Claim](), list[dict[str, Any]](), dict[str, Any]()
    for prefix, part in plan.parts.items():
        found, choosing = _part(replace(part, seed=part.seed + plan.seed), data, campaign)
        told[part.name] = {**settings(found), "chosen": not choosing}
        own = [_unchosen(claim, choosing) if choosing else claim for claim in claims(found)]
        listed += [replace(claim, name=prefix + claim.name) for claim in own]
        rows += [{k: v for k, v in row.items() if k != "right"} for row in run_rows(found.results)]
    return Card("ec-dnn", {"plan": plan.name, "parts": told}, listed, rows)


def _unchosen(claim: Claim, choosing: str) -> Claim:
    """Which runs it needs is not known yet."""
    return waiting(claim.name, claim.paper, claim.tolerance, choosing)


def _part(plan: EcDnnPlan, data: str, campaign: Campaign) -> tuple[Findings, str]:
    """The learning rates first, then tau, then everything else: what was found, and what is still being chosen."""

    def run(listed: Sequence[Training], label: str) -> tuple[Results, bool]:
        found = campaign.run(run_in_campaign, listed, cost=cost, label=f"{plan.task}, {label}")
        return found, len(found) == len(set(listed))

    some = Taus(plan.averaging[-1], plan.compressing[-1])  # as good as any to count what comes later
    tuned: Results = {}
    whole, tried = True, -1
    while whole and tried < len(tuned):  # each time as far as the results call for it
        tried = len(tuned)
        tuned, whole = run(tuning(plan, data, tuned), "choosing learning rates")
    if not whole:
        runs = Runs(plan, data, dict.fromkeys(plan.sizes, plan.learning_rates[0]))
        campaign.expect(map(cost, {*runs.first(), *runs.others(some)}))
        return Findings(runs, some, {}), f"{plan.name}: learning rates are being chosen"
    runs = Runs(plan, data, choose_learning_rates(plan, tuned))
    first, whole = run(runs.first(), "choosing tau")
    if not whole:
        campaign.expect(map(cost, {*runs.others(some)} - {*runs.first()}))
        return Findings(runs, some, {}), f"{plan.name}: tau is being chosen"
    taus = choose_taus(runs, first)
    wanted = sorted(runs.others(taus), key=lambda each: each.case.method in REGRESSION)  # the longest runs last
    others, _ = run(wanted, "training")
    return Findings(runs, taus, {**first, **others}), ""
