"""What a run leaves on disk.

config.json             what the result depends on, see ``spec_file``
trace.jsonl             events and instructions, as they happen
metrics.jsonl           a line for each evaluation of the model, as they happen
checkpoint.safetensors  all that is needed to resume: at intervals, when the run is interrupted, and at its end
model.safetensors       the weights and buffers at the end; pruning.safetensors, which samples were left out, if any
loss.safetensors        those of a loss that has parameters of its own
summary.json            how it ended; the last file to be written

The command line adds config.toml at the start, and a run that hands in models local.safetensors and architecture.pt2.
"""

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError
from paceline.files import (
    DirectoryLock,
    check_parent,
    check_regular,
    is_partial,
    remove_partial,
    write_atomically,
    writing,
)
from paceline.storage.metrics import MetricsFile
from paceline.storage.spec_file import read_spec, spec_difference, spec_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from torch import nn

MAY_CHANGE = ("stop",)  # between a run and its continuation
FILES = (
    "config.json", "config.toml", "checkpoint.safetensors", "model.safetensors", "pruning.safetensors", "summary.json",
    "local.safetensors", "loss.safetensors", "architecture.pt2",
)  # fmt: skip
WRITTEN_IN_PLACE = ("trace.jsonl", "metrics.jsonl")


class RunDirectory:
    """The directory of one run, and further ``notes`` (file name to text) to keep in it.

    ``names_code``: the notes name code of the user's own, which is run again only where that is trusted. ``address`` is
    that of a cluster, which is connected to again only where it is named again.

    ``resumed`` tells that it holds a checkpoint to resume from. Then nothing is changed until ``cut``, so that a run
    that cannot be resumed stays as it is. While it is open no other run can be, in this process or another one.
    """

    def __init__(
        self, path: Path | str, notes: Mapping[str, str] | None = None, *, names_code: bool = False,
        address: str | None = None,
    ) -> None:  # fmt: skip
        self.path = Path(path)
        self.resumed = False
        self._notes = notes or {}
        self._lock: DirectoryLock | None = None
        self._trust = (" --trust" if names_code else "") + (f" --address {address}" if address else "")

    def open(
        self, spec: "DataclassInstance", *, resume: bool = False, extra: Mapping[str, Any] | None = None
    ) -> "RunDirectory":
        """Begin a run of this spec in an empty directory; or find one there, to resume. ``extra`` is kept with it."""
        check_files(self.path, written=True)
        self._config = spec_text(spec, extra or {})
        if not self.path.is_dir():
            self.check_empty(resume=resume)
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
        self._lock = DirectoryLock(self.path)
        try:
            self._begin(spec, resume=resume)
        except BaseException:
            self._lock.release()
            raise
        return self

    def _begin(self, spec: "DataclassInstance", *, resume: bool) -> None:
        if resume and (self.path / "config.json").is_file():
            if found := spec_difference(read_spec(self.path / "config.json"), spec, MAY_CHANGE):
                raise ConfigError(f"cannot resume {self.path}: the run was begun with {found}")
            self.resumed = self.checkpoint.exists()
        else:
            self.check_empty(resume=resume)
        metrics = self.path / "metrics.jsonl"
        if self.resumed and not metrics.is_file():
            raise ConfigError(f"cannot resume {self.path}: it has no metrics.jsonl")
        if not self.resumed:
            with writing(metrics):
                self._write_config()
        self.metrics = MetricsFile(metrics, resumed=self.resumed)

    def how_to_resume(self) -> str:
        """What to do with a run that did not come to its end."""
        again = f"train(..., directory={str(self.path)!r}, resume=True)"
        command = f"paceline train --resume {shlex.quote(str(self.path))}{self._trust}"
        again = command if "config.toml" in self._notes else again
        there = self.checkpoint.is_file()
        return f"{again} continues from its {'last checkpoint' if there else 'start, for there is no checkpoint'}"

    def _write_config(self) -> None:
        remove_partial(self.path)
        write_atomically(self.path / "config.json", self._config)
        for name, text in self._notes.items():
            write_atomically(self.path / name, text)

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
            profile = "profile" in read_spec(self.path / "config.json")
        except (ConfigError, OSError):
            profile = False
        if profile:
            raise ConfigError(f"{self.path} holds a profile already: choose another directory")
        resume = (
            f"resume it (paceline train --resume {shlex.quote(str(self.path))}, or train(..., resume=True) in Python)"
        )
        raise ConfigError(f"{self.path} holds a run already: {resume}, or choose another directory")

    @property
    def trace(self) -> Path:
        return self.path / "trace.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def cut(self) -> None:
        """Remove what was written after the state that was restored."""
        self._write_config()
        self.metrics.cut()
        with writing(self.path):
            for name in ("summary.json", "model.safetensors", "loss.safetensors", "pruning.safetensors"):
                (self.path / name).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove what was written, unless there was something to resume; and the directory, if that was all in it."""
        if self.resumed:
            return
        with suppress(OSError):
            for name in (*FILES, *WRITTEN_IN_PLACE, *self._notes):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.metrics.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    def finish(self, model: "nn.Module", summary: Mapping[str, Any], loss: "nn.Module | None" = None) -> None:
        from safetensors.torch import save

        for name, module in (("loss", loss), ("model", model)):
            if module is not None:
                values = module.state_dict().items()
                tensors = {key: value.detach().cpu().contiguous().clone() for key, value in values}
                write_atomically(self.path / f"{name}.safetensors", save(tensors))
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=2, sort_keys=True) + "\n")


def check_files(path: Path, *, written: bool = False) -> None:
    """Refuse a run directory of a newer format, and one in which a file of a run is a link, a pipe or the like.

    Where it is to be ``written``, also one whose files would be changed under a second name.
    """
    for name in FILES:
        check_regular(path / name)
    for name in WRITTEN_IN_PLACE:
        check_regular(path / name, written=written)
    if (path / "tensorboard").is_symlink():
        raise ConfigError(f"{path / 'tensorboard'} is a symbolic link, and none is followed: put a directory there")
    if (path / "config.json").is_file():
        read_spec(path / "config.json")  # one of a newer format says nothing that can be relied on


def check_new(directory: Path) -> None:
    """Raise ``ConfigError`` unless run directories can be made in this directory, which holds nothing yet."""
    RunDirectory(directory).check_empty()


def place_of(directory: Path | str | RunDirectory) -> RunDirectory:
    return directory if isinstance(directory, RunDirectory) else RunDirectory(directory)


def _others(path: Path) -> bool:
    """Is there anything that a killed run cannot have left before its first whole file?"""
    return any(not is_partial(each) for each in path.iterdir())
