"""The simulator's own choice of torch's threads against every fixed one, on an idle machine and on a busy one.

    python benchmarks/threads.py [--save] [--rounds N] [--torch]   on an idle machine, with OMP_NUM_THREADS unset

For the busy machine it starts as many busy loops as there are cores, and ends them. All alternatives of a case take
turns, and only ratios are told:

chosen / best       what a run takes with ``threads=None``, in terms of the best of the fixed numbers
torch / best        the same for torch's own default: one thread a core, whose waiting threads keep the processor. Only
                    with ``--torch``, for it may take an hour on a busy machine
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from statistics import median
from unittest import mock

import torch
from measuring import interleaved, write
from simulator import lenet, narrow_vgg
from torch import nn
from torch.nn.functional import cross_entropy

import paceline as pl

BAR = 1.15
BATCH, SAMPLES = 32, 4_000


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def convolutions() -> nn.Module:
    """Wide enough for several threads to pay."""
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


# model, shape of a sample, strategy, workers, updates
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], pl.strategy.Strategy, int, int]] = {
    "linear, 650 parameters, asynchronous": (lambda: nn.Linear(64, 10), (64,), pl.Asynchronous(), 4, 1000),
    "MLP, 200,000 parameters, 8 workers": (mlp, (784,), pl.Synchronous(), 8, 60),
    "LeNet, asynchronous": (lenet, (3, 32, 32), pl.Asynchronous(), 4, 40),
    "VGG-11, an eighth as wide, 4 workers": (narrow_vgg, (3, 32, 32), pl.Synchronous(), 4, 6),
    "convolutions of 64 channels, asynchronous": (convolutions, (3, 16, 16), pl.Asynchronous(), 4, 20),
}


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """As many processes that do nothing but use a core."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def alternatives(case: str, cores: int, *, with_torch: bool) -> dict[str, Callable[[], object]]:
    make, shape, strategy, workers, updates = CASES[case]
    torch.manual_seed(0)
    inputs, targets = torch.rand(SAMPLES, *shape), torch.randint(10, (SAMPLES,))
    task = pl.Task(make(), cross_entropy, (inputs, targets), evaluate=lambda model: {"loss": 0.0})

    def run(threads: int | None, *, as_torch_does: bool = False) -> None:
        unhelped = mock.patch("paceline.learning.threads.threading.Thread", Absent) if as_torch_does else nullcontext()
        with unhelped:
            pl.train(
                task, strategy=strategy,
                fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, threads=threads),
                optimizer=lambda p: torch.optim.SGD(p, lr=0.01), batch_size=BATCH, stop=pl.Stop(updates=updates),
                progress=False,
            )  # fmt: skip

    fixed = {f"{count} thread{'s' * (count > 1)}": partial(run, count) for count in sorted({1, cores})}
    default = {"torch": partial(run, cores, as_torch_does=True)} if with_torch else {}
    return {"chosen": partial(run, None), **fixed, **default}


class Absent:
    """Instead of the second team of threads: nobody."""

    ident = None

    def __init__(self, target: object, args: tuple[object, ...], daemon: bool) -> None:
        self._ready = args[1]

    def start(self) -> None:
        self._ready.set()  # type: ignore[attr-defined]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--torch", action="store_true", help="measure torch's own default too")
    return parser.parse_args()


def main() -> None:
    asked = parse()
    cores = torch.get_num_threads()
    if cores == 1:
        raise SystemExit("torch has one thread here: unset OMP_NUM_THREADS, or there is nothing to choose from")
    rows: dict[str, dict[str, dict[str, float | str]]] = {}
    for state, around in (("idle", nullcontext()), ("busy", busy(cores))):
        with around:
            for case in CASES:
                times = interleaved(alternatives(case, cores, with_torch=asked.torch), asked.rounds)
                fixed = [name for name in times if "thread" in name]
                best = min(fixed, key=lambda name: median(times[name]))
                ratios = {
                    f"{name} / best": round(median(a / b for a, b in zip(times[name], times[best], strict=True)), 3)
                    for name in times
                }
                rows.setdefault(state, {})[case] = {"best": best, **ratios}
                print(state, case, rows[state][case], flush=True)
    worst = max(float(row["chosen / best"]) for cases in rows.values() for row in cases.values())
    write("threads", {"bar": BAR, "worst": worst, "loops when busy": cores, "ratios": rows}, save=asked.save)


if __name__ == "__main__":
    main()
