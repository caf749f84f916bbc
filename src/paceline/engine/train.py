"""Train a model on workers of unequal speed."""

import logging
import math
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from paceline.callbacks.base import Callback
from paceline.callbacks.progress import Progress
from paceline.callbacks.tensorboard import TensorBoard
from paceline.core.coordinator import Strategy
from paceline.core.errors import CannotWrite, ConfigError
from paceline.data.batches import Sampling, Shuffled
from paceline.data.partition import Equal, Partition, deal
from paceline.engine.arguments import check_arguments, strategy_for, whole
from paceline.engine.build import launch, warn_of_settings_without_effect
from paceline.engine.checkpoints import Checkpoints, changing_parts
from paceline.engine.evaluation import Evaluator
from paceline.engine.limits import Every, Stop
from paceline.engine.loop import Loop, NoLearner, seldom_collecting
from paceline.engine.result import Run
from paceline.engine.runner import Ended, Runner
from paceline.engine.signals import end_by
from paceline.fleets.base import Fleet
from paceline.fleets.replayed import Replayed, ReplayedWorkers
from paceline.fleets.simulated.fleet import SimulatedFleet, SimulatedWorkers
from paceline.learning.generators import Generators, own_generators
from paceline.learning.gradients.lazy import evaluation_of
from paceline.learning.optimizers import MakeOptimizer, MakeScheduler, Recipe
from paceline.learning.task import Task, device_of
from paceline.learning.threads import own_threads
from paceline.learning.workload import Workload, workload_of
from paceline.pruning.record import write_pruning
from paceline.pruning.shards import pruned_shards
from paceline.randomness import stream
from paceline.storage.run_directory import RunDirectory, place_of, plain_repr
from paceline.storage.saved_models import save_local
from paceline.strategies.checks import check_fits
from paceline.trace.reading import Trace
from paceline.trace.writing import TraceWriter

log = logging.getLogger("paceline")


