"""A slow network.

Test accuracy against seconds: DiLoCo and model averaging rise sooner than synchronous gradients

A message takes half a second, a mini-batch a tenth of one. Workers that make sixteen steps of their own between two
exchanges reach 75 % accuracy about five times as soon.
"""

import torch
from shared import digits, panels, save

import paceline
from paceline import look
from paceline.delays import Constant

figure, axis = panels()
fleet = paceline.SimulatedFleet(Constant(0.1), workers=4, network=paceline.Network(latency=0.5, bandwidth=1e9))
rates = {"ssgd": 0.4, "ma:every=16": 0.2, "diloco:every=16": 0.1}
for (rule, rate), style in zip(rates.items(), look.lines([*rates]), strict=True):
    run = paceline.train(
        digits(),
        strategy=rule,
        fleet=fleet,
        optimizer=lambda parameters, rate=rate: torch.optim.SGD(parameters, lr=rate),
        batch_size=16,
        stop=paceline.Stop(seconds=60),
        every=paceline.Every(updates=1),
        progress=False,
    )
    label = look.words(rule, workers=4)
    axis.plot([row.seconds for row in run.history], [row.accuracy for row in run.history], label=label, **style)
    print(f"{label}: accuracy {run.history[-1].accuracy:.0%} after {run.history[-1].seconds:.0f} s")
axis.set_ylim(0, 1)
look.tidy(axis, across="seconds", up="test accuracy")
axis.legend(frameon=False, loc="lower right")
save(figure)
