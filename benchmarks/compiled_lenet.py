"""Compiled LeNet, as campaigns train it, beside torch's own, on one core.

    PYTHONPATH=. python benchmarks/compiled_lenet.py [--save] [--rounds N]

Both networks take turns, in mini-batches of one worker (32) and of ten in one pass (320). Prints how many times as long
torch's takes, the median of the rounds: for training (forwards and backwards), without and with dropout, and forwards
alone.
"""

from collections.abc import Callable

import torch
from measuring import interleaved, parse, ratio, save
from torch import nn
from torch.nn.functional import cross_entropy

from paceline.config.named_tasks import lenet as plain_lenet
from reproductions.datasets.cifar import ChannelsLast
from reproductions.models.compiled import lenet, library

PICTURES = 3_200  # in each turn
DROPOUT = 0.25


def turn(network: nn.Module, batch: int, *, training: bool) -> Callable[[], None]:
    inputs, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def take() -> None:
        for _ in range(PICTURES // batch):
            with torch.set_grad_enabled(training):
                loss = cross_entropy(network(inputs), labels)
            if training:
                torch.autograd.backward(loss)

    return take


def main() -> None:
    torch.set_num_threads(1)
    if library() is None:
        raise SystemExit("there is nothing to compare: no compiler")
    found = {}
    for batch in (32, 320):
        for what, dropout in (("training", 0.0), ("training with dropout", DROPOUT), ("forwards", 0.0)):
            networks = {"torch": nn.Sequential(ChannelsLast(), plain_lenet(dropout)), "compiled": lenet(dropout)}
            turns = {name: turn(network, batch, training=what != "forwards") for name, network in networks.items()}
            times = interleaved(turns, parse().rounds)
            found[f"{what}, {batch} pictures at a time"] = round(ratio(times, "torch", "compiled"), 2)
    save("compiled_lenet", {"torch / compiled": found})


if __name__ == "__main__":
    main()