def train(
    task: Task,
    *,
    strategy: Strategy | str,
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
    directory: Path | str | RunDirectory | None = None,
    checkpoint: Every | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    progress: bool | None = None,
) -> Run:
    """Train ``task`` under ``strategy`` on ``fleet``, and return what came of it.

    strategy     who waits for whom, and what is handed in; or its name, as in ``"lgc:quorum=5,blocks=4"``
    stop         when the run ends; not needed where the strategy itself ends after so many ``steps``
    optimizer    from parameters to any torch optimizer; it lives on the server and steps once an update. Where workers
                 train models of their own, each has one, which steps at each of its mini-batches
    scheduler    from that optimizer to any torch LR scheduler, stepped as often
    clip_norm    the largest norm of the gradient that it steps along
    batch_size   samples of one worker's mini-batch
    partition    how the samples are dealt out to the workers, and ``sampling`` how each goes through its own
    every        when the model is judged; by default often at first, then whenever the updates grew by 5 %
    seed         of every random choice: the same seed on the same machine gives the same bits
    directory    keep config, trace, metrics, final weights, and what is needed to go on there
    checkpoint   how often to keep what is needed to go on, besides at the end and when the run is interrupted
    resume       go on with the run in the directory; begin it if it did not come to a checkpoint
    tensorboard  write curves into the directory too
    progress     show a line on the terminal, or write one to stderr each minute where there is none; False for neither

    Ctrl-C ends the run, saves it, and raises ``KeyboardInterrupt``; with a directory SIGTERM does the same, and exits.
    On real workers this takes a second, whatever they are at; a pass or an evaluation in this process is finished
    first. A run that diverges ends with its last good weights, and says so in ``run.problem``.

    To ``resume`` a run give the same arguments again; only ``stop``, ``checkpoint``, ``tensorboard`` and ``progress``
    may differ.
    """
    check_arguments(
        task=task, scheduler=scheduler, clip_norm=clip_norm, stop=stop, every=every,
        partition=partition, sampling=sampling, directory=directory, checkpoint=checkpoint, resume=resume,
        tensorboard=tensorboard, progress=progress,
    )  # fmt: skip
    strategy, batch_size, seed = strategy_for(strategy, fleet), whole("batch_size", batch_size), whole("seed", seed)
    recipe = Recipe(optimizer, scheduler, None if clip_norm is None else float(clip_norm))
    stop = _earliest(stop, strategy)
    _check_together(strategy, fleet, batch_size)
    _refuse_without(directory, tensorboard=tensorboard, checkpoint=checkpoint, resume=resume)
    with own_generators(seed):  # data sets may draw random numbers when they are looked at
        if stop.target is not None and math.isnan(task.evaluator()(task.model)[1]):
            raise ConfigError(f"a target of {stop.target} can never be reached: the evaluation tells no accuracy")
        shards = deal(partition, task.training_samples(), fleet.workers, batch_size, stream(seed, "partition"))
    settings = settings_of(
        strategy=strategy, fleet=fleet, partition=partition, sampling=sampling,
        batch_size=batch_size, clip_norm=recipe.clip_norm, seed=seed, task=task,
    )  # fmt: skip
    config = {**settings, "stop": repr(stop), "every": repr(every)}
    with ExitStack() as stack:
        stack.enter_context(_surroundings(fleet, seed))
        workload = workload_of(task, shards, batch_size)
        batches = sampling.open(shards, batch_size, seed)
        pruned = pruned_shards(batches)
        crew, server = launch(strategy, fleet, workload, recipe, batches=batches, seed=seed)
        stack.callback(crew.close)
        changing = changing_parts(server, batches, crew, needed=checkpoint is not None or resume)
        opened = None if directory is None else place_of(directory).open(config, resume=resume)
        if opened is not None:
            stack.enter_context(opened)
        goes_on = opened is not None and opened.goes_on
        writer = TraceWriter(opened.trace if opened else None, crew.about, resumed=goes_on)
        stack.callback(writer.release)
        if isinstance(crew, SimulatedWorkers | ReplayedWorkers):
            crew.announce = writer.note
        loop = Loop(strategy, crew, server, writer, stop.seconds)
        line = stack.enter_context(Progress(type(strategy).__name__, stop, loop.coordinator.ledger, progress))
        callbacks: list[Callback] = [line] if opened is None else [opened.metrics, line]
        judge = Evaluator(replace(task, loss=workload.loss.whole), server, every, callbacks)
        checkpoints = None
        if opened is not None and changing:
            parts = {**changing, "loop": loop, "judge": judge, "random": Generators(device_of(server.model))}
            checkpoints = Checkpoints(opened, writer, parts, checkpoint)
            if goes_on:
                judge.history += checkpoints.resume()
        if opened is not None and tensorboard:
            after = judge.history[-1].updates if judge.history else None
            callbacks.append(stack.enter_context(TensorBoard(opened.path / "tensorboard", after)))
        whole_epoch = sum(len(shard) // batch_size * batch_size for shard in shards)
        ended = Runner(stop, loop, judge, whole_epoch, pruned).come(line, checkpoints)
        run = Run(
            model=server.model,
            loss=workload.trained_loss,
            history=judge.history,
            trace=writer.close(),
            mean_staleness=judge.staleness.mean,
            max_staleness=judge.staleness.maximum,
            ended=ended.why,
            problem=ended.problem,
            spoiled=server.non_finite,
            directory=opened.path if opened else None,
            evaluation=evaluation_of(server.contributions),
            local=(local := server.best_local()),
            costs=crew.costs if local is not None and isinstance(crew, SimulatedWorkers) else None,
            pruning=pruned.record if pruned else None,
        )
        if opened is not None:
            _keep(opened, run, workload)
    _raise_what_ended(ended, run, opened)
    return run


@contextmanager
def _surroundings(fleet: Fleet, seed: int) -> Iterator[None]:
    """Random numbers and threads of a run's own; those of the process are as they were when it ends."""
    own = fleet.fleet if isinstance(fleet, Replayed) else fleet
    threads = own_threads(own.threads) if isinstance(own, SimulatedFleet) else nullcontext()
    with seldom_collecting(), own_generators(seed), threads:
        yield


def _check_together(strategy: Strategy, fleet: Fleet, batch_size: int) -> None:
    check_fits(strategy, fleet.workers, batch_size)
    if not isinstance(fleet, Replayed):  # it was said when that run began
        warn_of_settings_without_effect(strategy, fleet)


def _refuse_without(directory: object, **needing: object) -> None:
    for name, wanted in needing.items():
        if wanted and directory is None:
            raise ConfigError(f"{name}={wanted} needs a directory")


def _keep(opened: RunDirectory, run: Run, workload: Workload) -> None:
    """Write what a run came to."""
    try:
        if run.pruning is not None:
            write_pruning(opened.path, run.pruning, workload.samples)
        if run.local is not None:
            save_local(opened.path, run.local, workload)
        opened.finish(run.model, run.summary(), run.loss)
    except CannotWrite as error:
        raise CannotWrite(f"{error}; {opened.how_to_go_on()}") from None


def _raise_what_ended(ended: Ended, run: Run, opened: RunDirectory | None) -> None:
    """A run that a signal or the user's own evaluation ended: say what is kept and how to go on, then raise it."""
    if ended.signal is None and ended.error is None:
        if ended.problem is not None and ended.why != "diverged":
            log.warning("%s", ended.problem)
        return
    what = signal.Signals(ended.signal).name if ended.signal else ended.problem
    kept = f"{opened.path} has its weights; {opened.how_to_go_on()}" if opened else "nothing was kept: give a directory"
    line = f"{what}: the run ended after {run.history[-1].updates:,} updates; {kept}"
    if ended.error is not None:
        ended.error.add_note(line)
        raise ended.error
    if ended.signal is not None:
        log.warning("%s", line)
        raise end_by(ended.signal)


def _earliest(stop: Stop | None, strategy: Strategy) -> Stop:
    """What was asked for, but no more updates than the strategy makes."""
    rounds: int | None = getattr(strategy, "rounds", None)
    if stop is None and rounds is None:
        raise ConfigError("a run needs an end: give stop=Stop(updates= | epochs= | seconds= | target=)")
    if stop is None or rounds is None:
        return stop or Stop(updates=rounds)
    return replace(stop, updates=rounds if stop.updates is None else min(stop.updates, rounds))


def settings_of(
    *, strategy: Strategy, fleet: Fleet, partition: Partition, sampling: Sampling,
    batch_size: int, clip_norm: float | None, seed: int, task: Task,
) -> dict[str, object]:  # fmt: skip
    """What the result of a run depends on, besides code: as it is kept with the run."""
    asked = {"strategy": strategy, "fleet": fleet, "partition": partition, "sampling": sampling}
    numbers = {"batch_size": batch_size, "clip_norm": clip_norm, "seed": seed}
    samples = len(task.training_samples())
    return {**{name: plain_repr(value) for name, value in asked.items()}, **numbers, "training_samples": samples}


def simulate(
    strategy: Strategy | str, fleet: SimulatedFleet, stop: Stop, *, seed: int = 0, trace: Path | str | None = None
) -> Trace:
    """Run a strategy without a model, where only time and order matter; return the trace."""
    if not isinstance(stop, Stop):
        check_arguments(stop=stop or 0)
    strategy, seed = strategy_for(strategy, fleet), whole("seed", seed)
    if not isinstance(fleet, SimulatedFleet):
        raise ConfigError(f"only a SimulatedFleet works without a model, not {type(fleet).__name__}")
    check_fits(strategy, fleet.workers, None)
    if stop.updates is None and stop.seconds is None:
        raise ConfigError(f"a simulation without a model ends by updates or seconds, not by {stop}")
    warn_of_settings_without_effect(strategy, fleet)
    crew = fleet.open(seed)
    writer = TraceWriter(Path(trace).resolve() if trace else None, crew.about)
    crew.announce = writer.note
    with seldom_collecting():
        for update in Loop(strategy, crew, NoLearner(), writer, stop.seconds):
            if update.version + 1 == stop.updates:
                break
    return writer.close()
