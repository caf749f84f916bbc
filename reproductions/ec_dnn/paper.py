"""``python -m reproductions ec-dnn``: ensembles of outputs against averages of parameters, on CIFAR-10.

Sun and Liu, *EC-DNN: A new method for parallel training of deep neural networks*.
"""

from paceline.data.images import read_cifar10
from reproductions.ec_dnn.claims import claims, run_rows, settings
from reproductions.ec_dnn.findings import Findings
from reproductions.ec_dnn.plan import (
    FULL,
    QUICK,
    SMALL,
    EcDnnPlan,
    Results,
    Runs,
    choose_learning_rates,
    choose_taus,
    cost,
    tuning,
)
from reproductions.ec_dnn.training import run_in_campaign, run_training
from reproductions.pipeline.campaign import Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.claims import Claim
from reproductions.pipeline.paper import AtLength, Paper
from reproductions.pipeline.runs import Runner


def make_card(plan: EcDnnPlan, data: str, runner: Runner) -> Card:
    """The learning rates first, then tau, then everything else."""
    tuned = runner.run(run_training, tuning(plan, data), cost=cost, label="choosing learning rates")
    runs = Runs(plan, data, choose_learning_rates(plan, tuned))
    first = runner.run(run_training, runs.first(), cost=cost, label="choosing tau")
    taus = choose_taus(runs, first)
    others = runner.run(run_training, runs.others(taus), cost=cost, label="training")
    found = Findings(runs, taus, {**first, **others})
    return Card("ec-dnn", settings(found), claims(found), run_rows({**tuned, **found.results}))


def long_card(plan: EcDnnPlan, data: str, campaign: Campaign) -> Card:
    """The same in a campaign: the claims come when all runs are there; until then, which are missing."""
    tuned = campaign.run(run_in_campaign, tuning(plan, data), cost=cost, label="choosing learning rates")
    if len(tuned) < len(tuning(plan, data)):
        return _unfinished(plan, tuned)
    runs = Runs(plan, data, choose_learning_rates(plan, tuned))
    first = campaign.run(run_in_campaign, runs.first(), cost=cost, label="choosing tau")
    if len(first) < len(runs.first()):
        return _unfinished(plan, {**tuned, **first})
    taus = choose_taus(runs, first)
    others = campaign.run(run_in_campaign, runs.others(taus), cost=cost, label="training")
    results = {**first, **others}
    if len(others) < len(runs.others(taus)):
        return _unfinished(plan, {**tuned, **results})
    found = Findings(runs, taus, results)
    rows = [{k: v for k, v in row.items() if k != "right"} for row in run_rows({**tuned, **results})]
    return Card("ec-dnn", settings(found), claims(found), rows)


def _unfinished(plan: EcDnnPlan, results: Results) -> Card:
    done = f"{len(results)} runs are there; python -m reproductions ec-dnn --full --data DIR continues"
    claim = Claim("lower.ec_s_g_than_ma_g", "lower", None, "above 0", None, f"not run yet: {done}")
    return Card("ec-dnn", {"plan": plan.name, "runs": done}, [claim])


PAPER = Paper("ec-dnn", QUICK, SMALL, make_card, read_cifar10, AtLength(FULL, long_card, read_cifar10))
