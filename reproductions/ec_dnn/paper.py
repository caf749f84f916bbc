"""``python -m reproductions ec-dnn``: ensembles of outputs against averages of parameters, on CIFAR-10.

Sun and Liu, *EC-DNN: A new method for parallel training of deep neural networks*.
"""

from reproductions.ec_dnn.claims import claims, run_rows, settings
from reproductions.ec_dnn.findings import Findings
from reproductions.ec_dnn.long import LONG, long_card
from reproductions.ec_dnn.plan import (
    QUICK,
    SMALL,
    EcDnnPlan,
    Runs,
    choose_learning_rates,
    choose_taus,
    cost,
    tuning,
)
from reproductions.ec_dnn.training import run_training
from reproductions.pipeline.card import Card
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


PAPER = Paper("ec-dnn", QUICK, SMALL, make_card, ("cifar10",), AtLength(LONG, long_card, ("mnist", "cifar10")))
