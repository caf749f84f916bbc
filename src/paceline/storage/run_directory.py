"""What a run leaves on disk.

config.json             what was asked for, everything filled in
trace.jsonl             events and instructions, as they happen
metrics.jsonl           a line for each judgement of the model, as they happen
checkpoint.safetensors  all that is needed to go on: now and then, when the run is interrupted, and at its end
model.safetensors       the weights and buffers at the end; pruning.safetensors, which samples were left out, if any
loss.safetensors        those of a loss that has parameters of its own
summary.json            how it ended; the last file to be written

The command line adds config.toml at the start, and a run that hands in models local.safetensors and architecture.pt2.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError
from paceline.files import (
    check_parent,
    check_regular,
    is_partial,
    read_regular,
    remove_partial,
    write_atomically,
    writing,
)
from paceline.storage.metrics import MetricsFile

if TYPE_CHECKING:
    from torch import nn

MAY_CHANGE = ("stop",)  # between a run and its continuation
FILES = (
    "config.json", "config.toml", "checkpoint.safetensors", "model.safetensors", "pruning.safetensors", "summary.json",
    "local.safetensors", "loss.safetensors", "architecture.pt2",
)  # fmt: skip
WRITTEN_IN_PLACE = ("trace.jsonl", "metrics.jsonl")


class RunDirectory:
    """The directory of one run, and further ``notes`` (file name to text) to keep in it.

    ``goes_on`` tells that it holds a checkpoint to resume from. Then nothing is changed until ``cut``, so that a run
    that cannot be resumed stays as it is.
    """

    def __init__(self, path: Path | str, notes: Mapping[str, str] | None = None) -> None:
        self.path = Path(path)
        self.goes_on = False
        self._notes = notes or {}

    def open(self, config: Mapping[str, Any], *, resume: bool) -> "RunDirectory":
        """Begin a run in an empty directory; or find one of the same ``config`` there, to resume."""
        self._config = config
        check_files(self.path, written=True)
        if resume and (self.path / "config.json").is_file():
            self._check_same()
            self.goes_on = self.checkpoint.exists()
        else:
            self.check_empty(resume=resume)
        metrics = self.path / "metrics.jsonl"
        if self.goes_on and not metrics.is_file():
            raise ConfigError(f"cannot resume {self.path}: it has no metrics.jsonl")
        if not self.goes_on:
            with writing(metrics):
                self._write_config()
        self.metrics = MetricsFile(metrics, resumed=self.goes_on)
        return self

    def how_to_go_on(self) -> str:
        """What to do with a run that did not come to its end."""
        again = f"train(..., directory={str(self.path)!r}, resume=True)"
        again = f"paceline train --resume {self.path}" if "config.toml" in self._notes else again
        there = self.checkpoint.is_file()
        return f"{again} goes on from its {'last checkpoint' if there else 'start, for there is no checkpoint'}"

    def _write_config(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        remove_partial(self.path)
        write_atomically(self.path / "config.json", _json(self._config))
        for name, text in self._notes.items():
            write_atomically(self.path / name, text)

    def _check_same(self) -> None:
        now = {name: value for name, value in self._config.items() if name not in MAY_CHANGE}
        try:
            saved = json.loads(read_regular(self.path / "config.json"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot read {self.path / 'config.json'}: {error}") from None
        if not isinstance(saved, dict):
            raise ConfigError(f"cannot read {self.path / 'config.json'}: it holds no JSON object")
        if (name := first_difference(saved, now)) is not None:
            raise ConfigError(
                f"cannot resume {self.path}: the run was begun with {name} = {saved.get(name)}, not {now[name]}"
            )

    def check_empty(self, *, resume: bool = False) -> None:
        """Raise ``ConfigError`` if there is something that is no run to resume."""
        path = self.path
        there = path.exists() and (not path.is_dir() or _others(path))
        if there and resume:
            raise ConfigError(f"cannot resume {path}: it is not the directory of a run (it has no config.json)")
        if (path / "config.json").is_file() and not resume:
            self._refuse_another()
        if there or (path.is_dir() and not resume and any(path.iterdir())):
            raise ConfigError(f"{path} is not empty, and holds no run: choose another directory")
        check_parent(path / "config.json")

    def _refuse_another(self) -> None:
        try:
            profile = "profile" in json.loads(read_regular(self.path / "config.json"))
        except (ConfigError, OSError, ValueError, TypeError):
            profile = False
        if profile:
            raise ConfigError(f"{self.path} holds a profile already: choose another directory")
        go_on = f"go on with it (paceline train --resume {self.path}, or train(..., resume=True) in Python)"
        raise ConfigError(f"{self.path} holds a run already: {go_on}, or choose another directory")

    @property
    def trace(self) -> Path:
        return self.path / "trace.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def cut(self) -> None:
        """Forget what was written after the state that was restored."""
        self._write_config()
        self.metrics.cut()
        with writing(self.path):
            for name in ("summary.json", "model.safetensors", "loss.safetensors", "pruning.safetensors"):
                (self.path / name).unlink(missing_ok=True)

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *exception: object) -> None:
        self.metrics.close()

    def finish(self, model: "nn.Module", summary: Mapping[str, Any], loss: "nn.Module | None" = None) -> None:
        from safetensors.torch import save

        for name, module in (("loss", loss), ("model", model)):
            if module is not None:
                values = module.state_dict().items()
                tensors = {key: value.detach().cpu().contiguous().clone() for key, value in values}
                write_atomically(self.path / f"{name}.safetensors", save(tensors))
        write_atomically(self.path / "summary.json", _json(summary))


def check_files(path: Path, *, written: bool = False) -> None:
    """Refuse a directory in which a file of a run is a link, a pipe or the like.

    Where it is to be ``written``, also one whose files would be changed under a second name.
    """
    for name in FILES:
        check_regular(path / name)
    for name in WRITTEN_IN_PLACE:
        check_regular(path / name, written=written)
    if (path / "tensorboard").is_symlink():
        raise ConfigError(f"{path / 'tensorboard'} is a symbolic link, and none is followed: put a directory there")


def place_of(directory: Path | str | RunDirectory) -> RunDirectory:
    return directory if isinstance(directory, RunDirectory) else RunDirectory(directory)


def _others(path: Path) -> bool:
    """Is there anything that a killed run cannot have left before its first whole file?"""
    return any(not is_partial(each) for each in path.iterdir())


def plain_repr(value: object) -> str:
    """A description; where an object lies in memory is left out, for it says nothing about a run."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def first_difference(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first setting that is another one now."""
    plain = json.loads(_json(now))
    return next((name for name in plain if saved.get(name) != plain[name]), None)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"
