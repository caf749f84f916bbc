"""Lightning: record the steps of its ``Trainer``, or train a ``LightningModule`` with Paceline.

    Trainer(..., callbacks=[paceline.integrations.lightning.RecorderCallback("runs/mine")])

    task = paceline.integrations.lightning.task_from(module, train=dataset, test=dataset)
    paceline.train(task, optimizer=paceline.integrations.lightning.optimizer_from(module), ...)

Works with the packages ``lightning`` and ``pytorch_lightning``, whichever is there. Needs
``pip install 'paceline[lightning]'``.
"""

import copy
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from paceline.core.errors import ConfigError
from paceline.data.samples import Collate, Data
from paceline.learning.task import Task
from paceline.recording.recorder import Recorder

__all__ = ["RecorderCallback", "optimizer_and_scheduler_from", "optimizer_from", "task_from"]
PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same framework under two names
# what a module may override and would not be asked for: its updates would not be those of Lightning
REFUSED = (
    "backward", "configure_gradient_clipping", "lr_scheduler_step", "manual_backward", "on_after_backward",
    "on_after_batch_transfer", "on_before_backward", "on_before_batch_transfer", "on_before_optimizer_step",
    "on_before_zero_grad", "optimizer_step", "optimizer_zero_grad", "transfer_batch_to_device",
)  # fmt: skip

log = logging.getLogger("paceline")


def _frameworks() -> list[Any]:
    """Lightning under each name by which it was imported; else under the first that is installed."""
    if imported := [module for name in PACKAGES if (module := sys.modules.get(name)) is not None]:
        return imported
    for name in PACKAGES:
        try:
            return [import_module(name)]
        except ImportError:
            continue
    raise ConfigError("paceline.integrations.lightning needs Lightning: pip install 'paceline[lightning]'")


class RecorderCallback(*[framework.Callback for framework in _frameworks()]):  # type: ignore[misc]
    """Records the steps of a ``Trainer`` as ``paceline.record`` does; each process is a worker.

    A step is a mini-batch. With ``strategy="ddp"`` computing is told from waiting, and mini-batches whose gradients are
    accumulated are counted to the update that they are a part of.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = directory
        self._recorder: Recorder | None = None
        self._step: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the file of this process."""
        recorder = self._recorder = Recorder(self.directory, trainer.global_rank, trainer.world_size).open()
        if isinstance(model := trainer.strategy.model, DistributedDataParallel):
            recorder.watch(model)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step."""
        if self._recorder is not None:
            self._step = self._recorder.step(_samples(batch))
            self._step.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End a step."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the file."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the file: what was recorded until then is kept."""
        self.on_train_end(trainer, pl_module)


def _samples(batch: Any) -> int | None:
    """How many samples a mini-batch has: the length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else None
    if isinstance(batch, str | bytes):
        return None
    inside = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, Sequence) else ()
    return next((size for part in inside if (size := _samples(part)) is not None), None)


def task_from(module: Any, train: Data, test: Data | None = None, *, collate: Collate | None = None) -> Task:
    """A task that trains a ``LightningModule``: its ``training_step`` is the loss, its ``validation_step`` the metrics.

    The loss of an evaluation is what ``training_step`` returns in eval mode; numbers that ``validation_step`` logs or
    returns are metrics beside it. There is no ``Trainer``: ``batch_idx`` is always 0, and other hooks are not called. A
    module with manual optimization, or with hooks that change batches, gradients or updates, is refused.
    """
    parent = _parent(module)
    _refuse_own_updates(module, parent)
    validates = _overrides(module, parent, "validation_step")
    ignored = [name for name in dir(parent) if name.startswith("on_") and _overrides(module, parent, name)]
    if ignored:
        log.warning("%s: these hooks are not called: %s", type(module).__name__, ", ".join(ignored))
    return Task(
        module, train=train, test=test, step=_training_step, collate=collate,
        metrics=_validation_step if validates and test is not None else None,
    )  # fmt: skip


def optimizer_from(module: Any) -> Callable[[Iterable[Parameter]], Optimizer]:
    """The optimizer that ``configure_optimizers`` makes, as ``train(optimizer=)`` takes it: of a run's own parameters.

    Its groups stay as they are. Several optimizers are refused, and one with a learning rate scheduler, which
    ``optimizer_and_scheduler_from`` takes over too.
    """
    optimizer, scheduler = optimizer_and_scheduler_from(module)
    if scheduler is not None:
        raise ConfigError(
            f"configure_optimizers of {type(module).__name__} returns a learning rate scheduler, too: give train() "
            "both, optimizer, scheduler = optimizer_and_scheduler_from(module)"
        )
    return optimizer


def optimizer_and_scheduler_from(
    module: Any,
) -> tuple[Callable[[Iterable[Parameter]], Optimizer], Callable[[Optimizer], LRScheduler] | None]:
    """What ``configure_optimizers`` makes, as ``train(optimizer=, scheduler=)`` takes it. The second may be None.

    The scheduler is stepped at each update, so that only one with ``{"scheduler": ..., "interval": "step"}`` is taken.
    """
    optimizer, scheduler = _configured(module)
    made = _OptimizerOf(optimizer, list(module.parameters()))
    return made, None if scheduler is None else _SchedulerOf(scheduler)


def _configured(module: Any) -> tuple[Optimizer, LRScheduler | None]:
    """The one optimizer that a module makes, and its scheduler."""
    _parent(module)
    name, schedules = type(module).__name__, list[Any]()
    made: Any = module.configure_optimizers()
    if isinstance(made, Mapping):
        schedules = [made["lr_scheduler"]] if made.get("lr_scheduler") is not None else []
        made = made.get("optimizer")
    if isinstance(made, tuple) and len(made) == 2 and all(isinstance(part, list) for part in made):
        made, schedules = made
    if isinstance(made, list | tuple):
        if len(made) > 1:
            raise ConfigError(f"configure_optimizers of {name} returns {len(made)} optimizers: a task has one")
        made = made[0] if made else None
    if not isinstance(made, Optimizer):
        raise ConfigError(
            f"configure_optimizers of {name} returns {type(made).__name__}: one torch optimizer is needed"
        )
    if len(schedules) > 1:
        raise ConfigError(f"configure_optimizers of {name} returns {len(schedules)} schedulers: a task has one")
    return made, _at_each_update(schedules[0], name) if schedules else None


def _at_each_update(schedule: Any, name: str) -> LRScheduler:
    """The scheduler of Lightning's description of one, if it is to be stepped at each update."""
    about = schedule if isinstance(schedule, Mapping) else {"scheduler": schedule}
    scheduler, interval = about.get("scheduler"), about.get("interval", "epoch")
    if not isinstance(scheduler, LRScheduler):
        raise ConfigError(f"configure_optimizers of {name} returns {type(scheduler).__name__} as a scheduler of torch")
    if interval != "step" or about.get("frequency", 1) != 1 or isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError(
            f"configure_optimizers of {name} returns a learning rate scheduler for every {interval}, and here it is "
            'stepped at each update: return {"scheduler": ..., "interval": "step"}, or the optimizer alone and give '
            "train(scheduler=...)"
        )
    return scheduler


