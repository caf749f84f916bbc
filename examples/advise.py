"""Which rule for this fleet?  python examples/advise.py

Seven workers alike and one that takes four times as long. The advice is asked for, and then tried: both rules train
with the learning rate that they are given, up to the same accuracy.
"""

import torch
from sklearn.datasets import load_digits

import paceline
from paceline.delays import LogNormal
from paceline.strategy import Strategy


def main() -> None:
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    task = paceline.Task(
        torch.nn.Linear(64, 10),
        torch.nn.functional.cross_entropy,
        train=(inputs[:1400], targets[:1400]),
        test=(inputs[1400:], targets[1400:]),
    )
    fleet = paceline.SimulatedFleet([LogNormal(1.0, 0.1)] * 7 + [LogNormal(4.0, 0.1)])
    advice = paceline.advise(
        task, fleet=fleet, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5), batch_size=16
    )
    print(advice)
    print(advice.reason)
    if advice.without or advice.learning_rate is None:
        return
    before = seconds(task, paceline.Synchronous(), fleet, 0.5)
    after = seconds(task, advice.strategy, fleet, advice.learning_rate)
    if before and after:
        print(
            f"85 % accuracy after {before:.0f} s now, and {after:.0f} s as advised: {before / after:.2f} times as soon"
        )


def seconds(task: paceline.Task, strategy: Strategy, fleet: paceline.SimulatedFleet, lr: float) -> float | None:
    run = paceline.train(
        task,
        strategy=strategy,
        fleet=fleet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        stop=paceline.Stop(target=0.85, seconds=400),
        batch_size=16,
        progress=False,
    )
    return run.seconds_to(0.85)


if __name__ == "__main__":
    main()
