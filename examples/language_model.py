"""A small language model with batches of one's own: padded sentences in dicts, a step, and its perplexity.

The model predicts every letter of a line from those before it. Lines differ in length, so a collate function pads them,
and the step leaves the padding out. Four workers train it; one of them is slow, and LGC-SGD does not wait for it.

    python examples/language_model.py
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import paceline
from paceline.delays import LogNormal

LETTERS = "\0\n abcdefghijklmnopqrstuvwxyz"  # \0 is padding, \n ends a line
ANIMALS, VERBS = ["the cat", "a dog", "the old owl", "one fox", "a small mouse"], ["sees", "hears", "follows", "likes"]
LINES = [f"{one} {verb} {other}\n" for one in ANIMALS for verb in VERBS for other in ANIMALS]


class Letters(nn.Module):
    """A GRU whose output layer shares its weights with the embedding."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), width, padding_idx=0)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, len(LETTERS))
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.out.weight = self.embedding.weight

    def forward(self, letters: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.recurrent(self.embedding(letters))[0])
        return outputs


def encoded(line: str) -> Tensor:
    return torch.tensor([LETTERS.index(letter) for letter in "\n" + line])


def padded(lines: list[Tensor]) -> dict[str, Tensor]:
    letters = pad_sequence(lines, batch_first=True)
    return {"letters": letters[:, :-1], "next": letters[:, 1:]}


def step(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mean loss of each line's letters, and what the perplexity is made of: their sum, and their number."""
    there = batch["next"] != 0
    losses = cross_entropy(model(batch["letters"]).transpose(1, 2), batch["next"], reduction="none") * there
    total, letters = losses.sum(dim=1), there.sum(dim=1)
    return {"loss": total / letters, "surprise": total, "letters": letters}


def without_decay_of_biases(named_parameters: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    biases = [parameter for name, parameter in named_parameters if "bias" in name]
    others = [parameter for name, parameter in named_parameters if "bias" not in name]
    return torch.optim.AdamW([{"params": others}, {"params": biases, "weight_decay": 0.0}], lr=0.02)


def main() -> None:
    torch.manual_seed(0)
    lines = [encoded(LINES[i]) for i in torch.randperm(len(LINES)).tolist()]
    task = paceline.Task(
        model=Letters(),
        step=step,
        train=lines[20:],
        test=lines[:20],
        collate=padded,
        metrics={"perplexity": lambda means: math.exp(means["surprise"] / means["letters"])},  # of all letters
    )
    run = paceline.train(
        task,
        strategy=paceline.LiveCompensation(quorum=3, blocks=2),
        fleet=paceline.SimulatedFleet([LogNormal(0.1, 0.2)] * 3 + [LogNormal(0.4, 0.2)]),
        optimizer=without_decay_of_biases,
        stop=paceline.Stop(metric="perplexity", below=2.0, updates=300),
        batch_size=8,
        micro_batches=2,
        every=paceline.Every(updates=20),
        progress=False,
    )
    first, last = run.history[0], run.history[-1]
    print(f"perplexity {first.metrics['perplexity']:.1f} at first, {last.metrics['perplexity']:.2f} in the end")
    print(f"after {last.updates} updates and {last.seconds:.0f} simulated seconds: {run.ended}")
    print(f"gradients: {run.evaluation}")


if __name__ == "__main__":
    main()
