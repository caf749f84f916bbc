"""One of four workers is four times as slow: mini-batches of unequal sizes.  python examples/unequal_batches.py

Everybody waits for the slow worker, which has as many samples as the others. Give it fewer: by hand, or by measured
speed. An update is the mean over 128 samples in all three, so the loss falls alike; only the time differs.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import paceline
from paceline.delays import Constant, PerSample
from paceline.strategy import Resize


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4000, 20, generator=generator)
    targets = (inputs[:, :2].prod(dim=1) > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
    task = paceline.Task(
        model, cross_entropy, train=(inputs[:3200], targets[:3200]), test=(inputs[3200:], targets[3200:])
    )
    fast, slow = PerSample(0.05, Constant(0.01)), PerSample(0.05, Constant(0.04))  # seconds, and seconds a sample
    fleet = paceline.SimulatedFleet([fast, fast, fast, slow])
    rules: list[tuple[str, paceline.strategy.Strategy, int | list[int]]] = [
        ("equal", paceline.Synchronous(), 32),
        ("by hand", paceline.Synchronous(), [40, 40, 38, 10]),
        ("measured", paceline.UnequalBatches(paceline.Synchronous(), total=128), 32),
    ]
    for name, strategy, batch_size in rules:
        predicted = paceline.predict(strategy, fleet, batch_size=batch_size).runtime.updates_per_second
        run = paceline.train(
            task,
            strategy=strategy,
            fleet=fleet,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            batch_size=batch_size,
            stop=paceline.Stop(updates=400),
            progress=False,
        )
        end = run.history[-1]
        print(
            f"{name:9} {end.seconds:6.1f} s, loss {end.loss:.3f}, accuracy {end.accuracy:.0%}; predicted "
            f"{predicted.value:.2f} updates/s"
        )
        for fact in run.trace:
            if isinstance(fact, Resize):
                print(f"          sizes {[*fact.sizes.values()]}: {fact.why}")


if __name__ == "__main__":
    main()
