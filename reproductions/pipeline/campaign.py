"""Runs at a paper's own length, which take hours: over several sessions and machines, one run at a time.

Each result is a small file that is committed, so another machine continues where this one was. It is known by the
settings of the run and by the version of the experiment, a number (``VERSION``) in the module of the function that
makes it. That counts what is run: settings, arithmetic, data. Raise it when one of them changes. Code that only rounds
otherwise (another compiler or processor, another order of a sum) does not raise it: a single run then comes to other
numbers, by no more than what another seed changes, and is as good as before. A sum of the code behind each result is
in its file.

A run writes checkpoints into a folder of its own, and an interrupted one goes on from the last. The same command,
started twice on one machine, shares the runs: each is locked by the process that is at it. What is left to the other
is waited for, since the next runs may depend on it, and made here if the other ends without it.
"""

import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import reproductions
from paceline.comparison.pool import one_thread
from paceline.core.errors import CannotWrite
from paceline.files import check_parent, write_atomically
from reproductions.pipeline.fingerprint import fingerprint
from reproductions.pipeline.values import plain_values, sum_of

RESULTS = Path(str(reproductions.__file__)).parent / "results"
PLACES = ("data",)  # settings that say where something lies, and not what is run
PARTS = {"experiment": str, "version": int, "settings": dict, "made": dict, "result": dict, "sum": str}  # of a file
KINDS = {str: "a text", int: "a whole number", dict: "a table"}
NOTED_EVERY = 10.0  # seconds: a run that is killed loses at most so many of those that it has taken
Result = dict[str, Any]
S = TypeVar("S")


