"""The runs of ``python -m reproductions group-sgd`` against a naive loop over the workers with the same results.

    [PACELINE_DATA=DIR] PYTHONPATH=. python benchmarks/group_sgd.py [--save] [--rounds N]

naive / paceline    how many times as fast; for both models together, in one process with one thread. ``train`` is
                    training alone, ``train and judge`` with the loss on 60,000 images and the accuracy on 10,000 at
                    every place that the reproduction evaluates

Without a directory of real data the images are noise of the same shape, which takes as long.
"""

import gzip
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from measuring import interleaved, parse, ratio, save
from torch import Tensor

from paceline.data.batches import Resampled
from paceline.data.partition import Equal, deal
from paceline.data.samples import TensorSamples
from paceline.randomness import stream
from reproductions.group_sgd.training import (
    BATCH,
    MODELS,
    STRATEGIES,
    UNITS,
    Training,
    mnist,
    run_training,
    time_grid,
    update_grid,
)
from reproductions.models.linear import correct

HORIZON = 120.0
MOST_ROUNDS = 5
GROUPS: dict[str, Sequence[Sequence[int]]] = {
    "ssgd": [range(16)],
    "gsgd": [range(4), range(4, 8), range(8, 16)],
    "asgd": [[worker] for worker in range(16)],
}


def noise(folder: Path) -> None:
    generator = np.random.default_rng(0)
    folder.mkdir()
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        arrays = {"images-idx3": (count, 28, 28), "labels-idx1": (count,)}
        for what, shape in arrays.items():
            head = bytes([0, 0, 8, len(shape)]) + b"".join(length.to_bytes(4, "big") for length in shape)
            content = generator.integers(0, 10 if len(shape) == 1 else 80, shape, dtype=np.uint8)
            (folder / f"{name}-{what}-ubyte.gz").write_bytes(gzip.compress(head + content.tobytes(), 1))


def naive(training: Training) -> float:
    """Worker by worker, update by update, each evaluation when it is due; the loss at the end."""
    model = MODELS[training.model]
    (pixels, labels), (test_pixels, test_labels) = mnist(training.data)
    targets, test_targets = model.targets(labels), model.targets(test_labels)
    groups = GROUPS[training.strategy]
    shards = deal(Equal(), TensorSamples(pixels, targets), 16, BATCH, stream(training.seed, "partition"))
    batches = Resampled().open(shards, BATCH, training.seed)
    weights = torch.zeros(784)
    pulled = [weights] * len(groups)
    drawn = {worker: batches.draw(worker) for worker in range(16)}

    def evaluate() -> float:
        with torch.no_grad():
            correct(test_pixels @ weights, test_targets).double().mean().item()
            return (model.loss(pixels @ weights, targets).mean() + model.penalty / 2 * weights.square().sum()).item()

    def gradient(at: Tensor, worker: int) -> Tensor:
        at = at.clone().requires_grad_()
        rows = torch.from_numpy(drawn[worker])
        loss = model.loss(pixels[rows] @ at, targets[rows]).mean() + model.penalty / 2 * at.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert at.grad is not None
        return at.grad

    lasts = [max(UNITS[worker] for worker in group) for group in groups]
    order = sorted((k * last, g) for g, last in enumerate(lasts) for k in range(1, int(training.units / last) + 1))
    at_times = np.searchsorted([at for at, _ in order], time_grid(training.units), side="right")
    due = {*update_grid(len(order)), *at_times.tolist()} if training.on_the_way else set()
    for number, (_, g) in enumerate(order, start=1):
        total = torch.zeros(784)
        for worker in groups[g]:
            total += gradient(pulled[g], worker)
            drawn[worker] = batches.draw(worker)
        weights = pulled[g] = weights - training.lr * total / len(groups[g])
        if number in due:
            evaluate()
    return evaluate()


def both(strategy: str, data: str, on_the_way: bool) -> dict[str, Callable[[], object]]:
    trainings = [
        Training(model, strategy, MODELS[model].learning_rates[strategy], 0, HORIZON, data, on_the_way)
        for model in MODELS
    ]
    for training in trainings:
        assert abs(naive(training) / run_training(training)["loss"][-1] - 1) < 1e-4, training
    return {
        "naive": lambda: [naive(training) for training in trainings],
        "paceline": lambda: [run_training(training) for training in trainings],
    }


def main() -> None:
    torch.set_num_threads(1)
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = os.environ.get("PACELINE_DATA", folder)
        if data == folder:
            noise(Path(folder) / "mnist")
        totals: dict[str, list[float]] = {}
        for strategy in STRATEGIES:
            rows[strategy] = {}
            for what, on_the_way in (("train", False), ("train and judge", True)):
                times = interleaved(both(strategy, data, on_the_way), min(parse().rounds, MOST_ROUNDS))
                rows[strategy][what] = round(ratio(times, "naive", "paceline"), 2)
                if on_the_way:
                    for name, taken in times.items():
                        totals[name] = [a + b for a, b in zip(totals.get(name, [0.0] * len(taken)), taken, strict=True)]
            print(strategy, rows[strategy], flush=True)
    whole = round(ratio(totals, "naive", "paceline"), 2)
    save("group_sgd", {"horizon": HORIZON, "naive / paceline": rows, "naive / paceline, all together": whole})


if __name__ == "__main__":
    main()
