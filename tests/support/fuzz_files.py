"""Files of a run, damaged and forged at random: each must be taken, or refused in one line before anything is changed.

    python tests/support/fuzz_files.py [--seed 0] [--cases 1000] [--save FILE.json] [KIND ...]

    trace       lines and numbers of a trace changed; report, replay --strategy and predict read it
    checkpoint  values of a checkpoint changed, its checksum made right again; the run is resumed
    toml        a configuration changed; predict and train's reading of it
    pruning     a record of pruned samples forged, its shapes and numbers changed; report and load_run read it
    directory   bytes of any file changed, files exchanged for links, pipes, directories; report, replay and resuming

An outcome is ``taken``, ``refused`` or a fault: ``traceback`` (with the exception), ``changed`` (refused, but files are
not what they were), ``several lines``, or ``too slow``. Case number n of a seed is the same on every machine.
"""

import argparse
import copy
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import paceline as pl
from paceline.cli.main import main
from paceline.storage import saved_models
from paceline.storage.checkpoint import read_checkpoint, write_checkpoint
from support.pruning_files import changed_arrays, pruning_arrays, write_arrays
from support.resumable import CASES, MODELS, Case

SECONDS = 60  # that one case may take
TOML = """
batch_size = 8
strategy = "lgc:quorum=2,blocks=4"
clip_norm = 5.0
[task]
data = "digits"
model = "linear"
[fleet]
recall = "block"
network = {latency = 0.1, bandwidth = 1e6}
[[fleet.workers]]
count = 3
delay = "shifted-exponential"
shift = 0.5
mean = 0.5
[[fleet.workers]]
count = 1
delay = "pareto"
minimum = 2.4
shape = 3.0
[optimizer]
name = "SGD"
lr = 0.1
[stop]
updates = 60
"""
HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 1.5, -0.0, 10**9, 2**31, 2**63, 10**30, 1e308, 1e-308, math.inf, -math.inf,
    10**400, math.nan, "", "x", "0", "1/2", "1/0", "1e999999999", "<img src=x onerror=alert(1)>", [], [[]], {}, [0],
    {"a": 1}, "\x00", "a" * 5000,
)  # fmt: skip

VALUES = (
    "-1", "0", "1e999", "nan", "inf", '""', '"x"', "[]", "{}", "true", "2147483648", "3", "10000000000000000000000",
    "1" + "0" * 400, "[1, 2]", '"lgc:quorum=99999999999"', "1e-300", "1.5",
)  # fmt: skip


class TooSlow(BaseException):
    """A case took longer than it may."""


