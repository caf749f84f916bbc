"""Ask instead of trying.

Bars of the expected gain of the best eight rules over synchronous training, with how much a second each has

Without a task nothing is trained: ``advise`` simulates about twenty rules on your workers, and says how many samples a
second each uses. With a task and an optimizer it also says what an update is worth.
"""

from shared import panels, save

import paceline
from paceline import look
from paceline.delays import LogNormal

fleet = paceline.SimulatedFleet([LogNormal(1.0, 0.2)] * 3 + [LogNormal(4.0, 0.2)])
advice = paceline.advise(fleet=fleet, batch_size=32)
now = next(each for each in advice.candidates if each.label == advice.now)
shown = [each for each in advice.candidates if each.pace.mean_staleness is not None][:8]
gains = [each.pace.samples_per_second / now.pace.samples_per_second for each in shown]
figure, axis = panels()
names = [look.words(each.label, workers=4) for each in shown]
axis.barh(names, gains, color=[look.colour(each.label) for each in shown])
axis.axvline(1.0, color=look.DIM, linewidth=0.8)
axis.invert_yaxis()
look.tidy(axis, across="samples a second, over those of SSGD")
print("\n".join(advice.lines))
save(figure)
