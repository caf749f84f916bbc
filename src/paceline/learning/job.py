"""What the workers of a run need to know."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from torch.nn.parameter import is_lazy

from paceline.core.errors import ConfigError
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


def job_of(task: Task, shards: Sequence[Indices], batch_size: int) -> Job:
    """A task's job, on a copy of its model."""
    if any(is_lazy(each) for each in [*task.model.parameters(), *task.model.buffers()]):
        raise ConfigError(
            "the model has layers whose shape is not known yet (such as LazyLinear), so that its weights cannot be "
            "sent: pass one mini-batch through it before training"
        )
    model = copy.deepcopy(task.model)
    model.train()
    samples = task.training_samples()
    loss = SampleLoss(task.loss, samples)
    return Job(ModelState(model), samples, loss, batch_size, task.unaugmented_samples(), shards)
