"""Data fine-pruning with Hugging Face Accelerate, on one process or several.

    python examples/fine_pruning_accelerate.py
    accelerate launch --cpu --num_processes 2 examples/fine_pruning_accelerate.py

Accelerate shards the batches itself, so the sampler is left at its one rank. Every process makes the same sampler; what
they observe is put together whenever an epoch begins. Needs: pip install 'paceline[accelerate]'
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from paceline import FinePruning, WithIndices

EPOCHS, BATCH = 12, 32


def main() -> None:
    accelerator = Accelerator(cpu=True)
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    train = TensorDataset(images[:1400].float() / 16, labels[:1400])
    test = images[1400:].float() / 16, labels[1400:]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    sampler = FinePruning(samples=len(train), window=6, start=2, block=2, count=1, fraction=0.3)
    loader = DataLoader(WithIndices(train), batch_size=BATCH, sampler=sampler)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    seen = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for indices, (inputs, targets) in loader:
            losses = cross_entropy(model(inputs), targets, reduction="none")
            sampler.observe(indices, losses)
            optimizer.zero_grad()
            accelerator.backward(losses.mean())
            optimizer.step()
            seen += len(indices)
    total = int(accelerator.reduce(torch.tensor(seen)))
    counts = torch.from_numpy(sampler.state_dict()["memory"]["counts"].numpy().astype("int64"))
    same = bool((accelerator.gather(counts[None]) == counts).all())
    if accelerator.is_main_process:
        accuracy = (accelerator.unwrap_model(model)(test[0]).argmax(1) == test[1]).float().mean()
        planned = sum(sampler.plan(EPOCHS).sizes)
        print(f"{accelerator.num_processes} processes, {total} samples (planned {planned}), the same counts: {same}")
        print(f"test accuracy {accuracy:.3f}")
    # The model goes before its process group: as the group's last owner, torch's DDP may wait for a thread that needs
    # the interpreter's lock, which DDP holds.
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
