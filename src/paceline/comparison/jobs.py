"""The runs of a comparison, one after the other or in several processes, and what came of each."""

import json
import logging
import math
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from paceline.callbacks.display import LogDisplay, Status, TimeLeft, open_display
from paceline.comparison.plan import Job, Plan
from paceline.comparison.pool import one_thread, process_pool, shared_value, without_main
from paceline.core.errors import ConfigError
from paceline.data.partition import Equal
from paceline.engine.limits import Target, metric_of
from paceline.storage.metrics import Row
from paceline.storage.reading import SavedRun
from paceline.trace.measure import Measures, measure
from paceline.trace.reading import Trace

if TYPE_CHECKING:
    from paceline.engine.result import Run
    from paceline.engine.spec import RunSpec
    from paceline.learning.task import Task


@dataclass(frozen=True)
class Record:
    """A run as its directory would hold it: what a page shows of it."""

    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    lines: bytes  # of the trace, compressed


@dataclass(frozen=True)
class Noise:
    """What the yardstick needs to know of a task: see ``theory.yardstick``.

    gradients  how many gradients have to be averaged until their noise is as small as the gradient that is left, where
               the synchronous rule ended
    unlike     whether workers have data of their own
    """

    gradients: float
    unlike: bool


@dataclass(frozen=True)
class Outcome:
    """The result of one run. That of the first seed has a ``record``; that of the synchronous rule too a ``noise``."""

    job: Job
    history: Sequence[Row]
    measures: Measures
    ended: str
    problem: str | None
    settings: Mapping[str, Any] | None = None
    record: Record | None = None
    directory: Path | None = None
    noise: Noise | None = None

    @property
    def loss(self) -> float:
        return or_infinite(self.history[-1].loss)

    @property
    def accuracy(self) -> float:
        return self.history[-1].accuracy

    def seconds_to(self, target: Target | None) -> float:
        """When an evaluation first reached the target, in seconds; infinity if none did."""
        if target is None:
            return math.inf
        return next((row.seconds for row in self.history if target.reached(row)), math.inf)

    def final(self, metric: str) -> float:
        """A metric of the last evaluation; NaN if it has none of that name."""
        return metric_of(self.history[-1], metric)

    def saved(self, name: str, target: Target | None) -> SavedRun:
        """The run as if it were read from its directory; only one with a ``record``."""
        assert self.record is not None
        lines = self.record.lines
        accuracy = target.value if target is not None and target.metric == "accuracy" else None
        trace = Trace(lambda: zlib.decompress(lines).decode().splitlines(), f"the trace of {name}")
        return SavedRun(Path(name), self.record.config, self.history, self.record.summary, accuracy, trace)

    def table(self) -> dict[str, Any]:
        rows = [{name: or_none(value) for name, value in row.numbers().items()} for row in self.history]
        run = {"lr": self.job.lr, "seed": self.job.seed, "ended": self.ended, "problem": self.problem}
        settings = {} if self.settings is None else {"settings": self.settings}
        return {**run, **settings, "history": rows, "measures": self.measures.table()}


def run_job(plan: Plan, job: Job) -> Outcome:
    """Train one job from start to end. The outcome depends only on the arguments."""
    from paceline.engine.train import Output, run_spec

    task, spec = plan.source.prepare(job)
    place = None if plan.directory is None else plan.source.place(job, plan.directory / plan.name(job))
    log = logging.getLogger("paceline")
    level = log.level
    log.setLevel(logging.ERROR)  # what was left out is in the run, and shown at its end
    try:
        result = run_spec(task, spec, Output(place, progress=False))
    finally:
        log.setLevel(level)
    return Outcome(
        job,
        tuple(result.history),
        measure(result.trace),
        result.ended,
        result.problem,
        result.settings,
        _record(spec, result) if job.seed == plan.seeds[0] else None,
        result.directory,
        _noise(task, spec, result) if job.strategy == plan.reference and plan.target is not None else None,
    )


def _noise(task: "Task", spec: "RunSpec", result: "Run") -> Noise | None:
    """The noise of gradients at the end of a run; None where it cannot be told."""
    from paceline.learning.noise_scale import noise_scale

    try:
        found = noise_scale(task, model=result.model).value / spec.sizes.mean
    except (ConfigError, RuntimeError):  # too few samples, or a loss that a second pass does not fit
        return None
    return Noise(found, not isinstance(spec.partition, Equal)) if math.isfinite(found) else None


def _record(spec: "RunSpec", result: "Run") -> Record:
    from paceline.storage.spec_file import spec_text

    config = json.loads(spec_text(spec, {"settings": result.settings}))
    text = "\n".join(line.rstrip("\n") for line in result.trace.lines())
    return Record(config, result.summary(), zlib.compress(text.encode()))


def outcomes_of(plan: Plan, jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """Check the plan, then yield the outcome of each job as it finishes. Only the processes import torch."""
    if processes == 1:
        with one_thread():
            plan.check()
            for job in jobs:
                yield run_job(plan, job)
        return
    with process_pool(processes, shared=_packed(plan)) as pool:
        with without_main():
            checked = pool.submit(_check_shared)
        checked.result()
        with without_main():
            futures = [pool.submit(_run_shared, job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()


def watched(outcomes: Iterator[Outcome], jobs: int, processes: int) -> Iterator[Outcome]:
    """The same outcomes, counted while they come: with a bar on a terminal or in a notebook, in a log by lines."""
    display, left = open_display(), TimeLeft()
    left.estimate(0.0)
    status = None
    try:
        for done, outcome in enumerate(outcomes, start=1):
            if done == 1 and isinstance(display, LogDisplay):
                print(f"{jobs} runs in {processes} process{'es' * (processes > 1)} ...", file=sys.stderr)
            status = Status("comparing", done / jobs, left.estimate(done / jobs), [f"{done} of {jobs} runs"])
            if display.due():
                display.show(status)
            yield outcome
    finally:
        display.close(status)


def _packed(plan: Plan) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps(plan)
    except Exception as error:  # an object's own ``__reduce__`` may raise anything
        why = " ".join(str(error).split())[:200]
        raise ConfigError(f"the task cannot be sent to other processes ({why}): give jobs=1") from error
    return packed


def _check_shared() -> None:
    shared_value(Plan).check()


def _run_shared(job: Job) -> Outcome:
    return run_job(shared_value(Plan), job)


def or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def or_infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf
