"""A fleet of three speeds.

Bars of updates in a minute and of mean staleness for synchronous, grouped and asynchronous workers

Sixteen workers take one, two or three seconds. In groups by speed, staleness is two on average, the number of groups
minus one; asynchronous workers have fifteen. No model is needed to see that: ``simulate`` runs a rule alone.
"""

from shared import panels, save

import paceline
from paceline import look
from paceline.delays import Constant

fleet = paceline.SimulatedFleet([Constant(1.0)] * 4 + [Constant(2.0)] * 4 + [Constant(3.0)] * 8)
groups = paceline.groups_by_speed(fleet.medians)
figure, (left, right) = panels(1, 2, height=2.4, sharey=True)
for rule in (paceline.Synchronous(), paceline.Grouped(groups), paceline.Asynchronous()):
    label, colour = look.words(rule, workers=16), look.colour(rule)
    runtime = paceline.predict(rule, fleet).runtime
    updates, staleness = 60 * runtime.updates_per_second.value, runtime.mean_staleness.value
    left.barh(label, updates, color=colour)
    right.barh(label, staleness, color=colour)
    print(f"{label}: {updates:.0f} updates a minute, staleness {staleness:.1f}")
left.invert_yaxis()
look.tidy(left, across="updates a minute")
look.tidy(right, across="mean staleness")
save(figure)
