"""Momentum and staleness.

Loss against updates for asynchronous workers: with momentum 0.9 and the same learning rate the loss stays high

Eight asynchronous workers, so gradients are seven updates old. Momentum 0.9 at the same learning rate is ten times as
much as the workers can bear; a tenth of the learning rate works again.
"""

import torch
from shared import digits, panels, save

import paceline
from paceline import look
from paceline.delays import LogNormal

figure, axis = panels()
fleet = paceline.SimulatedFleet(LogNormal(1.0, 0.2), workers=8)
for number, (momentum, rate) in enumerate(((0.0, 0.1), (0.9, 0.01), (0.9, 0.1))):
    run = paceline.train(
        digits(),
        strategy="asgd",
        fleet=fleet,
        optimizer=lambda parameters, m=momentum, lr=rate: torch.optim.SGD(parameters, lr=lr, momentum=m),
        batch_size=16,
        stop=paceline.Stop(updates=700),
        every=paceline.Every(updates=25),
        progress=False,
    )
    label = f"momentum {momentum:g}, learning rate {rate:g}"
    updates, losses = [row.updates for row in run.history], [row.loss for row in run.history]
    axis.plot(updates, losses, label=label, **look.series(number))
    print(f"{label}: loss {run.history[-1].loss:.3f}")
axis.set_ylim(0, 4)
look.tidy(axis, across="updates", up="test loss")
axis.legend(frameon=False)
save(figure)
