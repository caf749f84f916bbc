"""EC-DNN where it is meant to work: networks near convergence. First digits with few labels, then all of CIFAR-10."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.data.images import read_cifar10, read_mnist
from reproductions.ec_dnn.claims import claims, run_rows, settings
from reproductions.ec_dnn.findings import Findings
from reproductions.ec_dnn.plan import (
    DIGITS,
    FULL,
    EcDnnPlan,
    Results,
    Runs,
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

COMMAND = "python -m reproductions ec-dnn --full --data DIR"


@dataclass(frozen=True, kw_only=True)
class LongPlan(Plan):
    """Plans by the word that the names of their claims begin with; of the last one they have no such word."""

    parts: Mapping[str, EcDnnPlan]


LONG = LongPlan(name="near convergence", parts=MappingProxyType({"digits.": DIGITS, "": FULL}))


def read_both(data: Path | None) -> None:
    """MNIST and CIFAR-10, or which of them is missing."""
    read_mnist(data)
    read_cifar10(data)


def long_card(plan: LongPlan, data: str, campaign: Campaign) -> Card:
    """The claims of a part come when all of its runs are there; until then, how many are."""
    made, rows, told = list[Claim](), list[dict[str, Any]](), dict[str, Any]()
    for prefix, part in plan.parts.items():
        found, own = _part(replace(part, seed=part.seed + plan.seed), data, campaign)
        told[part.name] = own
        if found is None:
            made.append(waiting(f"{prefix}lower.ec_s_g_than_ma_g", "lower", "above 0", f"{own['runs']}; {COMMAND}"))
            continue
        made += [replace(claim, name=prefix + claim.name) for claim in claims(found)]
        rows += [{k: v for k, v in row.items() if k != "right"} for row in run_rows(found.results)]
    return Card("ec-dnn", {"plan": plan.name, "parts": told}, made, rows)


def _part(plan: EcDnnPlan, data: str, campaign: Campaign) -> tuple[Findings | None, dict[str, Any]]:
    """The learning rates first, then tau, then everything else; what was found, if that is all, and the settings."""

    def run(listed: Sequence[Training], label: str) -> tuple[Results, bool]:
        found = campaign.run(run_in_campaign, listed, cost=cost, label=f"{plan.task}, {label}")
        return found, len(found) == len(set(listed))

    tuned, whole = run(tuning(plan, data), "choosing learning rates")
    if not whole:
        return None, {"runs": f"{len(tuned)} runs to choose learning rates"}
    runs = Runs(plan, data, choose_learning_rates(plan, tuned))
    first, whole = run(runs.first(), "choosing tau")
    if not whole:
        return None, {"runs": f"{len(tuned) + len(first)} runs to choose learning rates and tau"}
    taus = choose_taus(runs, first)
    others, whole = run(runs.others(taus), "training")
    if not whole:
        return None, {"runs": f"{len({**tuned, **first, **others})} runs"}
    found = Findings(runs, taus, {**first, **others})
    return found, settings(found)
