"""What the workers of a run need to know."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.data.samples import Samples, to_device
from paceline.learning.copies import Search, copied, copies, trained_parameters, warn_of_evaluation
from paceline.learning.generators import own_generators
from paceline.learning.loss import Loss, Objective, SampleLoss
from paceline.learning.model_state import ModelState
from paceline.learning.optimizers import Recipe
from paceline.learning.task import Task, device_of

if TYPE_CHECKING:
    from paceline.learning.models.server import Aggregation
    from paceline.learning.models.training import LocalTrainer

log = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True)
class Workload:
    """Train ``state``'s model (which the server moves) to a small ``loss`` on mini-batches of ``samples``.

    ``kind`` is what workers hand in first, and so decides what they do: see ``paceline.core.messages.Work``. Those that
    hand in models have a ``recipe`` to train by, a trainer each, and an ``aggregation`` that combines their models.
    """

    state: ModelState
    samples: Samples
    loss: Objective
    batch_size: int
    unaugmented: Samples  # the same samples as they are, to label them
    shards: Sequence[Indices]  # whose they are
    together: bool = False  # does the loss belong to the model: by parameters of its own, or by referring to it?
    kind: str = "gradient"
    recipe: Recipe | None = None
    trainers: Sequence["LocalTrainer"] = ()
    aggregation: "Aggregation | None" = None

    @property
    def hands_in_models(self) -> bool:
        """Do workers hand in models of their own, or gradients?"""
        return self.kind != "gradient"

    @property
    def trained_loss(self) -> nn.Module | None:
        """The loss, if it has parameters of its own."""
        return self.loss.whole if self.state.trained is not self.state.model else None  # type: ignore[return-value]

    def for_a_worker(self) -> tuple[nn.Module, Objective]:
        """A copy of the model for one worker, and of the loss if it belongs to it."""
        if not self.together:
            return copied(self.state.model), self.loss
        shared = {id(each): each for each in Search(self.state.model, "loss", self.loss.whole).data}
        model, _, loss = copied((self.state.model, self.loss.whole, self.loss), shared)
        return model, loss


def workload_of(task: Task, shards: Sequence[Indices], batch_size: int) -> Workload:
    """A task's workload, on a copy of its model, and of its loss where that belongs to it."""
    _refuse(task.model)
    model, loss = copies(task.model, task.loss)
    if task.evaluate is not None:
        warn_of_evaluation(task.model, task.evaluate)
    if not model.training:
        log.warning(
            "the model is in eval mode as a whole, and is trained in training mode; single modules are left in it"
        )
        model.train()
    samples = task.training_samples()
    plain = task.unaugmented_samples()
    _warn_of_buffers(model, loss, samples, batch_size)
    together = loss is not task.loss
    return Workload(state_of(model, loss), samples, SampleLoss(loss, samples), batch_size, plain, shards, together)


def state_of(model: nn.Module, loss: Loss) -> ModelState:
    """What is trained: the model, and a loss that has parameters of its own."""
    return ModelState(model, loss if isinstance(loss, nn.Module) and trained_parameters(model, loss) else None)


def _warn_of_buffers(model: nn.Module, loss: Loss, samples: Samples, batch_size: int) -> None:
    """Say that a loss without parameters changes buffers of its own. Shown by trying it on copies, on one mini-batch.

    Constants that never change, such as class weights, are buffers too: so they have to be tried.
    """
    if not isinstance(loss, nn.Module) or trained_parameters(model, loss):
        return
    of_model = {id(each) for each in model.buffers()}
    names = [name for name, each in loss.named_buffers() if id(each) not in of_model]
    if not names or type(loss).__module__ == "torch.nn.modules.loss":
        return
    try:
        with own_generators(0), torch.no_grad():
            tried_model, tried_loss = copied((model, loss))
            indices = np.arange(min(batch_size, len(samples)))
            inputs, targets = to_device(samples.fetch(indices), device_of(model))
            tried_loss(tried_model(inputs), targets)
    except Exception:  # whatever a model raises: the run will raise it too, and is where it belongs
        return
    changed = [name for name in names if not torch.equal(loss.get_buffer(name), tried_loss.get_buffer(name))]
    if changed:
        log.warning(
            "the loss changes its buffers (%s) in training, which are neither exchanged between workers nor saved: let "
            "the model keep them, or give the loss a parameter to be trained, with which its buffers are kept too",
            ", ".join(changed[:3]),
        )


def _refuse(model: nn.Module) -> None:
    """What cannot be trained, and why."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ConfigError(
            "the model is a torch.jit.ScriptModule, which cannot be sent to workers, and is deprecated: "
            "give the module that it was made from, or torch.compile what its forward calls"
        )
    if any(is_lazy(each) for each in [*model.parameters(), *model.buffers()]):
        raise ConfigError(
            "the model has layers whose shape is not known yet (such as LazyLinear), so that its weights cannot be "
            "sent: pass one mini-batch through it before training"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "nothing would be trained: no parameter of the model requires a gradient; call requires_grad_() on those "
            "that are to be trained"
        )
    kind = device_of(model).type
    if torch.is_autocast_enabled(kind):
        raise ConfigError(
            "torch.autocast is on around train(): it would keep copies of the weights that no update reaches; use it "
            "inside the model's forward"
        )
