"""Training on a cluster of which one node is elsewhere: python -m support.networked ADDRESS DIRECTORY.

Says when it has begun, and ends when there is a file ``enough`` in the directory. Then it tells who came and went.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

import paceline as pl
from support.digits import digits_task

ELSEWHERE = "elsewhere"  # the resource of the node behind the link


def main(address: str, directory: Path) -> None:
    looks: list[int] = []

    def judge(model: nn.Module) -> Mapping[str, float]:
        looks.append(1)
        if len(looks) == 3:
            print("trained", flush=True)
        return {"loss": 0.0, "accuracy": float((directory / "enough").exists())}

    fleet = pl.RayFleet(
        2, address=address, slow={0: pl.delays.Constant(0.02), 1: pl.delays.Constant(0.02)},
        deadline=pl.SilenceTimeout(factor=5.0, at_least=2.0, at_first=200.0),
    )  # fmt: skip
    train = partial(
        pl.train, replace(digits_task(), evaluate=judge), strategy=pl.Asynchronous(), fleet=fleet, progress=False,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), stop=pl.Stop(target=0.5),
        every=pl.Every(updates=10), directory=directory / "run",
    )  # fmt: skip
    run = until_it_fits(train)
    events = [fact for fact in run.trace if isinstance(fact, pl.Joined | pl.Left)]
    print(json.dumps([[type(event).__name__, event.worker] for event in events]), flush=True)


def until_it_fits(train: Callable[[], pl.Run]) -> pl.Run:
    """Train, as soon as the other node has started."""
    while True:
        try:
            return train()
        except pl.ConfigError as error:
            if not any(words in str(error) for words in ("is missing", "fits no node")):
                raise
            time.sleep(0.5)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    main(sys.argv[1], Path(sys.argv[2]))
