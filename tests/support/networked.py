"""Training on a cluster of which one node is elsewhere: python -m support.networked ADDRESS DIRECTORY.

Says when it has begun, and ends when there is a file ``enough`` in the directory. Then it tells who came and went.
"""

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

import paceline as pl
from support.digits import digits_task


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
    while True:
        try:
            run = train()
            break
        except pl.ConfigError as error:
            if "is missing" not in str(error):
                raise
            time.sleep(0.5)  # the other node is still starting
    events = [fact for fact in run.trace if isinstance(fact, pl.Joined | pl.Left)]
    print(json.dumps([[type(event).__name__, event.worker] for event in events]), flush=True)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    main(sys.argv[1], Path(sys.argv[2]))
