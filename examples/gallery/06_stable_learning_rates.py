"""How large a learning rate may be.

Final error as colours over staleness and learning rate, with the limit of the theory as a line between them

A quadratic with one to sixteen asynchronous workers of equal speed: staleness is the number of workers minus one.
Dots are runs that converged, crosses those that did not. The line is ``paceline.theory.critical_step``, which knows
nothing of these runs.
"""

import torch
from shared import Point, panels, save

import paceline
from paceline import look
from paceline.delays import Constant
from paceline.theory import critical_step

task = paceline.Task(
    Point(1.0), loss=lambda x, targets: x**2 / 2, train=(torch.zeros(64, 1), torch.zeros(64)),
    evaluate=lambda model: {"loss": float(model.x) ** 2},
)  # fmt: skip
figure, axis = panels()
for workers in (1, 2, 3, 5, 9, 16):
    limit = critical_step(workers - 1)
    for factor in (0.5, 0.7, 0.9, 1.15, 1.5):
        run = paceline.train(
            task,
            strategy="asgd",
            fleet=paceline.SimulatedFleet(Constant(1.0), workers=workers),
            optimizer=lambda parameters, rate=factor * limit: torch.optim.SGD(parameters, lr=rate),
            batch_size=1,
            stop=paceline.Stop(updates=30 * workers + 60),
            every=paceline.Every(updates=20),
            progress=False,
        )
        converged = run.history[-1].loss < 1.0
        marker, colour = ("o", look.SERIES[0]) if converged else ("x", look.SERIES[1])
        axis.plot(workers - 1, factor * limit, marker, color=colour)
        assert converged == (factor < 1), (workers, factor)
axis.plot(range(16), [critical_step(staleness) for staleness in range(16)], color=look.DIM, label="the theory's limit")
axis.plot([], [], "o", color=look.SERIES[0], label="converged")
axis.plot([], [], "x", color=look.SERIES[1], label="diverged")
axis.set_yscale("log")
look.tidy(axis, across="staleness", up="learning rate × curvature")
axis.legend(frameon=False)
print("every run converged below the limit, and none above it")
save(figure)
