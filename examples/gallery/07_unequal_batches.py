"""Mini-batches that follow the speed.

The sizes of four workers against updates: all start with 32, then the slow one gets fewer, and they change again in
slow spells

All workers start with 32 samples. ``UnequalBatches`` measures, and gives the slow worker fewer. Later another worker
slows down, and the sizes follow.
"""

import torch
from shared import panels, save

import paceline
from paceline import look
from paceline.delays import Constant, PerSample, SlowSpells
from paceline.strategy import Resize, Step

inputs, targets = torch.randn(2048, 8), torch.arange(2048) % 2
fleet = paceline.SimulatedFleet(
    [PerSample(0.05, Constant(0.01))] * 3 + [PerSample(0.05, Constant(0.04))],
    slowness=[SlowSpells(factor=3.0, lasts=60.0, every=200.0)],
)
run = paceline.train(
    paceline.Task(torch.nn.Linear(8, 2), torch.nn.functional.cross_entropy, train=(inputs, targets)),
    strategy=paceline.UnequalBatches(paceline.Synchronous(), total=128, window=5),
    fleet=fleet,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    stop=paceline.Stop(updates=300),
    progress=False,
)
sizes, updates, changes = [32] * 4, 0, [(0, [32] * 4)]
for fact in run.trace:
    updates += isinstance(fact, Step)
    if isinstance(fact, Resize):
        sizes = [fact.sizes.get(worker, sizes[worker]) for worker in range(4)]
        changes.append((updates, sizes))
changes.append((updates, sizes))
figure, axis = panels(height=3.0)
for worker in range(4):
    at, samples = [at for at, _ in changes], [each[worker] for _, each in changes]
    axis.step(at, samples, where="post", label=f"worker {worker}", **look.series(worker))
axis.set_ylim(0, None)
look.tidy(axis, across="updates", up="samples of a mini-batch")
axis.legend(frameon=False, ncols=2)
print(f"{len(changes) - 2} changes; sizes at the end: {sizes}")
save(figure)
