"""What the workers of a run need to know."""

import logging
import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.data.samples import Samples, samples, to_device
from paceline.data.sizes import BatchSizes
from paceline.learning.copies import (
    Function,
    Search,
    copied,
    copies,
    refusal,
    stand_in,
    trained_parameters,
    warn_of_evaluation,
)
from paceline.learning.generators import own_generators
from paceline.learning.loss import Objective, Parallel, SampleLoss
from paceline.learning.model_state import ModelState
from paceline.learning.optimizers import Recipe
from paceline.learning.task import OutputMetrics, Task, device_of, eval_mode
from paceline.learning.threads import uncompiled

if TYPE_CHECKING:
    from paceline.learning.models.server import Aggregation
    from paceline.learning.models.training import LocalTrainer

PACKAGE = Path(__file__).parents[1]
TRIED = 32  # samples

log = logging.getLogger("paceline")


class Original:
    """The parameters of the task's own model: the loss of a run, which trains a copy, must not depend on them.

    Known in this process alone. Elsewhere it is None, for what is sent there refers to no model of the user's.
    """

    def __init__(self, model: nn.Module, trained: nn.Module, kind: str) -> None:
        own = {id(parameter) for parameter in trained.parameters()}
        self._names = {id(each): name for name, each in model.named_parameters() if id(each) not in own}
        self._kept = list(model.parameters())  # so that no other gets the place of one in memory
        self._kind = kind

    def refuse(self, loss: Tensor) -> None:
        """Say so if a loss depends on one of them: however it came to that."""
        nodes, seen = [loss.grad_fn], set[Any]()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            name = self._names.get(id(getattr(node, "variable", None)))  # of a node that adds a gradient up
            if name is not None:
                raise refusal(self._kind, f"depends on {name!r} of the task's own model")
            nodes += [before for before, _ in node.next_functions]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Original":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


