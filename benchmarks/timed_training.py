"""How long a fleet takes for so many updates, its workers being as warm as those they are compared with."""

import torch
from against_ddp import WARM_UP, Case
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.core.messages import Arrived
from paceline.fleets.base import Fleet


def synchronous(case: Case, fleet: Fleet, updates: int) -> float:
    """Seconds for updates of all workers."""
    return _seconds(case, pl.Synchronous(), fleet, updates + WARM_UP)


def asynchronous(case: Case, fleet: Fleet, updates: int) -> float:
    """Seconds for updates of one worker each."""
    return _seconds(case, pl.Asynchronous(), fleet, updates + WARM_UP * fleet.workers)


def _seconds(case: Case, strategy: pl.strategy.Strategy, fleet: Fleet, updates: int) -> float:
    """From the moment when every worker, on average, has handed in so many gradients, to the last one."""
    run = pl.train(
        pl.Task(case.make(), cross_entropy, case.data(), evaluate=lambda model: {"loss": 0.0}),
        strategy=strategy, fleet=fleet, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=case.lr),
        batch_size=case.batch, stop=pl.Stop(updates=updates), every=pl.Every(updates=updates), progress=False,
    )  # fmt: skip
    arrivals = [event.at for event in run.trace if isinstance(event, Arrived)]
    return arrivals[-1] - arrivals[WARM_UP * fleet.workers - 1]