@dataclass(frozen=True)
class Entry(Generic[S]):
    """A run of a campaign, and how it is known. ``settings`` is a frozen dataclass of plain values with a ``name``."""

    function: Callable[..., Mapping[str, Any]]
    settings: S
    cost: float

    @property
    def experiment(self) -> str:
        return f"{self.function.__module__.removeprefix('reproductions.')}.{self.function.__qualname__}"

    @property
    def version(self) -> int:
        return int(sys.modules[self.function.__module__].VERSION)

    @property
    def described(self) -> dict[str, Any]:
        """The settings in plain values, without the places."""
        values = plain_values(asdict(self.settings))  # type: ignore[call-overload]
        return {name: value for name, value in values.items() if name not in PLACES}

    @property
    def file(self) -> str:
        """A name that people can read, and a sum that tells all settings apart."""
        told = json.dumps([self.experiment, self.described], sort_keys=True)
        return f"{self.settings.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}.json"  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Campaign:
    """Runs what is missing of a paper's campaign, and reads what there is.

    results   the folder of the results; a file for each run
    scratch   where runs under way have their checkpoints
    runs      how many runs to do before it ends; None for all that are missing, 0 only reads
    """

    results: Path
    scratch: Path
    runs: int | None = None
    told: list[str] = field(default_factory=list)  # files that were not used, and why
    done: list[str] = field(default_factory=list)  # runs that were made here
    known: dict[str, "Spent"] = field(default_factory=dict)  # all runs that were asked for
    later: list[float] = field(default_factory=list)  # the costs of runs that cannot be named yet

    def run(
        self,
        function: Callable[..., Mapping[str, Any]],
        settings: Iterable[S],
        *,
        label: str,
        cost: Callable[[S], float] = lambda _: 1.0,
    ) -> dict[S, Result]:
        """The result of every run that there is one of, after those were made that are missing, in their order.

        ``function(settings, scratch)`` makes one; ``scratch`` is a folder in which it may keep what it needs to go on
        after an interruption. ``cost`` is in seconds of one core, about.
        """
        entries = [Entry(function, each, cost(each)) for each in dict.fromkeys(settings)]
        found = {entry.settings: kept for entry in entries if (kept := self._kept(entry)) is not None}
        missing = [entry for entry in entries if entry.settings not in found]
        self.known.update({entry.file: self._spent(entry) for entry in entries})
        pace = _Pace(label, [self.known[entry.file] for entry in entries])
        todo = deque((entry, False) for entry in missing)
        while todo and (self.runs is None or len(self.done) < self.runs):
            entry, waits = todo.popleft()
            with self._alone(entry, waits=waits) as mine:
                if not mine:
                    pace.say(f"{entry.settings.name} is run by another process")  # type: ignore[attr-defined]
                    if self.runs is None:
                        todo.append((entry, True))
                    continue
                again = self._kept(entry)  # another process may have made it meanwhile
                if again is None:
                    pace.begin(entry, [other for other in missing if other.settings not in found])
                    again = self._make(entry)
                    pace.end(entry, self._spent(entry))
                self.known[entry.file] = self._spent(entry)
                found[entry.settings] = again
        return {entry.settings: found[entry.settings] for entry in entries if entry.settings in found}

    def expect(self, costs: Iterable[float]) -> None:
        """Count runs that cannot be named yet, since their settings are chosen by runs that are missing."""
        self.later.extend(costs)

    @property
    def progress(self) -> str:
        """How many runs there are of how many, and the time of one core that the others take at the same pace."""
        made = [each for each in self.known.values() if each.seconds is not None]
        rest = [each.cost for each in self.known.values() if each.seconds is None] + self.later
        told = f"{len(made)} of {len(made) + len(rest)} runs made"
        return f"{told}; about {_pace(made) * sum(rest) / 3600:.1f} core-hours left" if rest else told

    def _make(self, entry: Entry[Any]) -> Result:
        scratch = self.scratch / f"{Path(entry.file).stem}-v{entry.version}"
        clock = _Clock(scratch.with_name(f"{scratch.name}.spent.json"))
        with one_thread(), clock:
            result: Result = plain_values(dict(entry.function(entry.settings, scratch)))
        seconds, cpu = clock.spent()
        made = {
            "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "torch": installed("torch"),
            "code": fingerprint(entry.function.__module__)[:16],
        }  # fmt: skip
        content = {
            "experiment": entry.experiment, "version": entry.version, "settings": entry.described, "made": made,
            "result": result,
        }  # fmt: skip
        content["sum"] = sum_of(content)
        lines = [f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in content.items()]
        write_atomically(self.results / entry.file, "{" + ",\n".join(lines) + "}\n")
        shutil.rmtree(scratch, ignore_errors=True)
        clock.place.unlink(missing_ok=True)
        self.done.append(entry.file)
        return result

    def _kept(self, entry: Entry[Any]) -> Result | None:
        content = self._read(entry)
        result: Result | None = None if content is None else content["result"]
        return result

    def _spent(self, entry: Entry[Any]) -> "Spent":
        """Of a run that there is a usable result of; else none."""
        content = self._read(entry)
        return Spent(entry.cost, None if content is None else content["made"]["cpu_seconds"])

    def _read(self, entry: Entry[Any]) -> dict[str, Any] | None:
        """What a result file has, if it is whole and of this run. Else it is told of."""
        file = self.results / entry.file
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._tell(f"{file} cannot be read, and is not used: {error}")
            return None
        if (trouble := _trouble(content, entry)) is None:
            return dict(content)
        self._tell(f"{file} {trouble}")
        return None

    def _tell(self, line: str) -> None:
        """Once each, on stderr."""
        if line not in self.told:
            self.told.append(line)
            print(line, file=sys.stderr)

    @contextmanager
    def _alone(self, entry: Entry[Any], *, waits: bool) -> Iterator[bool]:
        """Is this process the only one at a run? Where the system has no locks, it is taken to be.

        One that waits is, once the other has ended.
        """
        check_parent(self.scratch / "lock")
        self.scratch.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            yield True
            return
        import fcntl

        handle = os.open(self.scratch / f"{Path(entry.file).stem}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)


def _trouble(content: Any, entry: Entry[Any]) -> str | None:
    """Why the content of a result file is not used for a run, if it is not."""
    damaged = "is damaged, and is not used:"
    if not isinstance(content, dict):
        return f"{damaged} it has no parts such as {', '.join(PARTS)}"
    for name, kind in PARTS.items():
        if type(value := content.get(name)) is not kind:
            return f"{damaged} its {name} is {_shown(value)}, not {KINDS[kind]}"
    if content["version"] != entry.version:
        return (
            f"is of version {content['version']} of its experiment, and this is version {entry.version}: it is not used"
        )
    if content["experiment"] != entry.experiment:
        return f"is of another experiment, {content['experiment']}, and is not used"
    own, theirs = entry.described, content["settings"]
    if differing := [name for name in {**own, **theirs} if own.get(name) != theirs.get(name)]:
        return f"is of a run with other settings ({', '.join(differing)}), and is not used"
    if type(content["made"].get("cpu_seconds")) not in (int, float):
        return f"{damaged} it does not say how long the run took"
    rest = {name: value for name, value in content.items() if name != "sum"}
    if content["sum"] not in (sum_of(rest), sum_of(content["result"])):  # of the result alone: as once was written
        return f"{damaged} it has another sum than it was written with"
    return None


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]} ..."


