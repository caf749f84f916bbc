"""Rules whose workers hand in models, on a Ray cluster: a run, and its replay bit for bit. One cluster for all.

One rule for each thing that a server does with models: BMUF, SlowMo and post-local SGD are other numbers of DiLoCo's.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import paceline as pl
from paceline.core.messages import Step
from paceline.fleets.base import Fleet
from support.digits import weights
from support.ray_cluster import nodes
from support.resumable import PROCESSES, replayed

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its log files open
RULES = {
    "DiLoCo": pl.DiLoCo(every=2),
    "Decoupled DiLoCo": pl.DecoupledDiLoCo(every=2, quorum=1, grace=0.02),
    "AdaComm": pl.AdaComm(every=4, interval=2),
    "FedBuff": pl.FedBuff(every=2, size=2),
    "FedAsync": pl.FedAsync(every=2),
    "EASGD": pl.EASGD(every=2),
    "local steps by speed": pl.ModelAveraging(every=3, waits=pl.Asynchronous(), by_speed=True),
}
UPDATES = 6


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Its agent, which takes seconds to start, stays from run to run."""
    with nodes([2], head=1) as cluster, pl.RayFleet(2, {"CPU": 1.0}, address=cluster.address).persistent() as made:
        yield made


@pytest.mark.parametrize("name", RULES)
def test_a_run_of_models_is_replayed_bit_for_bit(name: str, fleet: Fleet, tmp_path: Path) -> None:
    case = replace(PROCESSES, fleet=fleet, strategy=RULES[name])
    run = case.run(tmp_path, pl.Stop(updates=UPDATES))
    taken = [fact for fact in run.trace if isinstance(fact, Step)]
    assert len(taken) == UPDATES
    assert {ticket.work.kind for step in taken for ticket in step.weights} == {"local_steps"}
    assert torch.isfinite(weights(run.model)).all()
    found = replayed(case, tmp_path)
    assert (found.departure, found.differences, found.compared) == (None, {}, True)
