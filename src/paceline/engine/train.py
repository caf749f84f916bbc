"""Train a model on workers of unequal speed."""

import logging
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.callbacks.base import Callback
from paceline.callbacks.files import MetricsLog
from paceline.callbacks.hooks import Hooks, check_callbacks
from paceline.callbacks.progress import Progress
from paceline.callbacks.tensorboard import TensorBoard
from paceline.callbacks.workers import WorkerWatch
from paceline.core.coordinator import Strategy
from paceline.core.errors import CannotWrite, ConfigError, PacelineError
from paceline.core.fields import as_path
from paceline.data.batches import Sampling, Shuffled
from paceline.data.partition import Equal, Partition
from paceline.engine.arguments import check_arguments, simulated_sizes, strategy_for, whole
from paceline.engine.build import warn_of_settings_without_effect
from paceline.engine.checkpoints import Checkpoints
from paceline.engine.info import run_info
from paceline.engine.limits import Every, Stop
from paceline.engine.loop import Loop, NoLearner, seldom_collecting
from paceline.engine.result import Run
from paceline.engine.runner import Ended, Evaluator, Runner, check_metrics
from paceline.engine.settings import settings_of
from paceline.engine.setup import Setup, set_up
from paceline.engine.signals import end_by
from paceline.engine.spec import RunSpec
from paceline.fleets.base import Announcing, Fleet, Placed
from paceline.fleets.replayed import Replayed, ReplayedWorkers
from paceline.fleets.simulated.fleet import SimulatedFleet, SimulatedWorkers
from paceline.learning.generators import Generators
from paceline.learning.gradients.lazy import evaluation_of
from paceline.learning.learner import Learner
from paceline.learning.optimizers import MakeOptimizer, MakeScheduler
from paceline.learning.task import Task, device_of
from paceline.learning.workload import Workload, try_first_batches
from paceline.pruning.record import write_pruning
from paceline.storage.description import describe
from paceline.storage.run_directory import RunDirectory, place_of
from paceline.storage.saved_models import save_local
from paceline.trace.reading import Trace
from paceline.trace.writing import TraceWriter

log = logging.getLogger("paceline")


@dataclass(frozen=True)
class Output:
    """What a run leaves besides its result, and what it shows; see ``train``. The result does not depend on it."""

    directory: Path | str | RunDirectory | None = None
    checkpoint: Every | None = None
    resume: bool = False
    tensorboard: bool = False
    progress: bool | None = None
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "callbacks", check_callbacks(self.callbacks))
        check_arguments(
            directory=self.directory, checkpoint=self.checkpoint, resume=self.resume, tensorboard=self.tensorboard,
            progress=self.progress,
        )  # fmt: skip
        for name in ("tensorboard", "checkpoint", "resume"):
            if (wanted := getattr(self, name)) and self.directory is None:
                raise ConfigError(f"{name}={wanted} needs a directory")


