"""How many source files a reader passes through to follow one thing that Paceline does.

    in tests/: python -m support.hops [FLOW...] [--files]

Runs each flow with a profiler and prints the files of the package in which a function was called, how often control
went from one file to another, the aim, and the limit that tests/test_hops.py holds it to where the aim is not met.
``--files`` lists them, with the number of calls.

Only the process that runs the flow is followed (all of its threads): of real workers this is the server's side. What is
called when a module is loaded does not count: all of them are loaded before.
"""

import argparse
import importlib
import inspect
import pkgutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

import paceline
from paceline import delays
from paceline.cli.main import main
from paceline.engine import train

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
    """With the runs that it trains, and the curves that it draws."""
    return _compare(Hops())


def compare_alone() -> Hops:
    """Not followed while it trains a run: from the run's spec to its result."""
    hops, run_spec = Hops(), train.run_spec

    def unseen(*arguments: Any) -> Any:
        hops.end()
        try:
            return run_spec(*arguments)
        finally:
            hops.begin()

    with patch.object(train, "run_spec", unseen):
        return _compare(hops)


def _compare(hops: Hops) -> Hops:
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


class Flow(NamedTuple):
    """Something that Paceline does. ``most`` is how many files it may pass: the ``aim`` where that is met."""

    about: str
    follow: Callable[[], Hops]
    aim: int | None
    most: int


FLOWS = {
    "simulated": Flow("one update on SimulatedFleet, LiveCompensation", simulated, 14, 17),
    "processes": Flow("one update on ProcessFleet, server's side", processes, 16, 19),
    "ray": Flow("one update on RayFleet, remote workers, server's side", ray, 20, 25),
    "compare": Flow("compare FILE, from TOML to table", compare, 35, 88),
    "compare-alone": Flow("compare FILE, without the runs that it trains", compare_alone, None, 64),
    "pruning": Flow("one epoch of FinePruning in a plain loop", pruning, 5, 5),
}


def load_everything() -> None:
    """Import all modules, so that none is loaded on the way."""
    for module in pkgutil.walk_packages(paceline.__path__, "paceline."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def run_program() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flows", nargs="*", metavar="FLOW", help=", ".join(FLOWS))
    parser.add_argument("--files", action="store_true")
    asked = parser.parse_args()
    if unknown := [name for name in asked.flows if name not in FLOWS]:
        parser.error(f"unknown flow {unknown[0]}: choose from {', '.join(FLOWS)}")
    load_everything()
    for name in asked.flows or FLOWS:
        about, follow, aim, most = FLOWS[name]
        hops = follow()
        aimed = "" if aim is None else f"aim: {aim}, "
        print(f"{about}: {len(hops.calls)} files, {hops.changes} changes of file ({aimed}limit: {most} files)")
        if asked.files:
            for file, calls in sorted(hops.calls.items()):
                print(f"  {calls:6} {file}")


if __name__ == "__main__":
    run_program()
