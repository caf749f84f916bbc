"""Independent runs over the cores, whose results are kept: an interrupted reproduction continues where it was.

A run is a function of a module and its settings, a frozen dataclass of plain values; it returns plain values for JSON
and depends on nothing else. Each has one thread of torch, so its bits do not depend on how many run at a time. Its
result is a file named after the settings; it says by which code and version of torch it was made. One of others is not
used, nor is a damaged one, and that is said.
"""

import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from paceline import ConfigError
from paceline.callbacks.terminal import console
from paceline.comparison.pool import one_thread, process_pool, usable_cores
from paceline.files import write_atomically
from reproductions.pipeline.fingerprint import fingerprint
from reproductions.pipeline.values import plain_values, sum_of

Result = dict[str, Any]
S = TypeVar("S")
LINE_EVERY = 30.0  # seconds, where there is no terminal


@dataclass(frozen=True)
class Trial:
    """A function, the settings of one run, and about how long it takes, in any unit that all trials share."""

    function: Callable[[Any], Mapping[str, Any]]
    settings: Any
    cost: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def described(self) -> dict[str, Any]:
        """What is run, and what the result depends on besides."""
        return {
            "job": self.name, "settings": plain_values(asdict(self.settings)),
            "code": fingerprint(self.function.__module__), "torch": version("torch"),
        }  # fmt: skip

    @property
    def file(self) -> str:
        """The result is kept under this name: the same only for the same function and settings."""
        told = [self.name, plain_values(asdict(self.settings))]
        return f"{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]}.json"


@dataclass(frozen=True)
class Runner:
    """Runs functions on settings, so many ``processes`` at a time, and keeps the results in ``work``."""

    work: Path | None = None
    processes: int | None = None

    def run(
        self,
        function: Callable[[S], Mapping[str, Any]],
        settings: Iterable[S],
        *,
        label: str,
        cost: Callable[[S], float] = lambda _: 1.0,
    ) -> dict[S, Result]:
        """The result of every run, by its settings; those that ``work`` holds already are not run again.

        Long runs should come first, for the cores to end together. Ctrl-C ends the processes, and keeps what is done.
        """
        wanted = list(dict.fromkeys(settings))
        trials = [Trial(function, each, cost(each)) for each in wanted]
        results = self._all_kept(trials, label)
        todo = {number: trial for number, trial in enumerate(trials) if number not in results}
        if self.work is not None and todo:
            _check_directory(self.work)
        if todo:
            with _Bar(label, trials, done=results) as bar:
                for number, result in _finished(todo, min(self.processes or usable_cores(), len(todo)), bar):
                    results[number] = plain_values(result)
                    self._keep(trials[number], results[number])
                    bar.finished(trials[number])
        return {each: results[number] for number, each in enumerate(wanted)}

    def _keep(self, trial: Trial, result: Result) -> None:
        if self.work is not None:
            content = {**trial.described, "result": result}
            content["sum"] = sum_of(content)
            write_atomically(self.work / trial.file, json.dumps(content, allow_nan=False) + "\n")

    def _all_kept(self, trials: Sequence[Trial], label: str) -> dict[int, Result]:
        """What earlier tries came to, by the number of the trial. What is not used of it is told of on stderr."""
        results, unused = dict[int, Result](), defaultdict[str, list[str]](list)
        for number, trial in enumerate(trials) if self.work is not None else ():
            match self._kept(trial):
                case str(why):
                    unused[why].append(trial.file)
                case dict(result):
                    results[number] = result
        for why, files in unused.items():
            which = f"1 kept result ({files[0]}) is" if len(files) == 1 else f"{len(files)} kept results are"
            print(f"{label}: {which} not used, and made again in {self.work}: {why}", file=sys.stderr)
        return results

    def _kept(self, trial: Trial) -> Result | str | None:
        """The result of an earlier try, or why it is not used; None if there is none."""
        assert self.work is not None
        try:
            content = json.loads((self.work / trial.file).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            return f"cannot be read ({error})"
        if not isinstance(content, dict) or not isinstance(result := content.pop("result", None), dict):
            return "damaged: there is no result"
        if content.pop("sum", None) != sum_of({**content, "result": result}):
            return "damaged: the sum is another than was written"
        if content == (wanted := trial.described):
            return result
        changed = [name for name in wanted if content.get(name) != wanted[name]]
        return f"made with other {' and '.join(changed) or 'parts'}"


def _finished(trials: Mapping[int, Trial], processes: int, bar: "_Bar") -> Iterator[tuple[int, Result]]:
    """The number and the result of each trial, as they end."""
    if processes == 1:
        with one_thread():
            for number, trial in trials.items():
                yield number, dict(trial.function(trial.settings))
        return
    with process_pool(processes, ["torch", *sorted({trial.function.__module__ for trial in trials.values()})]) as pool:
        running: dict[Future[Mapping[str, Any]], int] = {
            pool.submit(trial.function, trial.settings): number for number, trial in trials.items()
        }
        while running:
            done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=running.__getitem__):
                yield running.pop(future), dict(future.result())
            bar.refresh()


def _check_directory(work: Path) -> None:
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot keep runs in {work}: {error.strerror or error}") from None
    if not os.access(work, os.W_OK):
        raise ConfigError(f"cannot keep runs in {work}: it cannot be written to")


class _Bar:
    """How many runs are done, and how long the rest takes at the same pace. On stderr."""

    def __init__(self, label: str, trials: Sequence[Trial], done: Mapping[int, object]) -> None:
        terminal = console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[remaining]}"),
        )
        self._bar = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
        self._task = self._bar.add_task(label, total=len(trials), completed=len(done), remaining="")
        self._label, self._on_terminal = label, terminal.is_terminal
        self._trials, self._count = len(trials), len(done)
        self._rest = sum(trial.cost for number, trial in enumerate(trials) if number not in done)
        self._done_cost, self._started = 0.0, time.monotonic()
        self._ends, self._next_line = float("nan"), self._started

    def __enter__(self) -> "_Bar":
        self._bar.start()
        self._line()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def finished(self, trial: Trial) -> None:
        now = time.monotonic()
        self._count += 1
        self._done_cost += trial.cost
        self._rest -= trial.cost
        self._ends = now + (now - self._started) * self._rest / self._done_cost
        self.refresh(completed=self._count)

    def refresh(self, completed: int | None = None) -> None:
        self._bar.update(self._task, completed=completed, remaining=self._remaining())
        if time.monotonic() >= self._next_line:
            self._line()

    def _line(self) -> None:
        self._next_line = time.monotonic() + LINE_EVERY
        if not self._on_terminal:
            rest = self._remaining()
            print(f"{self._label}: {self._count} of {self._trials} runs{', ' * bool(rest)}{rest}", file=sys.stderr)

    def _remaining(self) -> str:
        if not self._done_cost:
            return ""
        seconds = max(0, round(self._ends - time.monotonic()))
        return f"about {seconds // 60}:{seconds % 60:02d} to go"
