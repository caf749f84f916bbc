"""What ``step=`` costs over ``loss=`` for the same model: LeNet on 16 simulated workers, the same mini-batches.

    python benchmarks/step_function.py [--save] [--rounds N]

step / loss     updates with a step that returns the loss of each sample: passes are joined in both
logged / loss   the same with a step that also logs the accuracy
run / run       a whole run with its trials, four evaluations on 2,000 test samples and its start: step to loss
mean / exact    a step that returns the mean loss, whose passes are not joined, to the loss with evaluation="exact"

Runs take turns; each ratio is the median over the rounds. The first updates do not count in the first two: in them it
is tried whether passes may be joined.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measuring import interleaved_seconds, parse, ratio, save, seconds
from simulator import BATCH, BEFORE, SAMPLES, WORKERS, lenet
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl

UPDATES, TESTED = 12, 2_000
AIM = 1.03


def each(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return cross_entropy(model(inputs), targets, reduction="none")


def logged(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    inputs, targets = batch
    outputs = model(inputs)
    loss = cross_entropy(outputs, targets, reduction="none")
    return {"loss": loss, "accuracy": (outputs.argmax(dim=1) == targets).float()}


def mean(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return cross_entropy(model(inputs), targets)


def alternatives() -> dict[str, Callable[[], float]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(SAMPLES, 3, 32, 32, generator=generator)
    targets = torch.randint(10, (SAMPLES,), generator=generator)
    torch.manual_seed(0)
    model, tested = lenet(), (inputs[:TESTED], targets[:TESTED])

    def train(task: pl.Task, evaluation: str = "fused", every: int = BEFORE) -> None:
        pl.train(
            task, strategy=pl.Synchronous(), optimizer=lambda p: torch.optim.SGD(p, lr=0.01), batch_size=BATCH,
            fleet=pl.SimulatedFleet(
                pl.delays.Constant(1.0), workers=WORKERS, threads=torch.get_num_threads(),
                evaluation=evaluation,  # type: ignore[arg-type]
            ),
            progress=False, stop=pl.Stop(updates=BEFORE + UPDATES), every=pl.Every(updates=every),
        )  # fmt: skip

    def updates(evaluation: str = "fused", **function: Any) -> float:
        evaluated: list[float] = []

        def evaluate(model: nn.Module) -> dict[str, float]:
            evaluated.append(time.perf_counter())
            return {"loss": 0.0}

        train(pl.Task(model, train=(inputs, targets), evaluate=evaluate, **function), evaluation)
        return evaluated[-1] - evaluated[1]

    def run(**function: Any) -> float:
        task = pl.Task(model, train=(inputs, targets), test=tested, **function)
        return seconds(lambda: train(task, every=(BEFORE + UPDATES) // 3))

    return {
        "loss": partial(updates, loss=cross_entropy),
        "step": partial(updates, step=each),
        "logged": partial(updates, step=logged),
        "run of a loss": partial(run, loss=cross_entropy),
        "run of a step": partial(run, step=each),
        "exact": partial(updates, "exact", loss=cross_entropy),
        "mean": partial(updates, step=mean),
    }


def main() -> None:
    times = interleaved_seconds(alternatives(), parse().rounds)
    found = {
        "step / loss": round(ratio(times, "step", "loss"), 3),
        "logged / loss": round(ratio(times, "logged", "loss"), 3),
        "run / run": round(ratio(times, "run of a step", "run of a loss"), 3),
        "mean / exact": round(ratio(times, "mean", "exact"), 3),
    }
    save("step_function", {"model": "LeNet", "workers": WORKERS, "batch size": BATCH, "at most": AIM, **found})


if __name__ == "__main__":
    main()
