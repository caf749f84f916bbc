"""Workers that come and go.

Above, the number of workers that are there; below, the test loss, which falls all the same

Eight workers are lost at random and come back, as on spot machines. The run continues with those that are there; what
a lost worker was computing is given out again.
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


fleet = paceline.SimulatedFleet(
    LogNormal(1.0, 0.2), workers=8, availability=paceline.Availability(mean_up=60.0, mean_down=25.0)
)
run = paceline.train(
    task(),
    strategy=paceline.FastestK(quorum=5),
    fleet=fleet,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.3),
    batch_size=16,
    stop=paceline.Stop(seconds=200),
    every=paceline.Every(seconds=4),
    progress=False,
)
here, times, counts = 0, [0.0], [8]
for fact in run.trace:
    if isinstance(fact, paceline.Joined | paceline.Left):
        here += 1 if isinstance(fact, paceline.Joined) else -1
        if fact.at:
            times.append(fact.at)
            counts.append(here)
figure = Figure(figsize=(7, 3.4), dpi=90, layout="constrained")
above, below = figure.subplots(2, 1, sharex=True)
above.step(times, counts, where="post")
above.set(ylabel="workers", ylim=(0, 8.5))
below.plot([row.seconds for row in run.history], [row.loss for row in run.history])
below.set(xlabel="seconds", ylabel="test loss", ylim=(0, None))
print(f"{min(counts)} to {max(counts)} workers; accuracy {run.history[-1].accuracy:.0%}")
figure.savefig(sys.argv[1] if sys.argv[1:] else "08_lost_workers.png")
