"""Plain DistributedDataParallel over gloo, one process for each rank: python -m support.ddp RANK STORE ASKED ANSWER."""

import copy
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

TESTS = Path(__file__).parents[1]


def train_with_ddp(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    batches: Sequence[Sequence[Tensor]],
    ways: Sequence[Mapping[str, Any]],
    where: Path,
) -> list[dict[str, Tensor]]:
    """For each way to set SGD, the weights after a step on each of ``batches[rank]``."""
    asked, answer = where / "asked.pt", where / "answer.pt"
    torch.save({"model": model, "data": data, "batches": batches, "ways": ways}, asked)
    command = [sys.executable, "-m", "support.ddp"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(where / "store"), str(asked), str(answer)], cwd=TESTS)
        for rank in range(len(batches))
    ]
    assert [rank.wait(timeout=100) for rank in ranks] == [0] * len(ranks)
    weights: list[dict[str, Tensor]] = torch.load(answer)
    return weights


def _be_rank(rank: int, store: str, asked: str, answer: str) -> None:
    torch.set_num_threads(1)
    given = torch.load(asked, weights_only=False)
    batches, (inputs, targets) = given["batches"], given["data"]
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=len(batches))
    reached = []
    for sgd in given["ways"]:
        model = nn.parallel.DistributedDataParallel(copy.deepcopy(given["model"]))
        optimizer = torch.optim.SGD(model.parameters(), **sgd)
        for batch in batches[rank]:
            optimizer.zero_grad()
            cross_entropy(model(inputs[batch]), targets[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        reached.append(model.module.state_dict())
    if rank == 0:
        torch.save(reached, answer)
    leave()


def leave() -> NoReturn:
    """End when everybody has come so far. At once: torch sometimes aborts a process while it takes a group down."""
    torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    _be_rank(int(sys.argv[1]), *sys.argv[2:])
