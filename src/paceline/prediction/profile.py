"""A short time of a fleet's real work, recorded: how fast each worker is, before anything is trained."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.core.errors import Diverged, TooFewWorkers
from paceline.data.partition import Equal, Partition
from paceline.engine.arguments import check_arguments
from paceline.engine.limits import Stop
from paceline.engine.loop import Loop
from paceline.engine.setup import set_up
from paceline.engine.signals import Interrupts
from paceline.engine.spec import RunSpec
from paceline.fleets.base import Announcing, Fleet
from paceline.learning.task import Task
from paceline.learning.workload import try_first_batches
from paceline.storage.run_directory import RunDirectory, place_of
from paceline.strategies.asynchronous import Asynchronous
from paceline.trace.reading import Trace
from paceline.trace.writing import TraceWriter


def without_training(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


@dataclass(frozen=True)
class Profiled:
    """What was recorded, and why it ended early, if it did."""

    trace: Trace
    interrupted: bool = False
    problem: str | None = None


def profile(
    task: Task,
    *,
    fleet: Fleet,
    seconds: float = 60.0,
    batch_size: int | Sequence[int] = 32,
    partition: Partition = Equal(),
    seed: int = 0,
    directory: Path | str | RunDirectory | None = None,
    watch: Callable[[float], None] | None = None,
) -> Profiled:
    """Let the workers compute gradients of ``task`` for so many ``seconds``, and record when each was handed in.

    Nobody waits for anybody (``Asynchronous``): each worker downloads the weights, computes the gradient of a
    mini-batch and hands it in, again and again. The server does all that it does in training, with a learning rate of
    0: the weights stay as they are, and nothing is trained. ``watch`` is called with the time of each arrival. Ctrl-C
    ends it early and keeps what was measured.
    """
    check_arguments(fleet=fleet, seconds=seconds, directory=directory)
    spec = RunSpec.of(
        task, strategy=Asynchronous(), fleet=fleet, stop=Stop(seconds=seconds), optimizer=without_training,
        batch_size=batch_size, partition=partition, seed=seed,
    )  # fmt: skip
    place = None if directory is None else place_of(directory)
    if place is not None:
        place.check_empty()
    try_first_batches(task, max(spec.sizes.each))
    with ExitStack() as stack:
        setup = stack.enter_context(set_up(task, spec))
        if place is not None:
            stack.enter_context(place.open(spec, extra={"profile": seconds}))
        writer = TraceWriter(place.trace if place else None, setup.workers.about)
        if isinstance(setup.workers, Announcing):
            setup.workers.announce = writer.note
        loop = Loop(spec.strategy, setup.workers, setup.server, writer, seconds, sizes=spec.sizes.unequal)
        interrupts = stack.enter_context(Interrupts(termination=place is not None))
        problem = _run(loop, interrupts, watch)
        return Profiled(writer.close(), interrupts.requested is not None, problem)


def _run(loop: Loop, interrupts: Interrupts, watch: Callable[[float], None] | None) -> str | None:
    loop.asked_to_end = lambda: interrupts.requested is not None
    try:
        for update in loop:
            if watch is not None:
                watch(update.at)
            if interrupts.requested is not None:
                break
    except (Diverged, TooFewWorkers) as error:
        return str(error)
    return None