class _Clock:
    """The time that a run has taken, with that of interrupted tries: kept in a file while the run lasts.

    It is written every few seconds, since a run that is killed cannot say what it took.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._before = self._read()
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_now_and_then, daemon=True)

    def spent(self) -> tuple[float, float]:
        """Seconds that passed, and those of the processor."""
        seconds, cpu = self._before
        return seconds + time.monotonic() - self._began, cpu + time.process_time() - self._cpu_began

    def __enter__(self) -> None:
        self._began, self._cpu_began = time.monotonic(), time.process_time()
        self._writer.start()

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._writer.join()
        self._write()

    def _write_now_and_then(self) -> None:
        while not self._ended.wait(NOTED_EVERY):
            self._write()

    def _write(self) -> None:
        with suppress(CannotWrite):  # a run does not end for want of its time
            write_atomically(self.place, json.dumps(self.spent()))

    def _read(self) -> tuple[float, float]:
        try:
            seconds, cpu = json.loads(self.place.read_text(encoding="utf-8"))
            return float(seconds), float(cpu)
        except (OSError, ValueError, TypeError):
            return 0.0, 0.0


class Spent(NamedTuple):
    """What a run was expected to take, and took, in seconds of one core; None if it was not made yet."""

    cost: float
    seconds: float | None


def _pace(runs: Iterable[Spent]) -> float:
    """How many times as long as expected runs take; 1 if nothing is known."""
    known = [(each.cost, each.seconds) for each in runs if each.seconds]
    return sum(seconds for _, seconds in known) / sum(cost for cost, _ in known) if known else 1.0


class _Pace:
    """Tells on stderr which run begins, and how long it and the rest take a core at the pace of those that there are.

    A core that is shared with other work takes longer.
    """

    def __init__(self, label: str, runs: Sequence[Spent]) -> None:
        self._label, self._count = label, len(runs)
        self._known = [each for each in runs if each.seconds is not None]

    def begin(self, entry: Entry[Any], rest: Sequence[Entry[Any]]) -> None:
        pace = _pace(self._known)
        own, whole = _time(pace * entry.cost), _time(pace * sum(each.cost for each in rest))
        told = f"{own} of a free core, {whole} for all that is left"
        self.say(f"run {len(self._known) + 1} of {self._count}: {entry.settings.name}; {told}")

    def end(self, entry: Entry[Any], spent: Spent) -> None:
        self._known.append(spent)
        self.say(f"{entry.settings.name} took {_time(spent.seconds or 0.0)} of a core")

    def say(self, line: str) -> None:
        print(f"{self._label}: {line}", file=sys.stderr, flush=True)


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    return (
        f"{minutes // 60} h {minutes % 60:02d} min"
        if minutes >= 60
        else f"{minutes} min"
        if minutes
        else "under a minute"
    )
