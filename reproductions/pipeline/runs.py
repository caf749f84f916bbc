"""Independent runs over the cores. What each came to is kept, so that a reproduction goes on where it was interrupted.

A job is a function of a module and its settings, a frozen dataclass of plain values; it returns plain values for JSON
and depends on nothing else. Each runs in a process with one thread of torch, so it comes to the same bits however many
there are. Its result is a file named after the settings, the code that it uses and the version of torch.
"""

import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from paceline.comparison.jobs import one_thread, usable_cores
from paceline.comparison.pool import begin_process, end_fork_server, pool_context
from paceline.comparison.tables import console
from paceline.core.errors import ConfigError
from paceline.files import write_atomically
from reproductions.pipeline.card import plain_values
from reproductions.pipeline.fingerprint import fingerprint

Result = dict[str, Any]
LINE_EVERY = 30.0  # seconds, where there is no terminal


@dataclass(frozen=True)
class Job:
    """A function to call on its settings. ``cost`` is how long it takes, in any unit that is the same for all jobs."""

    function: Callable[[Any], Mapping[str, Any]]
    settings: Any
    cost: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def key(self) -> str:
        """What the result is kept under: the same only for the same settings, code and torch."""
        code = fingerprint(self.function.__module__)
        described = [self.name, plain_values(asdict(self.settings)), code, version("torch")]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def run_jobs(
    jobs: Sequence[Job], *, work: Path | None = None, processes: int | None = None, label: str = "running"
) -> list[Result]:
    """The results of all jobs, in their order; those that ``work`` holds already are not run again.

    Long jobs should come first, for the cores to end together. Ctrl-C ends the processes, and what was done is kept.
    """
    results: dict[int, Result] = {}
    for number, job in enumerate(jobs):
        if work is not None and (kept := _kept(work, job)) is not None:
            results[number] = kept
    todo = {number: job for number, job in enumerate(jobs) if number not in results}
    if work is not None and todo:
        _check_directory(work)
    if todo:
        with _Bar(label, jobs, done=results) as bar:
            for number, result in _finished(todo, min(processes or usable_cores(), len(todo)), bar):
                results[number] = plain_values(result)
                if work is not None:
                    _keep(work, jobs[number], results[number])
                bar.finished(jobs[number])
    return [results[number] for number in range(len(jobs))]


def _finished(jobs: Mapping[int, Job], processes: int, bar: "_Bar") -> Iterator[tuple[int, Result]]:
    """The number and the result of each job, as they end."""
    if processes == 1:
        with one_thread():
            for number, job in jobs.items():
                yield number, dict(job.function(job.settings))
        return
    with _pool(processes, sorted({job.function.__module__ for job in jobs.values()})) as pool:
        running: dict[Future[Mapping[str, Any]], int] = {
            pool.submit(job.function, job.settings): number for number, job in jobs.items()
        }
        while running:
            done, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=running.__getitem__):
                yield running.pop(future), dict(future.result())
            bar.look()


@contextmanager
def _pool(processes: int, modules: list[str]) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this block, however it ends."""
    context = pool_context(["torch", *modules])
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, context, initializer=begin_process)
    try:
        yield pool
    except BaseException:
        end_fork_server()
        workers = set(multiprocessing.active_children()) - before
        for process in workers:
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        _bury(workers)
        raise
    pool.shutdown()


def _bury(workers: set[BaseProcess]) -> None:
    for process in workers:
        process.join(timeout=5.0)
        if process.is_alive():
            process.kill()
            process.join()


def _keep(work: Path, job: Job, result: Result) -> None:
    described = {"job": job.name, "settings": plain_values(asdict(job.settings)), "result": result}
    write_atomically(work / f"{job.key}.json", json.dumps(described, allow_nan=False) + "\n")


def _kept(work: Path, job: Job) -> Result | None:
    """What an earlier try came to; a file that cannot be read is as good as none."""
    try:
        described = json.loads((work / f"{job.key}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    result = described.get("result") if isinstance(described, dict) else None
    return result if isinstance(result, dict) else None


def _check_directory(work: Path) -> None:
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot keep runs in {work}: {error.strerror or error}") from None
    if not os.access(work, os.W_OK):
        raise ConfigError(f"cannot keep runs in {work}: it cannot be written to")


class _Bar:
    """How far the jobs are, and how long the rest will take if it goes on at the same pace. On stderr."""

    def __init__(self, label: str, jobs: Sequence[Job], done: Mapping[int, object]) -> None:
        terminal = console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[remaining]}"),
        )
        self._bar = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
        self._task = self._bar.add_task(label, total=len(jobs), completed=len(done), remaining="")
        self._label, self._silent = label, terminal.is_terminal
        self._jobs, self._count = len(jobs), len(done)
        self._rest = sum(job.cost for number, job in enumerate(jobs) if number not in done)
        self._spent, self._begun = 0.0, time.monotonic()
        self._ends, self._next_line = float("nan"), self._begun

    def __enter__(self) -> "_Bar":
        self._bar.start()
        self._line()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def finished(self, job: Job) -> None:
        now = time.monotonic()
        self._count += 1
        self._spent += job.cost
        self._rest -= job.cost
        self._ends = now + (now - self._begun) * self._rest / self._spent
        self.look(completed=self._count)

    def look(self, completed: int | None = None) -> None:
        self._bar.update(self._task, completed=completed, remaining=self._remaining())
        if time.monotonic() >= self._next_line:
            self._line()

    def _line(self) -> None:
        self._next_line = time.monotonic() + LINE_EVERY
        if not self._silent:
            rest = self._remaining()
            print(f"{self._label}: {self._count} of {self._jobs} runs{', ' * bool(rest)}{rest}", file=sys.stderr)

    def _remaining(self) -> str:
        if not self._spent:
            return ""
        seconds = max(0, round(self._ends - time.monotonic()))
        return f"about {seconds // 60}:{seconds % 60:02d} to go"
