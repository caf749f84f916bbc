"""Training on processes that only a signal ends: python -m support.endless_processes [PIDS]. Says when it has begun.

With a file its workers start helpers of their own, and write their numbers there.
"""

import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

import paceline as pl
from support import faults

judged: list[nn.Module] = []


def judge(model: nn.Module) -> Mapping[str, float]:
    judged.append(model)
    if len(judged) == 2:  # before the first update, and after some
        print("trained", flush=True)
    return {"loss": 0.0}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell would ignore it
    model: nn.Module = nn.Linear(8, 1)
    if len(sys.argv) > 1:
        pids = Path(sys.argv[1])
        model = faults.Struck(model, partial(faults.start_helpers, pids), pids.parent, at=0)
    pl.train(
        pl.Task(model, nn.functional.mse_loss, (torch.rand(200, 8), torch.rand(200, 1)), evaluate=judge),
        strategy=pl.Asynchronous(),
        fleet=pl.ProcessFleet(3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        stop=pl.Stop(updates=10**9),
        every=pl.Every(updates=20),
        progress=False,
    )
