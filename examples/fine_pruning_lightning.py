"""Data fine-pruning with Lightning Fabric.

    python examples/fine_pruning_lightning.py

Needs: pip install 'paceline[lightning]'. On several processes give the sampler ``rank=fabric.global_rank,
ranks=fabric.world_size`` and Fabric ``use_distributed_sampler=False``.
"""

import torch
from lightning_fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from paceline import FinePruning, WithIndices

EPOCHS, BATCH = 12, 32


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    train = TensorDataset(images[:1400].float() / 16, labels[:1400])
    test = images[1400:].float() / 16, labels[1400:]
    fabric.seed_everything(0, verbose=False)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = fabric.setup(model, optimizer)

    sampler = FinePruning(
        samples=len(train), window=6, start=2, block=2, count=1, fraction=0.3,
        rank=fabric.global_rank, ranks=fabric.world_size,
    )  # fmt: skip
    loader = DataLoader(WithIndices(train), batch_size=BATCH, sampler=sampler)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)

    seen = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for indices, (inputs, targets) in loader:
            losses = cross_entropy(model(inputs), targets, reduction="none")
            sampler.observe(indices, losses)
            optimizer.zero_grad()
            fabric.backward(losses.mean())
            optimizer.step()
            seen += len(indices)
    accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
    print(f"{seen} samples (planned {sum(sampler.plan(EPOCHS).sizes)})")
    print(f"test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
