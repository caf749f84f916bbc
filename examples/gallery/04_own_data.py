"""Late workers with data of their own.

The parameter against time: FastestK settles at 3.7, Synchronous and LiveCompensation at the optimum 5.6

Ten workers each have one term of a quadratic; three are always slow. A rule that leaves them out converges to another
point. ``LiveCompensation`` uses what they have one update later.
"""

import sys

import numpy as np
import torch
from matplotlib.figure import Figure

import paceline
from paceline.delays import Constant


class Point(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.x.expand(len(inputs))


class OneEach:
    def shards(self, samples: object, workers: int, generator: object) -> list[np.ndarray]:
        return [np.array([worker]) for worker in range(workers)]


terms = torch.stack([torch.linspace(0.5, 2, 10), torch.arange(10.0)], dim=1)
task = paceline.Task(
    Point(),
    loss=lambda x, terms: terms[:, 0] * (x - terms[:, 1]) ** 2 / 2,
    train=(torch.zeros(10, 1), terms),
    evaluate=lambda model: {"loss": 0.0, "x": float(model.x)},
)
figure = Figure(figsize=(7, 3.2), dpi=90, layout="constrained")
axis = figure.subplots()
rules = (paceline.Synchronous(), paceline.FastestK(quorum=7), paceline.LiveCompensation(quorum=7, blocks=1))
for rule, dashes in zip(rules, ("-", "--", ":"), strict=True):
    run = paceline.train(
        task,
        strategy=rule,
        partition=OneEach(),
        batch_size=1,
        fleet=paceline.SimulatedFleet([Constant(1.0)] * 7 + [Constant(2.0)] * 3, recall="complete"),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        stop=paceline.Stop(seconds=150),
        every=paceline.Every(updates=2),
        progress=False,
    )
    places = [row.metrics["x"] for row in run.history]
    axis.plot([row.seconds for row in run.history], places, dashes, label=type(rule).__name__)
    print(f"{type(rule).__name__}: {places[-1]:.2f}")
axis.axhline(5.6, color="0.6", linewidth=0.8)
axis.set(xlabel="seconds", ylabel="x; the optimum is 5.6")
axis.legend(frameon=False)
figure.savefig(sys.argv[1] if sys.argv[1:] else "04_own_data.png")