@dataclass
class Outcomes:
    """What became of the cases of one kind, and the first few faults."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def note(self, outcome: str, told: str = "") -> None:
        self.counts[outcome] += 1
        if outcome not in ("taken", "refused"):
            self.faults.append(f"{outcome}: {told[:300]}")


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "page.html"
    }


def tried(outcomes: Outcomes, place: Path, case: str, act: Callable[[], str | None]) -> None:
    """Do something with damaged files; ``act`` answers with the refusal, if it is one, and then nothing may change."""
    before = contents(place)
    try:
        with limited(SECONDS):
            refusal = act()
    except TooSlow:
        return outcomes.note("too slow", case)
    except Exception as error:  # this is what is looked for
        trace, where = error.__traceback__, ""
        while trace is not None:
            where = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
            trace = trace.tb_next
        return outcomes.note("traceback", f"{case}: {type(error).__name__}: {str(error)[:150]} at {where}")
    if refusal is None:
        return outcomes.note("taken")
    if "\n" in refusal.strip():
        return outcomes.note("several lines", f"{case}: {refusal!r}")
    if contents(place) != before:
        return outcomes.note("changed", f"{case}: {refusal}")
    return outcomes.note("refused")


def command(*arguments: str) -> str | None:
    """Run a command in this process; what it says if it refuses."""
    said, told = StringIO(), StringIO()
    with redirect_stdout(said), redirect_stderr(told):
        code = main(list(arguments))
    return told.getvalue() if code == 2 else None


def reported(directory: Path) -> str | None:
    page, timeline = (str(directory.parent / name) for name in ("page.html", "page.json"))
    return command("report", str(directory), "--out", page, "--perfetto", timeline)


def loaded(directory: Path) -> str | None:
    try:
        pl.load_run(directory)
    except pl.ConfigError as error:
        return str(error)
    return None


def resumed(case: Case, directory: Path, updates: int) -> str | None:
    try:
        case.run(directory, pl.Stop(updates=updates), resume=True)
    except pl.ConfigError as error:
        return str(error)
    return None


# Changes


def changed_value(value: Any, chance: random.Random) -> Any:
    """Something else of about the same kind, or something hostile."""
    if chance.random() < 0.4:
        return copy.deepcopy(chance.choice(HOSTILE))
    if isinstance(value, torch.Tensor):
        return changed_tensor(value, chance)
    if isinstance(value, np.ndarray):
        found = changed_tensor(torch.from_numpy(value.copy()), chance)
        return found.numpy() if isinstance(found, torch.Tensor) else found
    if isinstance(value, list | tuple) and value:
        return changed_list(list(value), chance, type(value))
    if isinstance(value, dict) and value:
        return changed_keys(dict(value), chance)
    if type(value) is int:
        return value + chance.choice((-1, 1, -value, 1000, 2**40, chance.randint(-5, 5)))
    if type(value) is float:
        return chance.choice(
            (value + 1, -value, value * 1e6, value - 1e-9, 0.0, float(int(value)) if math.isfinite(value) else 1.0)
        )
    return copy.deepcopy(chance.choice(HOSTILE))


def changed_tensor(tensor: torch.Tensor, chance: random.Random) -> Any:
    choice = chance.randrange(6)
    if choice == 0:
        return tensor.reshape(-1)[: chance.randint(0, max(0, tensor.numel() - 1))].clone()
    if choice == 1:
        return tensor.to(chance.choice((torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8)))
    if choice == 2 and tensor.numel():
        found = tensor.clone().reshape(-1)
        found[chance.randrange(len(found))] = chance.choice((0, 1, 100))
        return found.reshape(tensor.shape)
    if choice == 3 and tensor.is_floating_point():
        return torch.full_like(tensor, chance.choice((math.nan, math.inf, 1e30)))
    if choice == 4 and not tensor.is_floating_point() and tensor.dtype in (torch.int64, torch.int32):
        return tensor + chance.choice((-1, 1, 10**6))
    return torch.cat([tensor.reshape(-1), tensor.reshape(-1)])


def changed_list(value: list[Any], chance: random.Random, kind: type) -> Any:
    choice, place = chance.randrange(4), chance.randrange(len(value))
    if choice == 0:
        del value[place]
    elif choice == 1:
        value.insert(place, copy.deepcopy(value[chance.randrange(len(value))]))
    elif choice == 2:
        other = chance.randrange(len(value))
        value[place], value[other] = value[other], value[place]
    else:
        value.append(copy.deepcopy(chance.choice(HOSTILE)))
    return kind(value) if kind is tuple else value


def changed_keys(value: dict[Any, Any], chance: random.Random) -> Any:
    key = chance.choice(list(value))
    if chance.random() < 0.5:
        del value[key]
    else:
        value[chance.choice(("x", "", key)) if isinstance(key, str) else chance.choice((key, 99))] = value.pop(key)
    return value


def change_somewhere(value: Any, chance: random.Random) -> Any:
    """Go down to some place, and change what is there."""
    if isinstance(value, dict) and value and chance.random() < 0.93:
        key = chance.choice(list(value))
        return {**value, key: change_somewhere(value[key], chance)}
    if isinstance(value, list | tuple) and value and chance.random() < 0.85:
        items, place = list(value), chance.randrange(len(value))
        items[place] = change_somewhere(items[place], chance)
        return tuple(items) if isinstance(value, tuple) else items
    return changed_value(value, chance)


def changed_line(line: str, chance: random.Random) -> str:
    try:
        return json.dumps(change_somewhere(json.loads(line), chance))
    except (ValueError, TypeError):
        return "x"


def changed_lines(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        choice, place = chance.randrange(7), chance.randrange(len(lines))
        if choice == 0 and len(lines) > 1:
            del lines[place]
        elif choice == 1:
            lines.insert(place, chance.choice(lines))
        elif choice == 2:
            other = chance.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        elif choice == 3:
            lines[place] = lines[place][: chance.randrange(len(lines[place]) + 1)]
        else:
            lines[place] = changed_line(lines[place], chance)
    return "\n".join(lines) + "\n"


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    found = bytearray(data)
    choice = chance.randrange(4)
    if choice == 0 or not found:
        return bytes(found[: chance.randrange(len(found) + 1)]) if found else b"\x00"
    for _ in range(chance.choice((1, 1, 4, 50))):
        found[chance.randrange(len(found))] = chance.randrange(256)
    if choice == 1:
        found[: chance.randrange(len(found))] = b""
    return bytes(found)


def changed_toml(text: str, chance: random.Random) -> str:
    lines = text.strip().splitlines()
    for _ in range(chance.choice((1, 1, 2, 3))):
        place = chance.randrange(len(lines))
        choice = chance.randrange(5)
        if choice == 0:
            del lines[place]
        elif choice == 1:
            lines.insert(place, chance.choice(lines))
        elif "=" in lines[place]:
            value = chance.choice(VALUES)
            lines[place] = f"{lines[place].split('=')[0]}= {value}"
        else:
            lines[place] = changed_bytes(lines[place].encode(), chance).decode(errors="replace")
    return "\n".join(lines) + "\n"


# Kinds


class Fuzzer:
    """Makes runs once, and damages copies of them."""

    def __init__(self, place: Path, names: dict[str, Case], updates: int = 6) -> None:
        self.place = place
        self.cases = names
        self.updates = updates
        self.states: dict[str, dict[str, Any]] = {}
        for number, (name, case) in enumerate(names.items()):
            case.run(self.run_of(number), pl.Stop(updates=updates))
            self.states[name] = read_checkpoint(self.run_of(number) / "checkpoint.safetensors")
        (place / "file.toml").write_text(TOML)
        assert command("train", str(place / "file.toml"), "--directory", str(place / "told"), "--no-check-step") is None

    def run_of(self, number: int) -> Path:
        return self.place / f"run{number}"

    def copy_of(self, original: Path) -> Path:
        damaged = self.place / "work" / "run"
        shutil.rmtree(damaged.parent, ignore_errors=True)
        shutil.copytree(original, damaged)
        return damaged

    def trace(self, chance: random.Random, outcomes: Outcomes, case: str) -> None:
        number = chance.randrange(len(self.cases))
        damaged = self.copy_of(self.run_of(number) if chance.random() < 0.6 else self.place / "told")
        file = damaged / "trace.jsonl"
        file.write_text(changed_lines(file.read_text(), chance))
        what = chance.randrange(3)
        acts = (
            lambda: reported(damaged),
            lambda: command("replay", str(damaged), "--strategy", "asgd", "--strategy", "ssgd"),
            lambda: command("predict", str(damaged), "--strategy", "asgd"),
        )
        tried(outcomes, damaged, f"{case} {('report', 'replay', 'predict')[what]}", acts[what])

    def checkpoint(self, chance: random.Random, outcomes: Outcomes, case: str) -> None:
        number, name = chance.choice(list(enumerate(self.cases)))
        damaged = self.copy_of(self.run_of(number))
        state = change_somewhere(self.states[name], chance)
        try:
            write_checkpoint(damaged / "checkpoint.safetensors", state)
        except (pl.ConfigError, AttributeError, TypeError, ValueError):
            return outcomes.note("refused")  # nothing that can be written
        more = self.updates + 3
        return tried(outcomes, damaged, f"{case} {name}", lambda: resumed(self.cases[name], damaged, more))

    def toml(self, chance: random.Random, outcomes: Outcomes, case: str) -> None:
        work = self.place / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        (work / "file.toml").write_text(changed_toml(TOML, chance))
        tried(outcomes, work, case, lambda: command("predict", str(work / "file.toml")))

    def pruning(self, chance: random.Random, outcomes: Outcomes, case: str) -> None:
        damaged = self.copy_of(self.place / "told")
        write_arrays(damaged, changed_arrays(pruning_arrays(), chance))
        if chance.random() < 0.8:
            tried(outcomes, damaged, f"{case} report", lambda: reported(damaged))
        else:
            tried(outcomes, damaged, f"{case} load_run", lambda: loaded(damaged))

    def directory(self, chance: random.Random, outcomes: Outcomes, case: str) -> None:
        number, name = chance.choice(list(enumerate(self.cases)))
        told = chance.random() < 0.5
        damaged = self.copy_of(self.place / "told" if told else self.run_of(number))
        file = chance.choice(sorted(damaged.iterdir()))
        choice = chance.randrange(8)
        if choice < 5:
            text = file.suffix in (".json", ".jsonl") and chance.random() < 0.6
            if text:
                file.write_text(changed_lines(file.read_text(), chance))
            else:
                file.write_bytes(changed_bytes(file.read_bytes(), chance))
        else:
            file.rename(damaged.parent / "elsewhere")
            if choice == 5:
                file.symlink_to(damaged.parent / "elsewhere")
            elif choice == 6:
                os.mkfifo(file)
            else:
                file.mkdir()
        acts = [
            lambda: reported(damaged),
            lambda: command("replay", str(damaged), "--strategy", "asgd"),
            (lambda: command("train", "--resume", str(damaged), "--no-check-step"))
            if told
            else (lambda: resumed(self.cases[name], damaged, self.updates + 3)),
        ]
        what = chance.randrange(3)
        tried(outcomes, damaged, f"{case} {file.name} {choice} {('report', 'replay', 'resume')[what]}", acts[what])


KINDS = ("trace", "checkpoint", "toml", "pruning", "directory")


def fuzz(place: Path, kinds: tuple[str, ...], seed: int, cases: int, names: dict[str, Case]) -> dict[str, Outcomes]:
    """So many cases of each kind."""
    fuzzer = Fuzzer(place, names)
    found = {kind: Outcomes() for kind in kinds}
    for kind in kinds:
        for number in range(cases):
            getattr(fuzzer, kind)(random.Random(f"{seed} {kind} {number}"), found[kind], f"{kind} {number}")
    return found


def _everything() -> dict[str, Case]:
    chosen = (
        "grouped compensation", "regrouped", "Adam and one cycle", "leaving and joining, in groups", "busy server",
        "pruned and handed on", "resampled", "batch norm", "schedulers in a row",
    )  # fmt: skip
    models = ("averages", "averages of the fastest", "averages in groups", "ensembles", "ensembles, joining")
    return {name: CASES[name] for name in chosen} | {name: MODELS[name] for name in models}


def _script() -> int:
    parser = argparse.ArgumentParser(
        description="Damage files of a run at random, and look for anything but a refusal."
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000, help="of each kind")
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    saved_models._save_architecture = lambda *arguments: None  # it takes longer than a run
    with tempfile.TemporaryDirectory() as place:
        found = fuzz(Path(place), tuple(asked.kinds) or KINDS, asked.seed, asked.cases, _everything())
    for kind, outcomes in found.items():
        print(kind, dict(outcomes.counts))
        for fault in outcomes.faults[:40]:
            print("   ", fault)
    if asked.save:
        table = {"seed": asked.seed, "cases": asked.cases, "outcomes": {k: dict(o.counts) for k, o in found.items()}}
        asked.save.write_text(json.dumps(table, indent=1) + "\n")
    return int(any(outcomes.faults for outcomes in found.values()))


if __name__ == "__main__":
    sys.exit(_script())
