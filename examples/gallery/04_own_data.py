"""Late workers with data of their own.

The parameter against time: FastestK settles at 3.7, Synchronous and LiveCompensation at the optimum 5.6

Ten workers each have one term of a quadratic; three are always slow. A rule that leaves them out converges to another
point. ``LiveCompensation`` uses what they have one update later.
"""

import numpy as np
import torch
from shared import Point, panels, save

import paceline
from paceline import look
from paceline.delays import Constant


class OneEach:
    def shards(self, samples: object, workers: int, generator: object) -> list[np.ndarray]:
        return [np.array([worker]) for worker in range(workers)]


terms = torch.stack([torch.linspace(0.5, 2, 10), torch.arange(10.0)], dim=1)
task = paceline.Task(
    Point(0.0),
    loss=lambda x, terms: terms[:, 0] * (x - terms[:, 1]) ** 2 / 2,
    train=(torch.zeros(10, 1), terms),
    evaluate=lambda model: {"loss": 0.0, "x": float(model.x)},
)
figure, axis = panels()
rules = (paceline.Synchronous(), paceline.FastestK(quorum=7), paceline.LiveCompensation(quorum=7, blocks=1))
for rule, style in zip(rules, look.lines(rules), strict=True):
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
    label = look.words(rule, workers=10)
    axis.plot([row.seconds for row in run.history], places, label=label, **style)
    print(f"{label}: {places[-1]:.2f}")
axis.axhline(5.6, color=look.DIM, linewidth=0.8)
look.tidy(axis, across="seconds", up="x; the optimum is 5.6")
axis.legend(frameon=False)
save(figure)
