"""``python -m reproductions ec-dnn``: ensembles of outputs against averages of parameters, on CIFAR-10.

Sun and Liu, *EC-DNN: A new method for parallel training of deep neural networks*.
"""

from collections.abc import Sequence
from pathlib import Path

from reproductions.datasets.readers import read_cifar10
from reproductions.ec_dnn.claims import claims, run_rows, settings
from reproductions.ec_dnn.findings import Findings
from reproductions.ec_dnn.plan import QUICK, SMALL, Plan, Results, Runs, choose_steps, choose_taus, cost, tuning
from reproductions.ec_dnn.training import Training, run_training
from reproductions.pipeline.card import Card, Options
from reproductions.pipeline.runs import Job, run_jobs

__all__ = ["figures", "reproduce"]


def reproduce(options: Options) -> Card:
    """The step sizes first, then tau, then everything else."""
    return reproduce_plan(QUICK if options.quick else SMALL, options)


def reproduce_plan(plan: Plan, options: Options) -> Card:
    """The same for any plan."""
    read_cifar10(options.data)  # refused now rather than in the middle
    data = str(Path(options.data or ".").resolve())
    tuned = _train(tuning(plan, data), options, "choosing step sizes")
    runs = Runs(plan, data, choose_steps(plan, tuned))
    first = _train(runs.first(), options, "choosing tau")
    taus = choose_taus(runs, first)
    found = Findings(runs, taus, {**first, **_train(runs.others(taus), options, "training")})
    return Card("ec-dnn", settings(found), claims(found), run_rows({**tuned, **found.results}))


def figures(card: Card, directory: Path) -> list[Path]:
    """Draw what the card's runs came to, and write the paper's tables."""
    from reproductions.ec_dnn.figures import draw

    return draw(card, directory)


def _train(trainings: Sequence[Training], options: Options, label: str) -> Results:
    jobs = [Job(run_training, training, cost(training)) for training in trainings]
    results = run_jobs(jobs, work=options.work, processes=options.processes, label=label)
    return dict(zip(trainings, results, strict=True))
