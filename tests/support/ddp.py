"""Plain DistributedDataParallel over gloo, one process for each rank."""

import copy
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from support.forks import all_well, forked


def train_with_ddp(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    batches: Sequence[Sequence[Tensor]],
    ways: Sequence[Mapping[str, Any]],
    where: Path,
) -> list[dict[str, Tensor]]:
    """For each way to set SGD, the weights after a step on each of ``batches[rank]``."""
    answer = where / "answer.pt"
    settings: dict[str, Any] = {
        "store": where / "store",
        "answer": answer,
        "model": model,
        "data": data,
        "batches": batches,
        "ways": ways,
    }
    all_well(forked(*(partial(_be_rank, rank, **settings) for rank in range(len(batches)))))
    weights: list[dict[str, Tensor]] = torch.load(answer)
    return weights


def _be_rank(
    rank: int,
    *,
    store: Path,
    answer: Path,
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    batches: Sequence[Sequence[Tensor]],
    ways: Sequence[Mapping[str, Any]],
) -> None:
    torch.set_num_threads(1)
    inputs, targets = data
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=len(batches))
    reached = []
    for sgd in ways:
        replica = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
        optimizer = torch.optim.SGD(replica.parameters(), **sgd)
        for batch in batches[rank]:
            optimizer.zero_grad()
            cross_entropy(replica(inputs[batch]), targets[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        reached.append(replica.module.state_dict())
    if rank == 0:
        torch.save(reached, answer)
    leave()


def leave() -> NoReturn:
    """End when everybody has come so far. At once: torch sometimes aborts a process while it takes a group down."""
    torch.distributed.barrier()
    os._exit(0)
