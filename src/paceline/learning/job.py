"""What the workers of a run need to know."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.learning.data import Samples
from paceline.learning.loss import SampleLoss
from paceline.learning.model_state import ModelState
from paceline.learning.task import Task
from paceline.sampling.partition import Indices


@dataclass(frozen=True, slots=True)
class Job:
    """Train ``state``'s model (which the server moves) to a small ``loss`` on mini-batches of ``samples``."""

    state: ModelState
    samples: Samples
    loss: SampleLoss
    batch_size: int
    unaugmented: Samples  # the same samples as they are, to label them
    shards: Sequence[Indices]  # whose they are


class Bill(NamedTuple):
    """What a piece of work takes: messages in bytes, mini-batches trained on, and as many only passed forward."""

    download: int
    mini_batches: int
    forwards: float
    upload: int


def job_of(task: Task, shards: Sequence[Indices], batch_size: int) -> Job:
    """A task's job, on a copy of its model."""
    model = copy.deepcopy(task.model)
    model.train()
    samples = task.training_samples()
    loss = SampleLoss(task.loss, samples)
    return Job(ModelState(model), samples, loss, batch_size, task.unaugmented_samples(), shards)
