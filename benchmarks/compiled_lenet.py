"""LeNet with compiled convolutions, as campaigns train it, beside torch's own, on one core.

    PYTHONPATH=. python benchmarks/compiled_lenet.py [--save] [--rounds N]

Both networks take turns, in mini-batches of one worker (32) and of ten in one pass (320). Prints how many times as long
torch's takes, the median of the rounds: for training (forwards and backwards), and forwards alone.
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
    networks = {"torch": nn.Sequential(ChannelsLast(), plain_lenet()), "compiled": lenet()}
    found = {}
    for batch in (32, 320):
        for training in (True, False):
            turns = {name: turn(network, batch, training=training) for name, network in networks.items()}
            times = interleaved(turns, parse().rounds)
            label = f"{'training' if training else 'forwards'}, {batch} pictures at a time"
            found[label] = round(ratio(times, "torch", "compiled"), 2)
    save("compiled_lenet", {"torch / compiled": found})


if __name__ == "__main__":
    main()