@dataclass(frozen=True, slots=True)
class Workload:
    """Train ``state``'s model (which the server moves) to a small ``loss`` on mini-batches of ``samples``.

    ``kind`` is what workers hand in first, and so decides what they do: see ``paceline.core.messages.Work``. Those that
    hand in models have a ``recipe`` to train by, a trainer each, and an ``aggregation`` that combines their models.
    """

    state: ModelState
    samples: Samples
    loss: Objective
    batch_size: int  # the most samples that a mini-batch can have
    unaugmented: Samples  # the same samples as they are, to label them
    shards: Sequence[Indices]  # whose they are
    together: bool = False  # does the loss belong to the model: by parameters of its own, or by referring to it?
    kind: str = "gradient"
    recipe: Recipe | None = None
    trainers: Sequence["LocalTrainer"] = ()
    aggregation: "Aggregation | None" = None
    sizes: BatchSizes | None = None  # of each worker's mini-batches; by default all have ``batch_size``
    micro_batches: int = 1  # passes in which a mini-batch goes through the model
    logged: Sequence[str] = ()  # the names of what a step logs
    state_with_workers: bool = False  # does the optimizers' state stay with workers that train models?
    levels: int = 8  # how many contributions of one worker can be unsettled at once, where workers share memory
    parallel: Parallel | None = None  # sets the model up on the ranks of a worker

    @property
    def hands_in_models(self) -> bool:
        """Do workers hand in models of their own, or gradients?"""
        return self.kind != "gradient"

    @property
    def samples_a_pass(self) -> int:
        """The most samples that go through the model at once when a run begins."""
        return -(-(self.batch_size if self.sizes is None else max(self.sizes.each)) // self.micro_batches)

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


def workload_of(
    task: Task, shards: Sequence[Indices], batch_size: int, sizes: BatchSizes | None = None, micro_batches: int = 1
) -> Workload:
    """A task's workload, on a copy of its model, and of its loss where that belongs to it."""
    _refuse(task.model)
    model, function = copies(task.model, task.function, "loss" if task.step is None else "step")
    if task.evaluate is not None:
        warn_of_evaluation(task.model, task.evaluate)
    if not model.training:
        log.warning(
            "the model is in eval mode as a whole, and is trained in training mode; single modules are left in it"
        )
        model.train()
    samples = task.training_samples()
    plain = task.unaugmented_samples()
    objective = task.with_function(function).objective(samples)
    original = Original(task.model, model, "loss" if task.step is None else "step")
    if isinstance(objective, SampleLoss):
        objective.original = original
    _warn_of_buffers(model, objective, samples, batch_size)
    workload = Workload(
        state_of(model, function), samples, objective, batch_size, plain, shards,
        together=function is not task.function, sizes=sizes, micro_batches=micro_batches, parallel=task.parallel,
    )  # fmt: skip
    return workload if task.step is None else replace(workload, logged=_try_step(workload, original))


def state_of(model: nn.Module, loss: Function) -> ModelState:
    """What is trained: the model, and a loss that has parameters of its own."""
    return ModelState(model, loss if isinstance(loss, nn.Module) and trained_parameters(model, loss) else None)


def _try_step(workload: Workload, original: Original) -> tuple[str, ...]:
    """Call the step on the first samples as a worker would: whatever cannot be trained is said before a run begins.

    Returns the names of what it logs. The model's buffers and all random numbers stay as they are.
    """
    state, samples = workload.state, workload.samples
    indices = np.arange(min(workload.samples_a_pass, len(samples)))
    where = f"on the first {len(indices)} training samples"
    before = state.lend_buffers()
    try:
        with own_generators(0):
            batch = to_device(samples.fetch(indices), device_of(state.model))
            found = workload.loss.losses(state.model, batch, len(indices))
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's code raises
        line = " ".join(str(error).split())[:200]
        raise ConfigError(f"step or the data set raised {type(error).__name__} {where}: {line}") from error
    finally:
        state.take_buffers_back(before)
    loss = found.mean()
    if not math.isfinite(float(loss.detach())):
        raise ConfigError(
            f"step returned a loss of {float(loss.detach()):g} {where}, before any update: check the data, the initial "
            "weights, and divisions by what may be 0"
        )
    if not loss.requires_grad:
        raise ConfigError(
            "step returned a loss that depends on no trained parameter (requires_grad is False): compute it of the "
            "model that step is handed, without torch.no_grad() or detach()"
        )
    original.refuse(loss)
    return tuple(found.logged_sums())


def _warn_of_buffers(model: nn.Module, objective: Objective, samples: Samples, batch_size: int) -> None:
    """Say that a loss without parameters changes buffers of its own. Shown by trying it on copies, on one mini-batch.

    Constants that never change, such as class weights, are buffers too: so they have to be tried.
    """
    loss = objective.whole
    if not isinstance(loss, nn.Module) or trained_parameters(model, loss):
        return
    of_model = {id(each) for each in model.buffers()}
    names = [name for name, each in loss.named_buffers() if id(each) not in of_model]
    if not names or type(loss).__module__ == "torch.nn.modules.loss":
        return
    try:
        with own_generators(0), torch.no_grad():
            tried_model, tried_loss, tried = copied((model, loss, objective))
            indices = np.arange(min(batch_size, len(samples)))
            tried.losses(tried_model, to_device(samples.fetch(indices), device_of(model)), len(indices))
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


# What does not fit, shown by the first batches.


def try_first_batches(task: Task, most: int = TRIED) -> None:
    """Pass the first training samples, and the first of the evaluation, through a copy of the model.

    For when a run has raised something before its first update: ``ConfigError`` says in one line what does not fit.
    Weights, buffers and random numbers stay as they are. An evaluation of the user's own is left out: it may take long.
    """
    _refuse(task.model)
    try:
        model = copied(task.model)
    except ConfigError:  # the run will raise it too, and is where it belongs
        return
    task = task.with_function(stand_in(task.function))
    _try_training(task, model, most)
    if task.evaluate is None:
        _try_evaluation(task, model, most)


def _try_training(task: Task, model: nn.Module, most: int) -> None:
    data = task.training_samples()
    if not model.training:
        model.train()
    if count := min(most, len(data)):
        with _said(task, f"the first {count} training samples"), torch.enable_grad():
            batch = to_device(data.fetch(np.arange(count)), device_of(model))
            found = task.objective(data).losses(model, batch, count)
        if not found.mean().requires_grad:
            raise ConfigError(
                "the loss depends on no trained parameter (requires_grad is False): compute it of the model's outputs, "
                "without torch.no_grad() or detach()"
            )


def _try_evaluation(task: Task, model: nn.Module, most: int) -> None:
    data = task.training_samples()
    if task.test is not None:
        data = samples(task.test, task.collate, pairs=task.step is None)
    if count := min(most, len(data)):
        with _said(task, f"the first {count} samples of the evaluation"), eval_mode(model), torch.no_grad():
            batch, objective = to_device(data.fetch(np.arange(count)), device_of(model)), task.objective(data)
            if isinstance(objective, SampleLoss):
                metrics = OutputMetrics(objective)
                metrics.add(model, batch, count)
                metrics.values()
            else:
                objective.losses(model, batch, count)


@contextmanager
def _said(task: Task, where: str) -> Iterator[None]:
    """Say in one line what the user's code raises."""
    try:
        with own_generators(0), uncompiled():
            yield
    except ConfigError:
        raise
    except Exception as error:  # whatever that may be
        what = "the model, the loss or the data set" if task.step is None else "step or the data set"
        line = " ".join(str(error).split())[:200]
        raise ConfigError(f"{what} raised {type(error).__name__} on {where}: {line}{_place(error)}") from error


def _place(error: Exception) -> str:
    """The last line of the user's own files that an error passed through; nothing if it did not."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and "site-packages" not in file.parts and not file.is_relative_to(PACKAGE):
            return f" ({file.name}, line {frame.lineno})"
    return ""
