"""``python -m reproductions sdde``: asynchronous SGD and its delay equation, in distribution and not only as one path.

He, Meng, Chen, Ma & Liu, *Differential Equations for Modeling Asynchronous Algorithms*.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reproductions.pipeline.campaign import Campaign
from reproductions.pipeline.card import Card
from reproductions.pipeline.paper import AtLength, Paper
from reproductions.pipeline.plan import Plan
from reproductions.pipeline.runs import Runner
from reproductions.sdde.claims import all_claims
from reproductions.sdde.curved import network_claims
from reproductions.sdde.experiment import BATCH_GRID, BATCHES, DELAYS, GRIDS, ensemble, error_row, paths_row
from reproductions.sdde.network import NetworkStudy, run_study


@dataclass(frozen=True, kw_only=True)
class SddePlan(Plan):
    """How many paths of each method, and for which numbers of updates the approximation error is measured."""

    paths: int
    grids: Sequence[int]
    network: NetworkStudy | None = None  # asynchronous SGD of LeNet beside its delay equation


USUAL = SddePlan(name="full", paths=4000, grids=GRIDS)
FULL = replace(USUAL, network=NetworkStudy("."))
QUICK = SddePlan(name="reduced: 1000 of 4000 paths", paths=1000, grids=GRIDS[:-1])


def make_card(plan: SddePlan, data: str, runner: Runner | Campaign) -> Card:
    """The paper's experiment with many paths, its approximation errors, and its theorems: seconds. LeNet: minutes."""
    studied = []
    if plan.network is not None:
        study = replace(plan.network, data=data, seed=plan.network.seed + plan.seed)
        studied = list(runner.run(run_study, [study], label="LeNet on 16 workers", cost=lambda _: 180.0).values())
    ensembles = {name: ensemble(name, plan.paths, plan.seed) for name in DELAYS}
    by_grid = [error_row(updates, 1, plan.seed) for updates in plan.grids]
    by_batch = [error_row(BATCH_GRID, size, plan.seed) for size in BATCHES]
    claims = all_claims(ensembles, by_grid, by_batch, plan.paths, plan.seed)
    if plan.network is not None:
        claims += network_claims(studied[0] if studied else None)
    rows = [*(paths_row(each) for each in ensembles.values()), *by_grid, *by_batch]
    rows += [{"what": "network", **each} for each in studied]
    settings = {
        "experiment": "F = (x+1)^2/2 + (x-1)^2/2, step 0.005, 2000 iterations, delay 10, from 4",
        "noise": "gradients 2(x+1) and 2(x-1) with equal odds, mini-batches of 1: sigma 2",
        "paths": plan.paths,
        "scale": plan.name,
    }
    return Card("sdde", settings, claims, rows)


PAPER = Paper("sdde", QUICK, USUAL, make_card, full=AtLength(FULL, make_card, ("cifar10",)))