class _OptimizerOf:
    """Makes an optimizer for the parameters of a copy of a model, as another one is for those of the model."""

    def __init__(self, optimizer: Optimizer, parameters: Sequence[Parameter]) -> None:
        self._optimizer, self._parameters = optimizer, parameters

    def __call__(self, parameters: Iterable[Parameter]) -> Optimizer:
        handed = list(parameters)
        own = self._parameters if len(handed) == len(self._parameters) else _trained(self._parameters)
        if len(handed) != len(own):
            raise ConfigError(f"the optimizer is one of {len(own)} parameters, and is to be made of {len(handed)}")
        return copy.deepcopy(self._optimizer, {id(old): new for old, new in zip(own, handed, strict=True)})


def _trained(parameters: Sequence[Parameter]) -> list[Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]


class _SchedulerOf:
    """Makes a scheduler for a copy of an optimizer, as another one is for the optimizer."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self._scheduler = scheduler

    def __call__(self, optimizer: Optimizer) -> LRScheduler:
        rates = [group["lr"] for group in optimizer.param_groups]
        LambdaLR(optimizer, lambda _: 1.0)  # lets the optimizer count its steps, which every scheduler looks at
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        return copy.deepcopy(self._scheduler, {id(self._scheduler.optimizer): optimizer})


def _parent(module: Any) -> type:
    """The class ``LightningModule`` that a module is one of."""
    for framework in _frameworks():
        if isinstance(module, framework.LightningModule):
            return framework.LightningModule  # type: ignore[no-any-return]
    given = f"the class {module.__name__}" if isinstance(module, type) else type(module).__name__
    raise ConfigError(f"a LightningModule is needed, not {given}")


def _overrides(module: Any, parent: type, name: str) -> bool:
    return getattr(type(module), name, None) is not getattr(parent, name, None)


def _refuse_own_updates(module: Any, parent: type) -> None:
    name = type(module).__name__
    if not module.automatic_optimization:
        raise ConfigError(f"{name} optimizes by hand (automatic_optimization = False): the rule makes the updates here")
    if not _overrides(module, parent, "training_step"):
        raise ConfigError(f"{name} has no training_step")
    if found := [hook for hook in REFUSED if _overrides(module, parent, hook)]:
        raise ConfigError(f"{name} has a hook {found[0]} of its own, which would not be called: leave it out")


def _training_step(model: Any, batch: Any) -> Any:
    with _without_trainer(model, "training_step") as logged:
        returned = _call(model.training_step, batch)
    if returned is None:
        raise ConfigError(f"training_step of {type(model).__name__} returned None: every batch needs a loss")
    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
    return {**logged, "loss": loss}


def _validation_step(model: Any, batch: Any) -> Mapping[str, Any]:
    with _without_trainer(model, "validation_step") as logged:
        returned = _call(model.validation_step, batch)
    if isinstance(returned, Mapping):
        logged |= {name: value for name, value in returned.items() if isinstance(value, int | float | torch.Tensor)}
    elif isinstance(returned, torch.Tensor) and returned.numel() == 1:
        logged.setdefault("validation_loss", returned)
    return {name: value for name, value in logged.items() if name != "loss"}


def _call(step: Callable[..., Any], batch: Any) -> Any:
    """A step with the number of the batch, if it asks for one."""
    return step(batch, 0) if "batch_idx" in inspect.signature(step).parameters else step(batch)


@contextmanager
def _without_trainer(model: Any, name: str) -> Iterator[dict[str, Any]]:
    """Collect what a step logs, for which Lightning would need a trainer."""
    logged: dict[str, Any] = {}

    def note(key: str, value: Any, *_: Any, **__: Any) -> None:
        if not isinstance(value, int | float | torch.Tensor):
            raise ConfigError(f"{name} logs {key} as a {type(value).__name__}: log a number or a tensor")
        logged[key] = value

    def note_all(values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for key, value in values.items():
            note(key, value)

    model.__dict__.update(log=note, log_dict=note_all)
    try:
        yield logged
    except RuntimeError as error:
        if "is not attached to a `Trainer`" in str(error):
            raise ConfigError(f"{name} of {type(model).__name__} uses self.trainer, and there is none") from None
        raise
    finally:
        del model.__dict__["log"], model.__dict__["log_dict"]
