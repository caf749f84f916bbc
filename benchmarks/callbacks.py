"""What callbacks cost: the time of an update with ten of them against the same run without, as a ratio.

    python benchmarks/callbacks.py [--save] [--rounds N]

LeNet and a linear model on 16 simulated workers. Each of the ten callbacks overrides every hook and counts what it is
told; ten others override nothing. Short runs with them and without take turns. Counted is the processor time from the
first evaluation to the last; reported is the median over the rounds of the ratio of the runs of one round, and the
ratio of the fastest ones, which other work on the machine disturbs least.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from measuring import interleaved_seconds, parse, ratio, save
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.callbacks import Row, RunInfo, Update, WorkerEvent

WORKERS, BATCH, NUMBER = 16, 16, 10
UPDATES = {"LeNet": 12, "linear": 300}
AIM = 1.02  # with ten callbacks, at most


class Counts(pl.Callback):
    """Counts what it is told, with every hook."""

    def __init__(self) -> None:
        self.seen = 0
        self.last: object = None

    def _see(self, value: object) -> None:
        self.seen += 1
        self.last = value

    def on_start(self, run: RunInfo) -> None:
        self._see(run)

    def on_update(self, update: Update) -> None:
        self._see(update)

    def on_evaluate(self, row: Row) -> None:
        self._see(row)

    def on_checkpoint(self, path: Path) -> None:
        self._see(path)

    def on_worker(self, event: WorkerEvent) -> None:
        self._see(event)

    def on_end(self, run: pl.Run) -> None:
        self._see(run.ended)


class Clock(pl.Callback):
    """The processor time from the first evaluation to the last."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_evaluate(self, row: Row) -> None:
        self.times.append(time.process_time())


def task(model: str) -> pl.Task:
    torch.manual_seed(0)
    if model == "linear":
        return pl.Task(nn.Linear(64, 10), cross_entropy, train=(torch.randn(2048, 64), torch.randint(0, 10, (2048,))))
    net = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    return pl.Task(net, cross_entropy, train=(torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))))


def seconds(model: str, make: Callable[[], pl.Callback], number: int) -> float:
    callbacks, clock = [make() for _ in range(number)], Clock()
    pl.train(
        task(model), strategy=pl.FastestK(12), fleet=pl.SimulatedFleet(pl.delays.LogNormal(1.0, 0.5), workers=WORKERS),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01), batch_size=BATCH,
        stop=pl.Stop(updates=UPDATES[model]), every=pl.Every(updates=10**9), callbacks=[clock, *callbacks],
        progress=False,
    )  # fmt: skip
    counted = [each.seen for each in callbacks if isinstance(each, Counts)]
    assert all(seen > UPDATES[model] for seen in counted)
    return clock.times[-1] - clock.times[0]


def measure(model: str, rounds: int) -> dict[str, Any]:
    times = interleaved_seconds(
        {
            "none": partial(seconds, model, Counts, 0),
            "ten": partial(seconds, model, Counts, NUMBER),
            "ten that override nothing": partial(seconds, model, pl.Callback, NUMBER),
        },
        rounds,
    )
    each = [ten / none for ten, none in zip(times["ten"], times["none"], strict=True)]
    return {
        "ten callbacks / none": round(ratio(times, "ten", "none"), 4),
        "quartiles": [round(quartile, 4) for quartile in quantiles(each, n=4, method="inclusive")[::2]],
        "of the fastest": round(min(times["ten"]) / min(times["none"]), 4),
        "ten that override nothing / none": round(ratio(times, "ten that override nothing", "none"), 4),
    }


def main() -> None:
    rounds = parse().rounds
    result = {model: measure(model, rounds) for model in UPDATES}
    save("callbacks", {"aim": f"at most {AIM} for LeNet", "workers": WORKERS, "rounds": rounds, **result})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
