"""One slow worker of four.

Test accuracy against seconds: unequal batches, groups and asynchronous workers rise sooner than synchronous ones

Three workers take a tenth of a second for a mini-batch, one four tenths. ``UnequalBatches`` gives it fewer samples,
``Grouped`` lets it run its own laps, ``Asynchronous`` waits for nobody. Each rule has the learning rate that suits
it.
"""

import torch
from shared import digits, panels, save

import paceline
from paceline import look
from paceline.delays import Constant, PerSample

figure, axis = panels()
fleet = paceline.SimulatedFleet([PerSample(0.0, Constant(0.1 / 16))] * 3 + [PerSample(0.0, Constant(0.4 / 16))])
rates = {"ssgd": 0.4, "unequal:total=64": 0.4, "gsgd:groups=0-2/3": 0.3, "asgd": 0.2}
for (rule, rate), style in zip(rates.items(), look.lines([*rates]), strict=True):
    run = paceline.train(
        digits(),
        strategy=rule,
        fleet=fleet,
        optimizer=lambda parameters, rate=rate: torch.optim.SGD(parameters, lr=rate),
        batch_size=16,
        stop=paceline.Stop(seconds=20),
        every=paceline.Every(seconds=0.5),
        progress=False,
    )
    label = look.words(rule, workers=4)
    axis.plot([row.seconds for row in run.history], [row.accuracy for row in run.history], label=label, **style)
    reached = run.seconds_to(0.85)
    print(f"{label}: 85 % " + (f"after {reached} s" if reached else "not within 20 s"))
axis.set_ylim(0.4, 1)
look.tidy(axis, across="seconds", up="test accuracy")
axis.legend(frameon=False)
save(figure)
