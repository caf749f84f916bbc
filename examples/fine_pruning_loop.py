"""Data fine-pruning in a plain training loop, with a scheduler that has to know the number of steps beforehand.

    python examples/fine_pruning_loop.py

Three lines make the difference: the sampler, ``set_epoch``, and ``observe``. A run that is stopped continues exactly
where it was, in the middle of an epoch, if the sampler's state is saved with the model's.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from paceline import FinePruning, WithIndices

EPOCHS, BATCH = 20, 32


def main() -> None:
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    inputs = images.float() / 16
    train, test = TensorDataset(inputs[:1400], labels[:1400]), (inputs[1400:], labels[1400:])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    sampler = FinePruning(samples=len(train), window=10, start=4, block=2, count=1, fraction=0.3)
    loader = DataLoader(WithIndices(train), batch_size=BATCH, sampler=sampler)
    plan = sampler.plan(EPOCHS)
    print(f"pruned epochs {plan.pruned_epochs}: {plan.saved:.1%} of the samples saved")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = plan.total_steps(BATCH)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps)
    done = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for indices, (batch, targets) in loader:
            losses = cross_entropy(model(batch), targets, reduction="none")
            sampler.observe(indices, losses)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            scheduler.step()
            done += 1
    accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
    print(f"{done} of {steps} planned steps, test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
