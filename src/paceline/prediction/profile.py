"""A short time of a fleet's real work, recorded: how fast each worker is, before anything is trained."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.core.errors import Diverged, TooFewWorkers
from paceline.data.batches import Shuffled
from paceline.data.partition import Equal, Partition, deal
from paceline.engine.arguments import check_arguments, whole
from paceline.engine.build import launch
from paceline.engine.loop import Loop, seldom_collecting
from paceline.engine.signals import Interrupts
from paceline.engine.train import settings_of
from paceline.fleets.base import Announcing, Fleet
from paceline.learning.generators import own_generators
from paceline.learning.optimizers import Recipe
from paceline.learning.task import Task
from paceline.learning.workload import workload_of
from paceline.randomness import stream
from paceline.storage.run_directory import RunDirectory, place_of
from paceline.strategies.asynchronous import Asynchronous
from paceline.trace.reading import Trace
from paceline.trace.writing import TraceWriter

UNMOVED = Recipe(lambda parameters: torch.optim.SGD(parameters, lr=0.0), None, None)


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
    batch_size: int = 32,
    partition: Partition = Equal(),
    seed: int = 0,
    directory: Path | str | RunDirectory | None = None,
    watch: Callable[[float], None] | None = None,
) -> Profiled:
    """Let the workers compute gradients of ``task`` for so many ``seconds``, and record when each was handed in.

    Nobody waits for anybody (``Asynchronous``): each worker downloads the weights, computes the gradient of a
    mini-batch and hands it in, again and again. The server does all that it does in training, with a step of 0: the
    weights stay as they are, and nothing is trained. ``watch`` is told the time at each arrival. Ctrl-C ends it early
    and keeps what was measured.
    """
    check_arguments(task=task, fleet=fleet, seconds=seconds, partition=partition, directory=directory)
    batch_size, seed = whole("batch_size", batch_size), whole("seed", seed)
    rule = Asynchronous()
    with own_generators(seed):
        shards = deal(partition, task.training_samples(), fleet.workers, batch_size, stream(seed, "partition"))
    settings = settings_of(
        strategy=rule, fleet=fleet, partition=partition, sampling=Shuffled(),
        batch_size=batch_size, clip_norm=None, seed=seed, task=task,
    )  # fmt: skip
    place = None if directory is None else place_of(directory)
    if place is not None:
        place.check_empty()
    with ExitStack() as stack:
        stack.enter_context(seldom_collecting())
        stack.enter_context(own_generators(seed))
        batches = Shuffled().open(shards, batch_size, seed)
        crew, server = launch(rule, fleet, workload_of(task, shards, batch_size), UNMOVED, batches=batches, seed=seed)
        stack.callback(crew.close)
        if place is not None:
            stack.enter_context(place.open({**settings, "profile": seconds}, resume=False))
        writer = TraceWriter(place.trace if place else None, crew.about)
        if isinstance(crew, Announcing):
            crew.announce = writer.note
        loop = Loop(rule, crew, server, writer, seconds)
        interrupts = stack.enter_context(Interrupts(termination=place is not None))
        problem = _go(loop, interrupts, watch)
        return Profiled(writer.close(), interrupts.requested is not None, problem)


def _go(loop: Loop, interrupts: Interrupts, watch: Callable[[float], None] | None) -> str | None:
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
