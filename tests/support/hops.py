"""How many source files a reader passes through to follow one thing that Paceline does.

    in tests/: python -m support.hops [FLOW...] [--files]

Runs each flow with a profiler and prints the files of the package in which a function was called, how often control
went from one file to another, and the limit that tests/test_hops.py holds it to. ``--files`` lists them, with the
number of calls. Only the process that runs the flow is followed (all of its threads): of real workers this is the
server's side.
"""

import argparse
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import paceline
from paceline import delays

ROOT = Path(paceline.__file__).parent
UPDATES = 8
FOLLOWED = 5  # the update that is followed: by then everything is warm
TOML = """
strategy = ["ssgd", "lgc:quorum=3,blocks=4"]
seeds = [0]
batch_size = 16
target = 0.5
[task]
data = "digits"
model = "linear"
[[fleet.workers]]
count = 4
delay = "constant"
value = 1.0
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 20
"""


@dataclass
class Hops:
    """The files of the package in which functions were called."""

    calls: Counter[str] = field(default_factory=Counter)
    changes: int = 0
    _last: str = ""

    active: bool = False

    def __post_init__(self) -> None:
        threading.setprofile(self._see)  # for threads that are started from now on

    @contextmanager
    def following(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        self.active = True
        sys.setprofile(self._see)

    def end(self) -> None:
        sys.setprofile(None)
        self.active = False

    def _see(self, frame: FrameType, what: str, _: object) -> None:
        if what != "call" or not self.active:
            return
        file = frame.f_code.co_filename
        in_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # not the body of a class or a module
        if not file.startswith(str(ROOT)) or not in_function:
            return
        name = file.removeprefix(str(ROOT)).lstrip("/")
        self.calls[name] += 1
        self.changes += name != self._last
        self._last = name


class Counting(torch.optim.SGD):
    """Follows what happens between two of its steps."""

    hops: Hops
    steps: int = 0

    def step(self, closure: Any = None) -> Any:
        cls = type(self)
        cls.steps += 1
        if cls.steps == FOLLOWED + 1:
            cls.hops.end()
        result = super().step(closure)
        if cls.steps == FOLLOWED:
            cls.hops.begin()
        return result


def _one_update(fleet: Any, strategy: Any) -> Hops:
    torch.manual_seed(0)
    inputs, targets = torch.randn(256, 8), torch.randint(0, 2, (256,))
    data = (inputs, targets)
    task = paceline.Task(
        model=nn.Linear(8, 2), loss=nn.CrossEntropyLoss(reduction="none"), train=data, test=data
    )  # fmt: skip
    hops = Hops()
    kind = type("Counting", (Counting,), {"hops": hops, "steps": 0})
    paceline.train(
        task, strategy=strategy, fleet=fleet, optimizer=lambda parameters: kind(parameters, lr=0.1), batch_size=8,
        stop=paceline.Stop(updates=UPDATES), every=paceline.Every(updates=UPDATES), progress=False,
    )  # fmt: skip
    return hops


def simulated() -> Hops:
    fleet = paceline.SimulatedFleet([delays.Constant(value) for value in (1.0, 1.0, 1.0, 2.5)])
    return _one_update(fleet, paceline.LiveCompensation(3, blocks=4))


def processes() -> Hops:
    return _one_update(paceline.ProcessFleet(2), paceline.Synchronous())


def ray() -> Hops:
    """Workers that share no memory with the server, as on another machine."""
    return _one_update(paceline.RayFleet(2, share_memory=False), paceline.Synchronous())


def compare() -> Hops:
    from tempfile import TemporaryDirectory

    from paceline.cli.main import main

    hops = Hops()
    with TemporaryDirectory() as place:
        file = Path(place) / "compare.toml"
        file.write_text(TOML)
        with hops.following(), redirect_stdout(StringIO()):
            assert main(["compare", str(file), "--jobs", "1", "--figure", place + "/curves.png"]) == 0
    return hops


def pruning() -> Hops:
    """An epoch of a plain loop that leaves samples out."""
    sampler = paceline.FinePruning(samples=64, window=6, start=1, block=2, count=1, fraction=0.25)
    losses = torch.rand(64)
    hops = Hops()
    for epoch in range(3):
        with hops.following() if epoch == 2 else _nothing():
            sampler.set_epoch(epoch)
            for index in sampler:
                sampler.observe(torch.tensor([index]), losses[[index]])
    return hops


@contextmanager
def _nothing() -> Iterator[None]:
    yield


FLOWS: dict[str, tuple[str, Callable[[], Hops], int]] = {  # what it is, how to follow it, at most how many files
    "simulated": ("one update on SimulatedFleet, LiveCompensation", simulated, 20),
    "processes": ("one update on ProcessFleet, server's side", processes, 23),
    "ray": ("one update on RayFleet, remote workers, server's side", ray, 22),
    "compare": ("compare FILE, from TOML to table", compare, 94),
    "pruning": ("one epoch of FinePruning in a plain loop", pruning, 5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flows", nargs="*", metavar="FLOW", help=", ".join(FLOWS))
    parser.add_argument("--files", action="store_true")
    asked = parser.parse_args()
    if unknown := [name for name in asked.flows if name not in FLOWS]:
        parser.error(f"unknown flow {unknown[0]}: choose from {', '.join(FLOWS)}")
    for name in asked.flows or FLOWS:
        about, follow, limit = FLOWS[name]
        hops = follow()
        print(f"{about}: {len(hops.calls)} files, {hops.changes} changes of file (limit: {limit} files)")
        if asked.files:
            for file, calls in sorted(hops.calls.items()):
                print(f"  {calls:6} {file}")


if __name__ == "__main__":
    main()
