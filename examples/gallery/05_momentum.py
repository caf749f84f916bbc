"""Momentum and staleness.

Loss against updates for asynchronous workers: with momentum 0.9 and the same learning rate the loss stays high

Eight asynchronous workers, so gradients are seven updates old. Momentum 0.9 at the same learning rate is ten times as
much as the workers can bear; a tenth of the learning rate works again.
"""

import sys

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import paceline
from paceline.delays import LogNormal

images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16


def task() -> paceline.Task:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    train, test = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])
    return paceline.Task(model, torch.nn.functional.cross_entropy, train=train, test=test)


figure = Figure(figsize=(7, 3.2), dpi=90, layout="constrained")
axis = figure.subplots()
fleet = paceline.SimulatedFleet(LogNormal(1.0, 0.2), workers=8)
for momentum, rate, dashes in ((0.0, 0.1, "-"), (0.9, 0.01, "--"), (0.9, 0.1, ":")):
    run = paceline.train(
        task(),
        strategy="asgd",
        fleet=fleet,
        optimizer=lambda parameters, m=momentum, lr=rate: torch.optim.SGD(parameters, lr=lr, momentum=m),
        batch_size=16,
        stop=paceline.Stop(updates=700),
        every=paceline.Every(updates=25),
        progress=False,
    )
    label = f"momentum {momentum:g}, learning rate {rate:g}"
    axis.plot([row.updates for row in run.history], [row.loss for row in run.history], dashes, label=label)
    print(f"{label}: loss {run.history[-1].loss:.3f}")
axis.set(xlabel="updates", ylabel="test loss", ylim=(0, 4))
axis.legend(frameon=False)
figure.savefig(sys.argv[1] if sys.argv[1:] else "05_momentum.png")
