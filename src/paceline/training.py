"""Train a model on workers of unequal speed."""

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError, Diverged
from paceline.fleets.fleet import Fleet
from paceline.fleets.simulated import SimulatedCrew, SimulatedFleet
from paceline.hiring import hire
from paceline.interrupts import Interrupts
from paceline.judge import Judge, Listener
from paceline.learning.job import job_of
from paceline.learning.model_hands import ModelHands
from paceline.learning.server import MakeOptimizer, MakeScheduler, Recipe
from paceline.learning.task import Task
from paceline.loop import Loop, NoHands, seldom_collecting
from paceline.progress import Progress
from paceline.randomness import stream
from paceline.run import Every, Run, Stop
from paceline.run_directory import RunDirectory
from paceline.sampling.batches import Sampling, Shuffled
from paceline.sampling.partition import Equal, Partition, deal
from paceline.saved_models import save_local
from paceline.strategies.checks import check_fits
from paceline.tensorboard import TensorBoard
from paceline.trace import Trace, TraceWriter


def train(
    task: Task,
    *,
    strategy: Strategy,
    fleet: Fleet,
    optimizer: MakeOptimizer,
    stop: Stop | None = None,
    batch_size: int = 32,
    partition: Partition = Equal(),
    sampling: Sampling = Shuffled(),
    scheduler: MakeScheduler | None = None,
    clip_norm: float | None = None,
    every: Every | None = None,
    seed: int = 0,
    directory: Path | str | None = None,
    tensorboard: bool = False,
    progress: bool | None = None,
) -> Run:
    """Train ``task`` under ``strategy`` on ``fleet``, and return what came of it.

    strategy     who waits for whom, and what is handed in
    stop         when the run ends; not needed where the strategy itself ends after so many ``steps``
    optimizer    from parameters to any torch optimizer; it lives on the server and steps once an update. Where workers
                 train models of their own, each has one, which steps at each of its mini-batches
    scheduler    from that optimizer to any torch LR scheduler, stepped as often
    clip_norm    the largest norm of the gradient that it steps along
    batch_size   samples of one worker's mini-batch
    partition    how the samples are dealt out to the workers, and ``sampling`` how each goes through its own
    every        when the model is judged; by default often at first, then whenever the updates grew by 5 %
    seed         of every random choice: the same seed on the same machine gives the same bits
    directory    keep config, trace, metrics and final weights there
    tensorboard  write curves into the directory too
    progress     show a line on the terminal; by default where there is one

    Ctrl-C ends the run after the event at hand, saves it, and raises ``KeyboardInterrupt``. A run that diverges ends
    with its last good weights, and says so in ``run.problem``.
    """
    recipe = Recipe(optimizer, scheduler, clip_norm)
    stop = _earliest(stop, strategy)
    check_fits(strategy, fleet.workers, batch_size)
    if tensorboard and directory is None:
        raise ConfigError("tensorboard=True needs a directory to write to")
    if stop.target is not None and math.isnan(task.judge()(task.model)[1]):
        raise ConfigError(f"a target of {stop.target} can never be reached: the evaluation tells no accuracy")
    shards = deal(partition, task.training_samples(), fleet.workers, batch_size, stream(seed, "partition"))
    asked = {"strategy": strategy, "fleet": fleet, "partition": partition, "sampling": sampling, "stop": stop}
    config: dict[str, object] = {name: repr(value) for name, value in {**asked, "every": every}.items()}
    config |= {"batch_size": batch_size, "clip_norm": clip_norm, "seed": seed}
    with ExitStack() as stack:
        stack.enter_context(seldom_collecting())
        stack.enter_context(torch.random.fork_rng())
        torch.manual_seed(seed)
        job = job_of(task, shards, batch_size)
        batches = sampling.open(shards, batch_size, seed)
        crew, server = hire(strategy, fleet, job, recipe, batches=batches, seed=seed)
        stack.callback(crew.close)
        opened = stack.enter_context(RunDirectory(Path(directory), config)) if directory is not None else None
        writer = TraceWriter(opened.trace if opened else None, crew.about)
        if isinstance(crew, SimulatedCrew):
            crew.announce = writer.billed
        loop = Loop(strategy, crew, server, writer, stop.seconds)
        line = stack.enter_context(Progress(type(strategy).__name__, stop, loop.coordinator.ledger, progress))
        listeners: list[Listener] = [line] if opened is None else [opened, line]
        if opened is not None and tensorboard:
            listeners.append(stack.enter_context(TensorBoard(opened.path / "tensorboard")))
        judge = Judge(task, server, every, listeners)
        ended = _until(stop, loop, judge, line, epoch_samples=sum(len(s) // batch_size * batch_size for s in shards))
        run = Run(
            model=server.model,
            history=judge.history,
            trace=writer.close(),
            mean_staleness=judge.staleness.mean,
            max_staleness=judge.staleness.maximum,
            ended=ended.why,
            problem=ended.problem,
            spoiled=server.spoiled,
            directory=opened.path if opened else None,
            local=server.best_local() if isinstance(server, ModelHands) else None,
            costs=crew.costs if isinstance(server, ModelHands) and isinstance(crew, SimulatedCrew) else None,
        )
        if opened is not None:
            if run.local is not None:
                save_local(opened.path, run.local, job)
            opened.finish(run.model, run.summary())
    if run.ended == "interrupted":
        raise KeyboardInterrupt
    return run


def _earliest(stop: Stop | None, strategy: Strategy) -> Stop:
    """What was asked for, but no more updates than the strategy makes."""
    rounds: int | None = getattr(strategy, "rounds", None)
    if stop is None and rounds is None:
        raise ConfigError("a run needs an end: give stop=Stop(updates= | epochs= | seconds= | target=)")
    if stop is None or rounds is None:
        return stop or Stop(updates=rounds)
    return replace(stop, updates=rounds if stop.updates is None else min(stop.updates, rounds))


@dataclass(frozen=True)
class _Ended:
    why: str
    problem: str | None = None


def _until(stop: Stop, loop: Loop, judge: Judge, line: Progress, epoch_samples: int) -> _Ended:
    """Run the loop to its end, judging the model on the way and at both ends."""
    server = judge.server
    most_samples = math.inf if stop.epochs is None else stop.epochs * epoch_samples
    ended, seconds = _Ended("no workers"), 0.0
    judge.look(seconds)
    with Interrupts() as interrupts:
        try:
            for update in loop:
                seconds = update.at
                line.look(server.updates, seconds)
                row = judge.count(update)
                if row is not None and stop.target is not None and row.accuracy >= stop.target:
                    ended = _Ended("target")
                elif server.updates == stop.updates:
                    ended = _Ended("updates")
                elif server.samples >= most_samples:
                    ended = _Ended("epochs")
                elif interrupts.requested:
                    ended = _Ended("interrupted")
                else:
                    continue
                break
            else:
                if loop.out_of_time:
                    ended, seconds = _Ended("seconds"), stop.seconds or seconds
        except Diverged as error:
            ended, seconds = _Ended("diverged", str(error)), loop.coordinator.ledger.now
        if judge.history[-1].updates != server.updates:
            judge.look(seconds)
    return ended


def simulate(
    strategy: Strategy, fleet: SimulatedFleet, stop: Stop, *, seed: int = 0, trace: Path | str | None = None
) -> Trace:
    """Run a strategy without a model, where only time and order matter; return the trace."""
    check_fits(strategy, fleet.workers, None)
    if stop.updates is None and stop.seconds is None:
        raise ConfigError(f"a simulation without a model ends by updates or seconds, not by {stop}")
    crew = fleet.open(seed)
    writer = TraceWriter(Path(trace) if trace else None, crew.about)
    crew.announce = writer.billed
    with seldom_collecting():
        for update in Loop(strategy, crew, NoHands(), writer, stop.seconds):
            if update.version + 1 == stop.updates:
                break
    return writer.close()
