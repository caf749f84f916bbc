"""Ask instead of trying.

Bars of the expected gain of the best eight rules over synchronous training, with how much a second each has

Without a task nothing is trained: ``advise`` simulates about twenty rules on your workers, and says how many samples a
second each uses. With a task and an optimizer it also says what an update is worth.
"""

import sys

from matplotlib.figure import Figure

import paceline
from paceline.delays import LogNormal

fleet = paceline.SimulatedFleet([LogNormal(1.0, 0.2)] * 3 + [LogNormal(4.0, 0.2)])
advice = paceline.advise(fleet=fleet, batch_size=32)
now = next(each for each in advice.candidates if each.label == advice.now)
shown = [each for each in advice.candidates if each.pace.mean_staleness is not None][:8]
gains = [each.pace.samples_per_second / now.pace.samples_per_second for each in shown]
figure = Figure(figsize=(7, 3.2), dpi=90, layout="constrained")
axis = figure.subplots()
axis.barh([each.label for each in shown], gains)
axis.axvline(1.0, color="0.4", linewidth=0.8)
axis.set_xlabel("samples a second, times those of synchronous training")
axis.invert_yaxis()
print("\n".join(advice.lines))
figure.savefig(sys.argv[1] if sys.argv[1:] else "10_advice.png")
