"""A slow network.

Test accuracy against seconds: DiLoCo and model averaging rise sooner than synchronous gradients

A message takes half a second, a mini-batch a tenth of one. Workers that make sixteen steps of their own between two
exchanges reach 75 % accuracy about five times as soon.
"""

import sys

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import paceline
from paceline.delays import Constant

images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16


def task() -> paceline.Task:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    train, test = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])
    return paceline.Task(model, torch.nn.functional.cross_entropy, train=train, test=test)


figure = Figure(figsize=(7, 3.2), dpi=90, layout="constrained")
axis = figure.subplots()
fleet = paceline.SimulatedFleet(Constant(0.1), workers=4, network=paceline.Network(latency=0.5, bandwidth=1e9))
rules = {
    "Synchronous gradients": (paceline.Synchronous(), 0.4),
    "Model averaging, every 16 steps": (paceline.ModelAveraging(every=16), 0.2),
    "DiLoCo, every 16 steps": (paceline.DiLoCo(every=16), 0.1),
}
for (label, (rule, rate)), dashes in zip(rules.items(), ("-", "--", ":"), strict=True):
    run = paceline.train(
        task(),
        strategy=rule,
        fleet=fleet,
        optimizer=lambda parameters, rate=rate: torch.optim.SGD(parameters, lr=rate),
        batch_size=16,
        stop=paceline.Stop(seconds=60),
        every=paceline.Every(updates=1),
        progress=False,
    )
    axis.plot([row.seconds for row in run.history], [row.accuracy for row in run.history], dashes, label=label)
    print(f"{label}: accuracy {run.history[-1].accuracy:.0%} after {run.history[-1].seconds:.0f} s")
axis.set(xlabel="seconds", ylabel="test accuracy", ylim=(0, 1))
axis.legend(frameon=False, loc="lower right")
figure.savefig(sys.argv[1] if sys.argv[1:] else "09_slow_network.png")
