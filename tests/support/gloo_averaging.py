"""One of two real processes that average models with torch."""

from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from support.ddp import leave
from support.local_models import mlp, trained_by_hand

PERIOD, ROUNDS, MOMENTUM = 4, 3, 0.9


def average(rank: int, directory: Path) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{directory / 'store'}"
    distributed.init_process_group("gloo", meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=MOMENTUM)
    # torch averages at its steps 0, 1, ...; those before ``warmup_steps`` are left alone
    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=PERIOD - 1)
    for batch in torch.load(directory / f"batches{rank}.pt"):
        trained_by_hand(model, [batch], optimizer)
        averager.average_parameters(model.parameters())
    torch.save(model.state_dict(), directory / f"model{rank}.pt")
    leave()
