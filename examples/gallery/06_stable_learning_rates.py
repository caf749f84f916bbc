"""How large a learning rate may be.

Final error as colours over staleness and learning rate, with the limit of the theory as a line between them

A quadratic with one to sixteen asynchronous workers of equal speed: staleness is the number of workers minus one.
Green runs converged, red ones did not. The line is ``paceline.theory.critical_step``, which knows nothing of these
runs.
"""

import sys

import torch
from matplotlib.figure import Figure

import paceline
from paceline.delays import Constant
from paceline.theory import critical_step


class Point(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = torch.nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.x.expand(len(inputs))


task = paceline.Task(
    Point(), loss=lambda x, targets: x**2 / 2, train=(torch.zeros(64, 1), torch.zeros(64)),
    evaluate=lambda model: {"loss": float(model.x) ** 2},
)  # fmt: skip
figure = Figure(figsize=(7, 3.2), dpi=90, layout="constrained")
axis = figure.subplots()
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
        axis.plot(workers - 1, factor * limit, "o" if converged else "x", color="tab:green" if converged else "tab:red")
        assert converged == (factor < 1), (workers, factor)
axis.plot(range(16), [critical_step(staleness) for staleness in range(16)], color="0.3", label="the theory's limit")
axis.set(xlabel="staleness", ylabel="learning rate × curvature", yscale="log")
axis.legend(frameon=False)
print("every run converged below the limit, and none above it")
figure.savefig(sys.argv[1] if sys.argv[1:] else "06_stable_learning_rates.png")
