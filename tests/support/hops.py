"""How many source files a reader passes through to follow one thing that Paceline does.

    in tests/: python -m support.hops [FLOW...] [--files]

Runs each flow with a profiler and prints the files of the package in which a function was called, how often control
went from one file to another, the aim, and the limit that tests hold it to (tests/test_hops.py; tests/fleets/ray that
of Ray). ``--files`` lists them, with the number of calls.

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
from collections.abc import Callable
from contextlib import redirect_stdout
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
WARM = 5  # updates before the first that is followed: by then everything is warm
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


class Visited(NamedTuple):
    """The files of the package in which functions were called, how often, and how often control changed the file."""

    calls: Counter[str]
    changes: int


class Hops:
    """Follows this process, with all of its threads, while it is told to."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._changes = 0
        self._last = ""
        self._active = False
        threading.setprofile(self._see)  # for threads that are started from now on

    def begin(self) -> None:
        self._active = True
        sys.setprofile(self._see)

    def end(self) -> None:
        sys.setprofile(None)
        self._active = False

    def take(self) -> Visited:
        """What was visited since the last call."""
        found = Visited(self._calls, self._changes)
        self._calls, self._changes, self._last = Counter(), 0, ""
        return found

    def _see(self, frame: FrameType, what: str, _: object) -> None:
        if what != "call" or not self._active:
            return
        file = frame.f_code.co_filename
        in_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # not the body of a class or a module
        if not file.startswith(str(ROOT)) or not in_function:
            return
        name = file.removeprefix(str(ROOT)).lstrip("/")
        self._calls[name] += 1
        self._changes += name != self._last
        self._last = name


class Counting(torch.optim.SGD):
    """Follows what happens between two of its steps."""

    hops: Hops
    updates: list[Visited]
    steps: int = 0

    def step(self, closure: Any = None) -> Any:
        cls = type(self)
        if cls.steps >= WARM:
            cls.hops.end()
            cls.updates.append(cls.hops.take())
        result = super().step(closure)
        cls.steps += 1
        if cls.steps >= WARM:
            cls.hops.begin()
        return result


def updates_of(fleet: Any, strategy: Any, count: int) -> list[Visited]:
    """So many updates, one after the other."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(256, 8), torch.randint(0, 2, (256,))
    data = (inputs, targets)
    task = paceline.Task(
        model=nn.Linear(8, 2), loss=nn.CrossEntropyLoss(reduction="none"), train=data, test=data
    )  # fmt: skip
    last = WARM + count
    kind: type[Counting] = type("Counting", (Counting,), {"hops": Hops(), "updates": [], "steps": 0})
    try:
        paceline.train(
            task, strategy=strategy, fleet=fleet, optimizer=lambda parameters: kind(parameters, lr=0.1), batch_size=8,
            stop=paceline.Stop(updates=last), every=paceline.Every(updates=last), progress=False,
        )  # fmt: skip
    finally:
        kind.hops.end()
        threading.setprofile(None)
    return kind.updates


def fewest(updates: list[Visited]) -> Visited:
    """On real workers the server looks for silent ones four times a second, in whatever update that is."""
    return min(updates, key=lambda each: len(each.calls))


def simulated() -> Visited:
    fleet = paceline.SimulatedFleet([delays.Constant(value) for value in (1.0, 1.0, 1.0, 2.5)])
    return updates_of(fleet, paceline.LiveCompensation(3, blocks=4), 1)[0]


def processes() -> Visited:
    return fewest(updates_of(paceline.ProcessFleet(2), paceline.Synchronous(), 10))


def ray() -> Visited:
    """Workers that share no memory with the server, as on another machine."""
    return fewest(updates_of(paceline.RayFleet(2, share_memory=False), paceline.Synchronous(), 10))


def compare() -> Visited:
    """With the runs that it trains, and the curves that it draws."""
    return _compare(Hops())


def compare_alone() -> Visited:
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


def _compare(hops: Hops) -> Visited:
    with TemporaryDirectory() as place:
        file = Path(place) / "compare.toml"
        file.write_text(TOML)
        with redirect_stdout(StringIO()):
            hops.begin()
            code = main(["compare", str(file), "--jobs", "1", "--figure", place + "/curves.png"])
            hops.end()
    assert code == 0
    return hops.take()


def pruning() -> Visited:
    """An epoch of a plain loop that leaves samples out."""
    sampler = paceline.FinePruning(samples=64, window=6, start=1, block=2, count=1, fraction=0.25)
    losses = torch.rand(64)
    hops = Hops()
    for epoch in range(3):
        hops.take()
        hops.begin()
        sampler.set_epoch(epoch)
        for index in sampler:
            sampler.observe(torch.tensor([index]), losses[[index]])
        hops.end()
    return hops.take()


class Flow(NamedTuple):
    """Something that Paceline does. ``most`` is how many files it may pass: the ``aim`` where that is met."""

    about: str
    follow: Callable[[], Visited]
    aim: int | None
    most: int


FLOWS = {
    "simulated": Flow("one update on SimulatedFleet, LiveCompensation", simulated, 14, 17),
    "processes": Flow("one update on ProcessFleet, server's side", processes, 16, 19),
    "ray": Flow("one update on RayFleet, remote workers, server's side", ray, 20, 25),
    "compare": Flow("compare FILE, from TOML to table", compare, 35, 87),
    "compare-alone": Flow("compare FILE, without the runs that it trains", compare_alone, None, 63),
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
        found = follow()
        aimed = "" if aim is None else f"aim: {aim}, "
        print(f"{about}: {len(found.calls)} files, {found.changes} changes of file ({aimed}limit: {most} files)")
        if asked.files:
            for file, calls in sorted(found.calls.items()):
                print(f"  {calls:6} {file}")


if __name__ == "__main__":
    run_program()
