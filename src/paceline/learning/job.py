"""What the workers of a run need to know."""

import copy
from dataclasses import dataclass

from paceline.learning.data import Samples
from paceline.learning.loss import SampleLoss
from paceline.learning.model_state import ModelState
from paceline.learning.task import Task


@dataclass(frozen=True, slots=True)
class Job:
    """Gradients of ``loss`` at ``state``'s model (which the server moves), on mini-batches of ``samples``."""

    state: ModelState
    samples: Samples
    loss: SampleLoss
    batch_size: int


def job_of(task: Task, batch_size: int) -> Job:
    """A task's job, on a copy of its model."""
    model = copy.deepcopy(task.model)
    model.train()
    samples = task.training_samples()
    return Job(ModelState(model), samples, SampleLoss(task.loss, samples), batch_size)
