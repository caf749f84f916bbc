"""Before a run: how fast, how stale, and up to which learning rate does it converge?  python examples/predict.py

Eight workers, two of them slow. For each strategy the largest stable learning rate is predicted from the fleet and
the model's curvature; then the prediction is tried: linear regression, a quarter below it and a quarter beyond.
"""

import logging

import torch

import paceline
from paceline.delays import LogNormal
from paceline.strategy import Strategy


def main() -> None:
    logging.getLogger("paceline").setLevel(logging.ERROR)  # that a run diverges is what is shown here
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(800, 10, generator=generator) * torch.linspace(0.5, 2.0, 10)
    targets = inputs @ torch.randn(10, 1, generator=generator) + 0.1 * torch.randn(800, 1, generator=generator)
    torch.manual_seed(0)
    task = paceline.Task(torch.nn.Linear(10, 1), torch.nn.functional.mse_loss, (inputs, targets))
    fleet = paceline.SimulatedFleet([LogNormal(1.0, 0.2)] * 6 + [LogNormal(3.0, 0.2)] * 2)

    sharpest = paceline.curvature(task)
    print(f"largest curvature {sharpest.value:.3f} (+- {sharpest.error:.0e}), momentum 0.9, 8 workers")
    for strategy in (
        paceline.Synchronous(),
        paceline.Grouped(paceline.groups_by_speed(fleet.medians)),
        paceline.Asynchronous(),
    ):
        found = paceline.predict(strategy, fleet, descent=paceline.Descent(momentum=0.9), curvature=sharpest.value)
        assert found.largest_learning_rate is not None
        speed, staleness = found.runtime.updates_per_second, found.runtime.mean_staleness
        largest = found.largest_learning_rate
        print(
            f"{type(strategy).__name__:12}  {speed.value:5.2f} updates/s ({speed.source}), staleness "
            f"{staleness.value:.0f} ({staleness.source}), largest learning rate {largest.value:.4f} ({largest.source})"
        )
        for share in (0.75, 1.25):
            print(f"              at {share:.0%} of it: {final_loss(task, strategy, fleet, share * largest.value)}")


def final_loss(task: paceline.Task, strategy: Strategy, fleet: paceline.SimulatedFleet, lr: float) -> str:
    run = paceline.train(
        task,
        strategy=strategy,
        fleet=fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
        stop=paceline.Stop(updates=500),
        batch_size=50,
        every=paceline.Every(updates=100),
        progress=False,
    )
    loss = run.history[-1].loss
    return f"loss {loss:.3f}" if loss < 10 and run.ended != "diverged" else "diverges"


if __name__ == "__main__":
    main()
