"""Workers that come and go.

Above, the number of workers that are there; below, the test loss, which falls all the same

Eight workers are lost at random and come back, as on spot machines. The run continues with those that are there; what
a lost worker was computing is given out again.
"""

import torch
from shared import digits, panels, save

import paceline
from paceline import look
from paceline.delays import LogNormal

rule = paceline.FastestK(quorum=5)
fleet = paceline.SimulatedFleet(
    LogNormal(1.0, 0.2), workers=8, availability=paceline.Availability(mean_up=60.0, mean_down=25.0)
)
run = paceline.train(
    digits(),
    strategy=rule,
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
figure, (above, below) = panels(2, 1, height=3.4, sharex=True)
above.step(times, counts, where="post", color=look.OTHER.light)
above.set_ylim(0, 8.5)
above.set_yticks([0, 4, 8])
below.plot([row.seconds for row in run.history], [row.loss for row in run.history], **look.line(rule))
below.set_ylim(0, None)
look.tidy(above, look.words(rule, workers=8), up="workers", size=10)
look.tidy(below, across="seconds", up="test loss")
print(f"{min(counts)} to {max(counts)} workers; accuracy {run.history[-1].accuracy:.0%}")
save(figure)
