"""A transformer with many parameters on two workers of this machine, each on a device of its own where there are some.

Gradients stay in memory that the workers share with the server: nothing is sent. Asynchronous workers of unequal speed
do not wait for each other. The server holds the weights twice (one copy is read while the other changes), and one row
for the gradient of each worker.

    python examples/large_model.py                  # 5 million parameters
    python examples/large_model.py --width 1024     # 100 million, some 3 GB
    python examples/large_model.py --ranks 2        # each worker is two processes that share its mini-batches out
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline

LETTERS, LENGTH = 64, 32


class Transformer(nn.Module):
    """Predicts each letter from those before it."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, letters: Tensor) -> Tensor:
        hidden = self.letters(letters) + self.places.weight
        outputs: Tensor = self.out(self.layers(hidden, mask=self.mask, is_causal=True))
        return outputs


def loss(outputs: Tensor, letters: Tensor) -> Tensor:
    """Of each line, the mean over its letters."""
    return cross_entropy(outputs.transpose(1, 2), letters, reduction="none").mean(dim=1)


def lines(count: int) -> tuple[Tensor, Tensor]:
    """Every letter is the last one plus a step that a line keeps: easy to learn, from two letters on."""
    start, step = torch.randint(LETTERS, (2, count, 1))
    letters = (start + step * torch.arange(LENGTH + 1)) % LETTERS
    return letters[:, :-1], letters[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=1)
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = Transformer(asked.width, asked.layers)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    found = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    run = paceline.train(
        paceline.Task(model, loss, lines(2048), lines(64)),
        strategy=paceline.Asynchronous(),
        fleet=paceline.ProcessFleet(2, devices="auto" if found else None, ranks_per_worker=asked.ranks),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=8,
        stop=paceline.Stop(updates=asked.updates),
        every=paceline.Every(updates=asked.updates),
        progress=False,
    )
    first, last = run.history[0], run.history[-1]
    print(f"{parameters / 1e6:.1f} million parameters, {found} accelerators, {asked.ranks} ranks a worker")
    print(f"loss {first.loss:.2f} -> {last.loss:.2f} in {last.updates} updates, {last.seconds:.1f} seconds")


if __name__ == "__main__":
    main()
