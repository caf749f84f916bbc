"""Runs that are killed, and resumed until they end, each in a fork of a process that has not trained itself.

    in tests/: python -m support.killed DIRECTORY HOW=CASE...

before-any-write=CASE  killed before each of its writes in turn, and resumed
at-random=CASE         killed at random moments until it ends in between

Prints a line for each that does not come to the bytes of one that was not killed, and how many kills of each kind there
were.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import paceline as pl
from paceline.storage import saved_models
from support.digits import digits
from support.resumable import CASES, MODELS, Case

STOP = pl.Stop(updates=4)
KNOWN = {**CASES, **MODELS}


def forked(act: Callable[[], object]) -> int:
    """Do something in a fork; its process."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
    return pid


def ended(pid: int) -> bool:
    """Wait for a process: did it end by itself? Only a kill may be the alternative."""
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), f"ended with {status}"
    return status == 0


def run(case: Case, directory: Path) -> None:
    case.run(directory, STOP, resume=True, checkpoint=pl.Every(updates=2))


def die_before_write(number: int) -> None:
    """Count everything that changes a file, and die just before one of them."""
    left = number

    def dying(act: Callable[..., object]) -> Callable[..., object]:
        def acting(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*arguments, **named)

        return acting

    for name in ("write", "fsync", "ftruncate", "replace", "unlink", "mkdir", "open"):
        setattr(os, name, dying(getattr(os, name)))


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def compare(name: str, found: Path, expected: Path) -> None:
    one, other = files(found), files(expected)
    for file in sorted(one.keys() | other.keys()):
        if one.get(file) != other.get(file):
            print(f"{name}: {found}/{file} differs", flush=True)


def before_any_write(directory: Path, name: str) -> int:
    case, number = KNOWN[name], 0
    while True:
        number += 1
        broken = directory / f"{number}"

        def dying(number: int = number, broken: Path = broken) -> None:
            die_before_write(number)
            run(case, broken)

        if ended(forked(dying)):
            return number - 1
        assert ended(forked(lambda broken=broken: run(case, broken)))  # type: ignore[misc]
        compare(name, broken, directory / "straight")


def at_random(directory: Path, name: str, chance: random.Random) -> int:
    broken, kills, patience = directory / "broken", 0, 0.02
    while True:
        pid = forked(lambda: run(KNOWN[name], broken))
        time.sleep(chance.uniform(0, patience))
        os.kill(pid, signal.SIGKILL)
        if ended(pid):
            compare(name, broken, directory / "straight")
            return kills
        kills += 1
        patience *= 1.1  # so that it comes to an end on a slow machine too


def main() -> None:
    root, asked = Path(sys.argv[1]), [argument.partition("=") for argument in sys.argv[2:]]
    for module in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes", "paceline.engine.train"):
        import_module(module)  # what a first run would load, for seconds, in every fork
    digits()
    saved_models._save_architecture = lambda *arguments: None  # it is the same for all, and takes longer than a run
    kills = dict.fromkeys((how for how, _, _ in asked), 0)
    for number, (how, _, name) in enumerate(asked):
        directory = root / str(number)
        assert ended(forked(lambda: run(KNOWN[name], directory / "straight")))  # noqa: B023 - it is waited for
        if how == "at-random":
            kills[how] += at_random(directory, name, random.Random(number))
        else:
            kills[how] += before_any_write(directory, name)
    for how, count in kills.items():
        print(f"{how}: {count} kills")


if __name__ == "__main__":
    main()
