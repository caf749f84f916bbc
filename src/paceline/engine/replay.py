"""A recorded run once more: its events drive the same rules, and everything is computed here, in one process.

The trace says who arrived when and with how much. Decisions are made anew by the strategy, mini-batches drawn anew by
the sampler, gradients computed anew. So a replay shows that the result follows from the recorded order and nothing
else: the weights must be the same, bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from paceline.callbacks.base import Callback
from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError, IllegalDecision, ImpossibleEvent
from paceline.core.fields import as_path
from paceline.core.messages import Step
from paceline.data.batches import Sampling, Shuffled
from paceline.data.partition import Equal, Partition
from paceline.engine.limits import AtUpdates, Every, Stop
from paceline.engine.result import Run
from paceline.engine.spec import RunSpec
from paceline.engine.train import Output, run_spec
from paceline.fleets.base import Fleet
from paceline.fleets.replayed import Replayed
from paceline.learning.optimizers import MakeOptimizer, MakeScheduler
from paceline.learning.task import Task
from paceline.storage.reading import SavedRun, read_run
from paceline.storage.saved_models import read_tensors
from paceline.storage.spec_file import spec_difference
from paceline.trace.reading import Trace


@dataclass(frozen=True)
class Replay:
    """What came of a replay, and where it departs from the recorded run, if it does."""

    run: Run
    departure: str | None  # the first line of the trace that is another one, in words
    differences: Mapping[str, float]  # weights and buffers that are not the same, and by how much at most
    compared: bool  # did both runs come to the same end, and are there weights to compare with?

    @property
    def same(self) -> bool:
        return self.departure is None and not self.differences


def replay(
    directory: Path | str,
    task: Task,
    *,
    strategy: Strategy | str,
    fleet: Fleet,
    optimizer: MakeOptimizer,
    batch_size: int | Sequence[int] | None = None,
    partition: Partition = Equal(),
    sampling: Sampling = Shuffled(),
    scheduler: MakeScheduler | None = None,
    clip_norm: float | None = None,
    seed: int = 0,
    micro_batches: int = 1,
    compensate_delay: float = 0.0,
    callbacks: Sequence[Callback] = (),
) -> Replay:
    """Make the run in ``directory`` again from its trace; the other arguments are those it was trained with.

    Nothing is written. ``callbacks`` are told of the same updates and workers at the same times; one that ends the
    replay early leaves nothing to compare. The same bits can be expected on the same machine, of a run on processes or
    of a simulated one.
    """
    spec = RunSpec.of(  # the recorded run has its own end
        task, strategy=strategy, fleet=fleet, optimizer=optimizer, stop=Stop(updates=1),
        batch_size=batch_size, partition=partition, sampling=sampling, scheduler=scheduler, clip_norm=clip_norm,
        seed=seed, micro_batches=micro_batches, compensate_delay=compensate_delay,
    )  # fmt: skip
    return replay_spec(read_run(as_path("directory", directory)), task, spec, callbacks)


def replay_spec(saved: SavedRun, task: Task, spec: RunSpec, callbacks: Sequence[Callback] = ()) -> Replay:
    """Make a recorded run again from its trace: what ``replay`` does once its arguments are checked."""
    if found := spec_difference(saved.config, spec, but=("stop", "every")):
        raise ConfigError(f"cannot replay {saved.path}: the run was begun with {found}")
    updates = _updates(saved)
    # a scheduler may depend on the evaluations
    every = AtUpdates(chosen=tuple(row.updates for row in saved.rows)) if spec.scheduler else Every(updates=updates)
    again = replace(spec, fleet=Replayed(spec.fleet, saved.trace), stop=Stop(updates=updates), every=every)
    try:
        run = run_spec(task, again, Output(progress=False, callbacks=callbacks))
    except (ImpossibleEvent, IllegalDecision) as error:
        raise ConfigError(f"cannot replay {saved.path}: it goes another way than its trace ({error})") from None
    if run.history[-1].updates < updates:
        return Replay(run, _departure(saved.trace, run.trace), {}, compared=False)
    return Replay(run, _departure(saved.trace, run.trace), *_compared(saved, run.model.state_dict()))


def _updates(saved: SavedRun) -> int:
    """How many updates the recorded run made."""
    ended = saved.summary
    made = ended.get("updates") if ended is not None else sum(isinstance(fact, Step) for fact in saved.trace)
    if not isinstance(made, int) or made < 1:
        raise ConfigError(f"{saved.path} has no update to replay")
    return made


def _departure(recorded: Trace, replayed: Trace) -> str | None:
    """The first line in which two traces differ. What was recorded after the last update is not compared."""
    for number, (one, other) in enumerate(zip_longest(recorded.lines(), replayed.lines(), fillvalue=""), start=1):
        if one.rstrip("\n") != other.rstrip("\n"):
            return (
                None
                if not other
                else f"line {number} of the trace is {one.rstrip()[:60]}, and now {other.rstrip()[:60]}"
            )
    return None


def _compared(saved: SavedRun, now: Mapping[str, Tensor]) -> tuple[dict[str, float], bool]:
    file = saved.path / "model.safetensors"
    if saved.summary is None or not file.is_file():
        return {}, False
    recorded = read_tensors(file)
    if recorded.keys() != now.keys():
        raise ConfigError(f"{file} is of another model: {', '.join(sorted(recorded.keys() ^ now.keys()))} differ")
    return {
        name: _distance(value, now[name].cpu()) for name, value in recorded.items() if not _same(value, now[name])
    }, True


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other.cpu())


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max()) if one.shape == other.shape else float("inf")
