"""A fleet of three speeds.

Bars of updates in a minute and of mean staleness for synchronous, grouped and asynchronous workers

Sixteen workers take one, two or three seconds. In groups by speed, staleness is two on average, the number of groups
minus one; asynchronous workers have fifteen. No model is needed to see that: ``simulate`` runs a rule alone.
"""

import sys

from matplotlib.figure import Figure

import paceline
from paceline.delays import Constant

fleet = paceline.SimulatedFleet([Constant(1.0)] * 4 + [Constant(2.0)] * 4 + [Constant(3.0)] * 8)
groups = paceline.groups_by_speed(fleet.medians)
rules = {
    "Synchronous": paceline.Synchronous(),
    "Groups by speed": paceline.Grouped(groups),
    "Asynchronous": paceline.Asynchronous(),
}
figure = Figure(figsize=(7, 2.4), dpi=90, layout="constrained")
left, right = figure.subplots(1, 2, sharey=True)
for label, rule in rules.items():
    runtime = paceline.predict(rule, fleet).runtime
    updates, staleness = 60 * runtime.updates_per_second.value, runtime.mean_staleness.value
    left.barh(label, updates)
    right.barh(label, staleness)
    print(f"{label}: {updates:.0f} updates a minute, staleness {staleness:.1f}")
left.set_xlabel("updates a minute")
right.set_xlabel("mean staleness")
left.invert_yaxis()
figure.savefig(sys.argv[1] if sys.argv[1:] else "02_three_speeds.png")
