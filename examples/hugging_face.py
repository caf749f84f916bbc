"""A Hugging Face language model on workers of unequal speed, with its data set and collator.

    python examples/hugging_face.py

Needs: pip install 'paceline[huggingface]'. The model is a tiny GPT-2 made on the spot: nothing is downloaded.
"""

import math
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import paceline
from paceline.delays import Constant
from paceline.integrations.huggingface import task_from

PADDING, LONGEST = 0, 16


def sentences(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Texts of unequal length in which each token follows from the one before."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        first, length = draw.randrange(1, 16), draw.randrange(6, LONGEST + 1)
        found.append({"input_ids": [1 + (first + 3 * place) % 15 for place in range(length)]})
    return found


def pad(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """The collator: texts of one batch to one length; what was added is not learned (label -100)."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.full((len(samples), longest), PADDING)
    labels = torch.full((len(samples), longest), -100)
    for row, sample in enumerate(samples):
        tokens = torch.tensor(sample["input_ids"])
        ids[row, : len(tokens)] = labels[row, : len(tokens)] = tokens
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long(), "labels": labels}


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=16, n_positions=LONGEST, n_embd=32, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1
    )
    task = task_from(
        GPT2LMHeadModel(config),
        train=sentences(512, seed=1),
        test=sentences(64, seed=2),
        collate=pad,
        metrics={"perplexity": lambda means: math.exp(means["loss"])},
    )
    for strategy in (paceline.Synchronous(), paceline.FastestK(3)):
        run = paceline.train(
            task,
            strategy=strategy,
            fleet=paceline.SimulatedFleet([Constant(0.1), Constant(0.1), Constant(0.1), Constant(0.4)]),
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
            batch_size=8,
            stop=paceline.Stop(updates=60),
            every=paceline.Every(updates=60),
            progress=False,
        )
        last = run.history[-1]
        found = last.metrics["perplexity"]
        print(f"{type(strategy).__name__}: perplexity {found:.2f} after {last.seconds:.1f} virtual seconds")


if __name__ == "__main__":
    main()
