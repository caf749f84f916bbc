"""Training behind a narrow link: python -m support.shaped ADDRESS PARAMETERS UPDATES.

Two workers on the node elsewhere. Prints the time after each third of the updates but the first, and waits for a line.
"""

import sys
import time
from collections.abc import Mapping

import torch
from torch import nn

import paceline as pl
from support.networked import ELSEWHERE, until_it_fits


def main(address: str, parameters: int, updates: int) -> None:
    looks: list[int] = []

    def judge(model: nn.Module) -> Mapping[str, float]:
        looks.append(1)
        if len(looks) > 1:  # the first one is of the model as it was
            print(time.monotonic(), flush=True)
            sys.stdin.readline()
        return {"loss": 0.0}

    task = pl.Task(
        nn.Linear(parameters - 1, 1), nn.functional.mse_loss, (torch.rand(4, parameters - 1), torch.rand(4, 1)),
        evaluate=judge,
    )  # fmt: skip
    fleet = pl.RayFleet(2, {ELSEWHERE: 1.0}, address=address, slow=dict.fromkeys(range(2), pl.delays.Constant(0.05)))
    until_it_fits(
        lambda: pl.train(
            task, strategy=pl.Synchronous(), fleet=fleet, progress=False, batch_size=1, stop=pl.Stop(updates=updates),
            optimizer=lambda each: torch.optim.SGD(each, lr=0.01), every=pl.Every(updates=updates // 3),
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