def train(
    task: Task,
    *,
    strategy: Strategy | str,
    fleet: Fleet,
    optimizer: MakeOptimizer,
    stop: Stop | None = None,
    batch_size: int | Sequence[int] | None = None,
    partition: Partition = Equal(),
    sampling: Sampling = Shuffled(),
    scheduler: MakeScheduler | None = None,
    clip_norm: float | None = None,
    every: Every | None = None,
    seed: int = 0,
    micro_batches: int = 1,
    compensate_delay: float = 0.0,
    directory: Path | str | RunDirectory | None = None,
    checkpoint: Every | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    progress: bool | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    r"""Train ``task`` under ``strategy`` on ``fleet``, and return what came of it.

    strategy     who waits for whom, and what is handed in; or its name, as in ``"lgc:quorum=5,blocks=4"``
    stop         when the run ends; not needed where the strategy itself ends after so many ``steps``
    optimizer    from parameters to any torch optimizer; it lives on the server and steps once per update. Where workers
                 train models of their own, each has one, which steps at each of its mini-batches
    scheduler    from that optimizer to any torch LR scheduler, stepped as often
    clip_norm    the largest norm of the gradient that it steps along
    batch_size   samples of one worker's mini-batch, or a list with a size for each worker; by default 32, or an equal
                 share of the total of ``UnequalBatches``
    partition    how the samples are dealt out to the workers, and ``sampling`` how each goes through its own
    every        when the model is evaluated; by default often at first, then whenever the updates grew by 5 %
    seed         of every random choice: the same seed on the same machine gives the same bits
    micro_batches  passes in which a mini-batch goes through the model, for less memory: their gradients add up to that
                 of the mini-batch. Layers that look at a whole batch, such as batch normalisation, see one at a time
    compensate_delay  $\lambda$ of DC-ASGD: adds $\lambda\, g \odot g \odot (w_t - w_{t-\tau})$ to a gradient $g$ of
                 weights that are $\tau$ updates old; for strategies that step on one gradient at a time
    directory    where to write the spec of the run, its trace, metrics, checkpoints and final weights
    checkpoint   how often to write a checkpoint, besides at the end and when the run is interrupted
    resume       continue the run in the directory from its checkpoint; start it if it has none
    tensorboard  write curves into the directory too
    progress     show a line with a bar on the terminal or in the notebook, or write one to stderr each minute where
                 there is neither; False for none of them
    callbacks    are told what happens while the run trains, and may end it: see ``Callback``

    Ctrl-C ends the run, saves it, and raises ``KeyboardInterrupt``; with a directory SIGTERM does the same, and exits.
    On real workers this takes a second, whatever they are at; a pass or an evaluation in this process is finished
    first. A run that diverges ends with its last good weights, and says so in ``run.problem``.

    To ``resume`` a run give the same arguments again; only ``stop``, ``checkpoint``, ``tensorboard``, ``progress`` and
    ``callbacks`` may differ.
    """
    spec = RunSpec.of(
        task, strategy=strategy, fleet=fleet, optimizer=optimizer, stop=stop, batch_size=batch_size,
        partition=partition, sampling=sampling, scheduler=scheduler, clip_norm=clip_norm, every=every, seed=seed,
        micro_batches=micro_batches, compensate_delay=compensate_delay,
    )  # fmt: skip
    return run_spec(task, spec, Output(directory, checkpoint, resume, tensorboard, progress, callbacks))


def run_spec(task: Task, spec: RunSpec, output: Output = Output()) -> Run:
    """Train ``task`` as ``spec`` says: what ``train`` does once its arguments are checked."""
    if not isinstance(spec.fleet, Replayed):  # it was said when that run began
        warn_of_settings_without_effect(spec.strategy, spec.fleet)
    begun = _Begun()
    try:
        return _run(task, spec, output, begun)
    except PacelineError:
        raise
    except Exception:  # of the user's model, loss or data
        if begun.trained:
            raise
        try:
            try_first_batches(task, -(-max(spec.sizes.each) // spec.micro_batches))
        except ConfigError:
            begun.discard()
            raise
        raise


@dataclass
class _Begun:
    """What a run has come to so far."""

    server: Learner | None = None
    opened: RunDirectory | None = None

    @property
    def trained(self) -> bool:
        return self.server is not None and self.server.updates > 0

    def discard(self) -> None:
        """Leave nothing of a run in which nothing was trained."""
        if self.opened is not None:
            self.opened.discard()


def _run(task: Task, spec: RunSpec, output: Output, begun: _Begun) -> Run:
    check_metrics(task, spec.stop, output.callbacks, spec.seed)
    with ExitStack() as stack:
        setup = stack.enter_context(set_up(task, spec))
        begun.server = setup.server
        settings = settings_of(task, spec, setup.server.made)
        stateful = setup.stateful(needed=output.checkpoint is not None or output.resume)
        opened = None
        if output.directory is not None:
            opened = place_of(output.directory).open(spec, resume=output.resume, extra={"settings": settings})
            begun.opened = stack.enter_context(opened)
        resumed = opened is not None and opened.resumed
        writer = TraceWriter(opened.trace if opened else None, setup.workers.about, resumed=resumed)
        stack.callback(writer.release)
        _let_announce(setup, writer)
        loop = Loop(spec.strategy, setup.workers, setup.server, writer, spec.stop.seconds, sizes=spec.sizes.unequal)
        hooks = Hooks(_callbacks(output, opened))
        stack.callback(hooks.close)
        if hooks.on_worker:
            loop.watch = WorkerWatch(hooks, loop.coordinator.ledger)
        if hooks.on_wait:
            loop.on_wait = hooks.wait
        own = task.with_function(setup.workload.loss.whole)
        evaluator = Evaluator(own, setup.server, spec.every, hooks, setup.workload.samples_a_pass, seed=spec.seed)
        checkpoints = None
        if opened is not None and stateful:
            stateful |= {"loop": loop, "judge": evaluator, "random": Generators(device_of(setup.server.model))}
            checkpoints = Checkpoints(opened, writer, stateful, output.checkpoint, hooks)
            if resumed:
                evaluator.history += checkpoints.resume()
        info = run_info(spec, setup, loop, evaluator.history, opened, settings=settings) if hooks.on_start else None
        ended = Runner(spec.stop, loop, evaluator, setup.epoch_samples, setup.pruned).run(info, checkpoints)
        told = {"settings": settings, "strategy": describe(spec.strategy)}
        run = replace(_result(setup, evaluator, writer.close(), ended, opened), **told)
        if opened is not None:
            _keep(opened, run, setup.workload)
        hooks.end(run)
    if ended.error is None and hooks.error is not None:  # in on_end, or when it was closed
        ended = replace(ended.with_problem(str(hooks.problem)), error=hooks.error)
    _raise_what_ended(ended, run, opened)
    return run


def _let_announce(setup: Setup, writer: TraceWriter) -> None:
    """What workers and their contributions tell besides events goes into the trace."""
    if isinstance(setup.workers, SimulatedWorkers | ReplayedWorkers):
        setup.workers.announce = writer.note
    elif isinstance(setup.workers, Placed):
        setup.workers.on_placed = writer.note
    if isinstance(contributions := setup.server.contributions, Announcing):
        contributions.announce = writer.note


def _callbacks(output: Output, opened: RunDirectory | None) -> Sequence[Callback]:
    """What is told of the run: first its own files, then the user's callbacks."""
    own = [] if opened is None else [MetricsLog(opened.metrics)]
    shown = output.progress is not False and not any(isinstance(each, Progress) for each in output.callbacks)
    more = [Progress()] if shown else []
    return [*own, *output.callbacks, *more, *([TensorBoard()] if output.tensorboard else [])]


def _result(setup: Setup, evaluator: Evaluator, trace: Trace, ended: Ended, opened: RunDirectory | None) -> Run:
    server, workers, pruned = setup.server, setup.workers, setup.pruned
    return Run(
        model=server.model,
        loss=setup.workload.trained_loss,
        history=evaluator.history,
        trace=trace,
        mean_staleness=evaluator.staleness.mean,
        max_staleness=evaluator.staleness.maximum,
        ended=ended.why,
        problem=ended.problem,
        non_finite=server.non_finite,
        directory=opened.path if opened else None,
        evaluation=evaluation_of(server.contributions),
        local=(local := server.best_local()),
        costs=workers.costs if local is not None and isinstance(workers, SimulatedWorkers) else None,
        pruning=pruned.record if pruned else None,
    )


def _keep(opened: RunDirectory, run: Run, workload: Workload) -> None:
    """Write what a run came to."""
    try:
        if run.pruning is not None:
            write_pruning(opened.path, run.pruning, workload.samples)
        if run.local is not None:
            save_local(opened.path, run.local, workload)
        opened.finish(run.model, run.summary(), run.loss)
    except CannotWrite as error:
        raise CannotWrite(f"{error}; {opened.how_to_resume()}") from None


def _raise_what_ended(ended: Ended, run: Run, opened: RunDirectory | None) -> None:
    """A run that a signal or the user's own evaluation ended: say what is kept and how to resume, then raise it."""
    if ended.signal is None and ended.error is None:
        if ended.problem is not None and ended.why != "diverged":
            log.warning("%s", ended.problem)
        return
    what = signal.Signals(ended.signal).name if ended.signal else ended.problem
    kept = (
        f"{opened.path} has its weights; {opened.how_to_resume()}" if opened else "nothing was kept: give a directory"
    )
    line = f"{what}: the run ended after {run.history[-1].updates:,} updates; {kept}"
    if ended.error is not None:
        ended.error.add_note(line)
        raise ended.error
    if ended.signal is not None:
        log.warning("%s", line)
        raise end_by(ended.signal)


def simulate(
    strategy: Strategy | str, fleet: SimulatedFleet, stop: Stop, *, batch_size: int | Sequence[int] | None = None,
    seed: int = 0, trace: Path | str | None = None,
) -> Trace:  # fmt: skip
    """Run a strategy without a model, where only time and order matter; return the trace.

    ``batch_size`` is needed for ``PerSample`` delays, and where workers have sizes of their own.
    """
    if not isinstance(stop, Stop):
        check_arguments(stop=stop or 0)
    strategy, seed = strategy_for(strategy, fleet, batch_size), whole("seed", seed)
    if not isinstance(fleet, SimulatedFleet):
        raise ConfigError(f"only a SimulatedFleet works without a model, not {type(fleet).__name__}")
    sizes = simulated_sizes(strategy, fleet.workers, batch_size)
    if stop.updates is None and stop.seconds is None:
        raise ConfigError(f"a simulation without a model ends by updates or seconds, not by {stop}")
    warn_of_settings_without_effect(strategy, fleet)
    workers = fleet.open(seed, sizes=sizes)
    writer = TraceWriter(as_path("trace", trace).resolve() if trace else None, workers.about)
    workers.announce = writer.note
    unequal = None if sizes is None else sizes.unequal
    try:
        with seldom_collecting():
            for update in Loop(strategy, workers, NoLearner(), writer, stop.seconds, sizes=unequal):
                if update.version + 1 == stop.updates:
                    break
        return writer.close()
    finally:
        writer.release()
