"""Everybody is late now and then.

Updates a second against the quorum of sixteen workers: the last few workers cost most of the speed

Sixteen workers with heavy tails (Pareto). How many of them should an update wait for? The last two cost as much time
as all the others.
"""

import sys

from matplotlib.figure import Figure

import paceline
from paceline.delays import Pareto

fleet = paceline.SimulatedFleet(Pareto(1.0, 2.5), workers=16)
quorums = range(1, 17)
speeds = [paceline.predict(paceline.FastestK(quorum), fleet).runtime.updates_per_second.value for quorum in quorums]
gradients = [speed * quorum for speed, quorum in zip(speeds, quorums, strict=True)]
best = max(quorums, key=lambda quorum: gradients[quorum - 1])
figure = Figure(figsize=(7, 2.8), dpi=90, layout="constrained")
left, right = figure.subplots(1, 2)
left.plot(quorums, speeds, "o-")
left.set(xlabel="quorum of 16", ylabel="updates a second", ylim=(0, None))
right.plot(quorums, gradients, "s-", color="tab:orange")
right.set(xlabel="quorum of 16", ylabel="gradients used a second", ylim=(0, None))
print(f"most gradients a second with a quorum of {best}: {gradients[best - 1]:.1f}, with all 16: {gradients[-1]:.1f}")
figure.savefig(sys.argv[1] if sys.argv[1:] else "03_random_stalls.png")
