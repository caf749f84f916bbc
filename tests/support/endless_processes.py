"""Training on processes that only a signal ends: python -m support.endless_processes. Says when it has begun."""

import signal
from collections.abc import Mapping

import torch
from torch import nn

import paceline as pl

judged: list[nn.Module] = []


def judge(model: nn.Module) -> Mapping[str, float]:
    judged.append(model)
    if len(judged) == 2:  # before the first update, and after some
        print("trained", flush=True)
    return {"loss": 0.0}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell would ignore it
    pl.train(
        pl.Task(nn.Linear(8, 1), nn.functional.mse_loss, (torch.rand(200, 8), torch.rand(200, 1)), evaluate=judge),
        strategy=pl.Asynchronous(),
        fleet=pl.ProcessFleet(3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        stop=pl.Stop(updates=10**9),
        every=pl.Every(updates=20),
        progress=False,
    )
