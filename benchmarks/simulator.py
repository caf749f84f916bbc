"""A simulated SSGD run with 16 workers against a naive loop over the workers, and against the passes that it contains.

    python benchmarks/simulator.py [--save] [--rounds N]

naive / simulated   how many times as fast the simulated run is as a loop that computes the same, worker by worker
simulated / fused   what a simulated update costs, in terms of the one forward and backward pass over its 16
                    mini-batches, whose samples are fetched anew for each pass, as they must be
simulated / cached  the same, in terms of a pass over always the same samples, which stay in the processor's cache

The first updates of a simulated run do not count: in them it is tried whether its passes may be joined.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from measuring import interleaved_seconds, parse, ratio, save, seconds
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.data.partition import deal
from paceline.data.samples import TensorSamples
from paceline.randomness import stream

WORKERS, BATCH, SAMPLES = 16, 32, 16_000
BEFORE = 9  # updates that do not count


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def narrow_vgg() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (8, 0, 16, 0, 32, 32, 0, 64, 64, 0, 64, 64, 0):
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


def wide_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def batch_norm_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(392, 10)
    )


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "logistic regression": (lambda: nn.Linear(784, 10), (784,), 400),
    "LeNet": (lenet, (3, 32, 32), 8),
    "VGG-11 with a norm, an eighth as wide": (narrow_vgg, (3, 32, 32), 1),
    "MLP of 4 M": (wide_mlp, (3, 32, 32), 2),
    "batch norm (cannot be fused)": (batch_norm_net, (3, 32, 32), 4),
}


def alternatives(make: Callable[[], nn.Module], shape: tuple[int, ...], updates: int) -> dict[str, Callable[[], float]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(SAMPLES, *shape, generator=generator)
    targets = torch.randint(10, (SAMPLES,), generator=generator)
    orders = [torch.randperm(SAMPLES, generator=generator)[: WORKERS * BATCH] for _ in range(updates)]
    model = make()
    delays = pl.delays.ShiftedExponential(0.05, 0.02)
    fleet = pl.SimulatedFleet(delays, workers=WORKERS, threads=torch.get_num_threads())
    judged: list[float] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        judged.append(time.perf_counter())
        return {"loss": 0.0}

    def simulated() -> float:
        judged.clear()
        pl.train(
            pl.Task(model, cross_entropy, (inputs, targets), evaluate=evaluate), strategy=pl.Synchronous(), fleet=fleet,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.01), batch_size=BATCH, progress=False,
            stop=pl.Stop(updates=BEFORE + updates), every=pl.Every(updates=BEFORE),
        )  # fmt: skip
        return judged[-1] - judged[1]

    def naive() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        shards = deal(pl.Equal(), TensorSamples(inputs, targets), WORKERS, BATCH, stream(0, "partition"))
        batches = pl.Shuffled().open(shards, BATCH, seed=0)
        for _ in range(updates):
            optimizer.zero_grad()
            for worker in range(WORKERS):
                rows = torch.from_numpy(batches.draw(worker))
                (cross_entropy(model(inputs[rows]), targets[rows]) / WORKERS).backward()
            optimizer.step()

    def one_pass(x: Tensor, y: Tensor) -> None:
        model.zero_grad()
        cross_entropy(model(x), y).backward()

    def fused() -> None:
        for number in range(updates):
            rows = orders[number]
            one_pass(inputs[rows], targets[rows])

    def cached() -> None:
        x, y = inputs[: WORKERS * BATCH].clone(), targets[: WORKERS * BATCH].clone()
        for _ in range(updates):
            one_pass(x, y)

    timed = {"fused": fused, "cached": cached}
    return {
        "naive": partial(seconds, naive), "simulated": simulated,
        **{name: partial(seconds, each) for name, each in timed.items()},
    }  # fmt: skip


def main() -> None:
    rows = {}
    cores = torch.get_num_threads()
    plan = [(name, cores) for name in CASES] + [(name, 1) for name in list(CASES)[:2] if cores > 1]
    for case, threads in plan:
        make, shape, updates = CASES[case]
        name = f"{case}, {threads} thread{'s' * (threads > 1)}"
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        times = interleaved_seconds(alternatives(make, shape, updates), parse().rounds)
        rows[name] = {
            "naive / simulated": round(ratio(times, "naive", "simulated"), 2),
            "simulated / fused": round(ratio(times, "simulated", "fused"), 3),
            "simulated / cached": round(ratio(times, "simulated", "cached"), 3),
        }
        print(name, rows[name], flush=True)
    save(
        "simulator",
        {
            "workers": WORKERS,
            "batch": BATCH,
            "bars": "3.5 and 1.4 (LR), 1.1 and 1.05 (LeNet), none slower than naive",
            "ratios": rows,
        },
    )


if __name__ == "__main__":
    main()
