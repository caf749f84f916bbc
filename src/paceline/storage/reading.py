"""A run as it lies on disk: whole, or as far as it came before it was killed."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.codec import real
from paceline.core.errors import ConfigError
from paceline.files import read_regular
from paceline.storage.description import describe
from paceline.storage.metrics import Row, read_rows
from paceline.storage.run_directory import check_files
from paceline.storage.spec_file import FORMAT, LARGEST, field_of, read_object, read_spec, spell_field
from paceline.strategies.synchronous import Synchronous
from paceline.trace.format import MOST_SECONDS
from paceline.trace.reading import Trace, read_trace
from paceline.trace.recordings import is_recording, read_recording


@dataclass(frozen=True)
class SavedRun:
    """The directory of a run, read."""

    path: Path
    config: Mapping[str, Any]
    rows: Sequence[Row]
    summary: Mapping[str, Any] | None  # None: it did not come to its end
    target: float | None
    trace: Trace

    @property
    def strategy(self) -> str:
        return spell_field(self.config, "strategy") if "strategy" in self.config else "unknown strategy"

    @property
    def ended(self) -> str:
        return "not finished" if self.summary is None else str(self.summary.get("ended"))

    @property
    def stopped_at(self) -> float:
        """When the clock ended the run, perhaps long after its last event; 0 if something else did."""
        return min(_stop(self.config, "seconds") or 0.0, MOST_SECONDS) if self.ended == "seconds" else 0.0

    @property
    def problem(self) -> str | None:
        problem = None if self.summary is None else self.summary.get("problem")
        return None if problem is None else str(problem)


def read_run(path: Path) -> SavedRun:
    """Read a run's directory; what a killed run did not write is missing, anything else that is missing an error."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not the directory of a run: give one that paceline train left")
    check_files(path)
    if not (path / "config.json").is_file() and is_recording(path):
        return _read_recorded(path)
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} is not the directory of a run: it has no config.json")
    config = read_spec(path / "config.json")
    summary = read_object(path / "summary.json") if (path / "summary.json").exists() else None
    trace = read_trace(path)
    _ = trace.about
    return SavedRun(path, config, read_rows(path / "metrics.jsonl"), summary, _target(path, config), trace)


def _read_recorded(path: Path) -> SavedRun:
    """A job of another training loop, which ``paceline.record`` recorded: a synchronous run without evaluations."""
    found = read_recording(path)
    config: dict[str, Any] = {"format": FORMAT, "strategy": describe(Synchronous()), "recording": found.count}
    if (size := found.batch_size) is not None:
        config["batch_size"] = size
    return SavedRun(path, config, (), {"ended": "recorded"}, None, Trace(found.lines, str(path)))


def names_of(paths: Sequence[Path]) -> list[str]:
    """Short names that differ: the directories' own, with as many of those above as that takes."""
    parts = [path.absolute().parts for path in paths]
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(each[-depth:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{path} ({number})" for number, path in enumerate(paths, start=1)]


def _target(path: Path, config: Mapping[str, Any]) -> float | None:
    """The accuracy that the run was to reach, where its configuration names one."""
    if (target := _stop(config, "target")) is not None:
        return target
    try:
        if (path / "config.toml").is_file():
            target = tomllib.loads(read_regular(path / "config.toml", LARGEST).decode()).get("target")
            return None if target is None else float(real(target))
    except (ValueError, TypeError, RecursionError):
        pass
    return None


def _stop(config: Mapping[str, Any], name: str) -> float | None:
    """A limit of the run, where its configuration has one."""
    try:
        return None if (value := field_of(config, "stop", name)) is None else float(real(value))
    except (ValueError, TypeError):
        return None
