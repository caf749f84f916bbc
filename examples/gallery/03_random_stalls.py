"""Everybody is late now and then.

Updates a second against the quorum of sixteen workers: the last few workers cost most of the speed

Sixteen workers with heavy tails (Pareto). How many of them should an update wait for? The last two cost as much time
as all the others.
"""

from shared import panels, save

import paceline
from paceline import look
from paceline.delays import Pareto

fleet = paceline.SimulatedFleet(Pareto(1.0, 2.5), workers=16)
quorums = range(1, 17)
speeds = [paceline.predict(paceline.FastestK(quorum), fleet).runtime.updates_per_second.value for quorum in quorums]
gradients = [speed * quorum for speed, quorum in zip(speeds, quorums, strict=True)]
best = max(quorums, key=lambda quorum: gradients[quorum - 1])
figure, axes = panels(1, 2, height=2.8)
for axis, numbers, what in zip(axes, (speeds, gradients), ("updates", "gradients used"), strict=True):
    axis.plot(quorums, numbers, **look.line("k-sgd:quorum=8") | {"markevery": 1})
    axis.set_ylim(0, None)
    axis.set_xticks([1, 4, 8, 12, 16])
    look.tidy(axis, across="quorum of 16", up=f"{what} a second")
print(f"most gradients a second with a quorum of {best}: {gradients[best - 1]:.1f}, with all 16: {gradients[-1]:.1f}")
save(figure)
