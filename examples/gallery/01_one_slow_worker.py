"""One slow worker of four.

Test accuracy against seconds: unequal batches, groups and asynchronous workers rise sooner than synchronous ones

Three workers take a tenth of a second for a mini-batch, one four tenths. ``UnequalBatches`` gives it fewer samples,
``Grouped`` lets it run its own laps, ``Asynchronous`` waits for nobody. Each rule has the learning rate that suits
it.
"""

import sys

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import paceline
from paceline.delays import Constant, PerSample

images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float() / 16


def task() -> paceline.Task:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    train, test = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])
    return paceline.Task(model, torch.nn.functional.cross_entropy, train=train, test=test)


figure = Figure(figsize=(7, 3.2), dpi=90, layout="constrained")
axis = figure.subplots()
fleet = paceline.SimulatedFleet([PerSample(0.0, Constant(0.1 / 16))] * 3 + [PerSample(0.0, Constant(0.4 / 16))])
rules = {
    "Synchronous": ("ssgd", 0.4),
    "Unequal batches": ("unequal:total=64,window=5", 0.4),
    "Groups": ("gsgd:groups=0-2/3", 0.3),
    "Asynchronous": ("asgd", 0.2),
}
for (label, (rule, rate)), dashes in zip(rules.items(), ("-", "--", "-.", ":"), strict=True):
    run = paceline.train(
        task(),
        strategy=rule,
        fleet=fleet,
        optimizer=lambda parameters, rate=rate: torch.optim.SGD(parameters, lr=rate),
        batch_size=16,
        stop=paceline.Stop(seconds=20),
        every=paceline.Every(seconds=0.5),
        progress=False,
    )
    axis.plot([row.seconds for row in run.history], [row.accuracy for row in run.history], dashes, label=label)
    print(f"{label}: 85 % after {run.seconds_to(0.85)} s")
axis.set(xlabel="seconds", ylabel="test accuracy", ylim=(0.4, 1))
axis.legend(frameon=False)
figure.savefig(sys.argv[1] if sys.argv[1:] else "01_one_slow_worker.png")
