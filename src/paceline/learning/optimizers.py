"""How a step of torch's optimizers is made, with its scheduler; and both stored in checkpoints and restored exactly.

``Optimizer.load_state_dict`` gives every state the type of its parameter, which changes how later steps round; here a
state comes back as it was.
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import SGD, Optimizer, SparseAdam
from torch.optim.lr_scheduler import LRScheduler

from paceline.core.codec import whole
from paceline.core.errors import ConfigError
from paceline.data.samples import to_device

MakeOptimizer = Callable[[Any], Optimizer]  # from parameters, or from (name, parameter) pairs
MakeScheduler = Callable[[Optimizer], LRScheduler]
UNUSUAL = ("maximize", "foreach", "fused", "differentiable")  # options of SGD
LARGEST_RATE = 3e38  # that is a number of 32 bits
SCHEDULES = ("step", "state_dict", "load_state_dict")  # what a scheduler has to have


def refuse_closures(kind: type[Optimizer]) -> None:
    """An optimizer that calls the loss itself has nothing to step along: workers hand in gradients, or models."""
    if needed(kind.step):
        raise ConfigError(
            f"optimizer: {kind.__name__} evaluates the loss by itself, and cannot step along a given gradient: use one "
            "that can, such as SGD, Adam or AdamW"
        )


def needed(function: Callable[..., Any]) -> list[str]:
    """The arguments that a step has to be given."""
    parameters = inspect.signature(function).parameters.values()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind in by_place]
    return [name for name in names if name != "self"]


def takes_names(make: Callable[..., Any]) -> bool:
    """Does a function that makes an optimizer ask for (name, parameter) pairs, by an argument ``named_parameters``?"""
    try:
        return next(iter(inspect.signature(make).parameters), None) == "named_parameters"
    except (TypeError, ValueError):
        return False


def step_of(optimizer: Optimizer) -> Callable[[], object]:
    """What moves the parameters along their gradients. ``SparseAdam`` is given the rows that are not 0."""
    if not isinstance(optimizer, SparseAdam):
        return plain_sgd(optimizer) or optimizer.step
    step: Callable[[], object] = optimizer.step  # as the scheduler has wrapped it

    def step_along_rows() -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        dense = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = parameter.grad.to_sparse(1)
        step()
        for parameter, gradient in zip(parameters, dense, strict=True):
            parameter.grad = gradient

    return step_along_rows


def plain_sgd(optimizer: Optimizer) -> Callable[[], None] | None:
    """A quicker ``step`` for an ordinary ``torch.optim.SGD``; nothing for any other optimizer.

    Around the arithmetic, torch's step spends about a sixth of a small model's whole forward and backward pass on
    hooks, profiler marks and grouping. This one has the same operations in the same order on the same state, so the
    same bits, and schedulers, ``state_dict`` and ``load_state_dict`` of the user's optimizer keep working.
    """
    if not _is_ordinary(optimizer):
        return None

    @torch.no_grad()
    def step() -> None:
        for group in optimizer.param_groups:
            lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:  # the loss does not depend on it
                    continue
                if decay:
                    gradient = gradient.add(parameter, alpha=decay)
                if momentum:
                    state = optimizer.state[parameter]
                    buffer = state.get("momentum_buffer")
                    if buffer is None:
                        buffer = state["momentum_buffer"] = gradient.detach().clone()
                    else:
                        buffer.mul_(momentum).add_(gradient, alpha=1 - group["dampening"])
                    gradient = gradient.add(buffer, alpha=momentum) if group["nesterov"] else buffer
                parameter.add_(gradient, alpha=-lr)
        # what torch's schedulers look at to tell whether they are called in the right order
        optimizer._opt_called = True  # type: ignore[attr-defined]

    return step


def plain_rate(optimizer: Optimizer, parameters: Sequence[Parameter]) -> Callable[[], float | None] | None:
    r"""Tells $\eta$ whenever the next step is nothing but $w - \eta\, g$ for all parameters; ``None`` if none is."""
    groups = optimizer.param_groups
    same = len(groups) == 1 and [id(each) for each in groups[0]["params"]] == [id(each) for each in parameters]
    if not (same and _is_ordinary(optimizer)):
        return None

    def rate() -> float | None:
        (group,) = optimizer.param_groups
        lr = group["lr"]
        if group["momentum"] or group["weight_decay"] or type(lr) is not float:
            return None
        optimizer._opt_called = True  # type: ignore[attr-defined] # as above
        return lr

    return rate


def _is_ordinary(optimizer: Optimizer) -> bool:
    if type(optimizer) is not SGD or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    return not any(group[option] for group in optimizer.param_groups for option in UNUSUAL)


class Schedule:
    """A scheduler, stepped after each step of its optimizer; one that waits for a metric after each evaluation.

    ``ReduceLROnPlateau`` is the one in torch. It looks at the loss with ``mode="min"``, at the accuracy with ``"max"``.
    """

    def __init__(self, scheduler: LRScheduler | None) -> None:
        self.scheduler = scheduler
        self.by_metric = scheduler is not None and bool(needed(scheduler.step))

    def stepped(self) -> None:
        if self.scheduler is not None and not self.by_metric:
            self._step(self.scheduler.step)

    def _step(self, step: Callable[[], object]) -> None:
        name = type(self.scheduler).__name__
        try:
            step()
        except Exception as error:  # of an option of the wrong type, torch raises whatever comes
            line = " ".join(str(error).split())[:200]
            raise ConfigError(f"the scheduler, {name}, cannot step: {type(error).__name__}: {line}") from error
        for group in getattr(getattr(self.scheduler, "optimizer", None), "param_groups", ()):
            lr = group["lr"]
            if type(lr) is float and not abs(lr) <= LARGEST_RATE:
                raise ConfigError(
                    f"the scheduler, {name}, has set a learning rate of {lr:g}, by which no weight can move: choose "
                    "its options so that learning rates stay small"
                )

    def evaluated(self, updates: int, loss: float, accuracy: float) -> None:
        """The model was evaluated. What it was before the first update is no progress yet."""
        if self.scheduler is None or not self.by_metric:
            return
        largest = getattr(self.scheduler, "mode", "min") == "max"
        metric = accuracy if largest else loss
        if updates:
            scheduler: Any = self.scheduler
            self._step(lambda: scheduler.step(metric))
        elif math.isnan(metric):
            name = "accuracy" if largest else "loss"
            raise ConfigError(
                f"{type(self.scheduler).__name__} waits for the {name} to {'grow' if largest else 'fall'}, and the "
                f"evaluation returns no {name}: let evaluate return it, or choose mode={'min' if largest else 'max'!r}"
            )

    def state(self) -> dict[str, Any] | None:
        return None if self.scheduler is None else self.scheduler.state_dict()

    def restore(self, state: Any) -> None:
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state)


@dataclass(frozen=True)
class Recipe:
    """How a step along the combined gradient is made."""

    optimizer: MakeOptimizer
    scheduler: MakeScheduler | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm={self.clip_norm} would stop every update: it must be positive")
        if isinstance(self.optimizer, Optimizer) or not callable(self.optimizer):
            raise ConfigError(
                f"optimizer must be a function from parameters to a torch optimizer, not "
                f"{type(self.optimizer).__name__}: optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
            )

    def make(self, named: Sequence[tuple[str, Parameter]]) -> tuple[Optimizer, Schedule]:
        """The optimizer of some parameters, and its scheduler."""
        parameters = [parameter for _, parameter in named]
        optimizer = self.optimizer(list(named) if takes_names(self.optimizer) else parameters)
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(f"optimizer= made a {type(optimizer).__name__}, which is no torch optimizer")
        refuse_closures(type(optimizer))
        handed = {id(parameter) for parameter in parameters}
        if any(id(parameter) not in handed for group in optimizer.param_groups for parameter in group["params"]):
            name = type(optimizer).__name__
            raise ConfigError(
                "the optimizer steps other parameters than it was handed, and would not train anything: a run trains "
                f"a copy of the model. Make it of what it is handed, optimizer=lambda p: torch.optim.{name}(p)"
            )
        scheduler = self.scheduler(optimizer) if self.scheduler else None
        if self.scheduler is not None:
            _refuse_other_schedulers(scheduler)
        if getattr(scheduler, "optimizer", optimizer) is not optimizer:
            raise ConfigError(
                "the scheduler is one of another optimizer than it was handed, and would have no effect: "
                f"scheduler=lambda optimizer: torch.optim.lr_scheduler.{type(scheduler).__name__}(optimizer, ...)"
            )
        return optimizer, Schedule(scheduler)


def _refuse_other_schedulers(made: Any) -> None:
    if isinstance(made, type) or not all(callable(getattr(made, name, None)) for name in SCHEDULES):
        what = f"the class {made.__name__}" if isinstance(made, type) else f"a {type(made).__name__}"
        raise ConfigError(
            f"scheduler= made {what}, which is no torch scheduler: let it return one, such as "
            "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)"
        )


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    packed = dict(optimizer.state_dict())
    if more := packed.keys() - {"state", "param_groups"}:
        raise ConfigError(
            f"{type(optimizer).__name__} cannot be kept in a checkpoint: besides torch's own state it has {min(more)!r}"
        )
    return packed


def optimizer_settings(optimizer: Optimizer) -> dict[str, Any]:
    """The same without what is kept for each parameter: learning rates and the like."""
    return {**optimizer_state(optimizer), "state": {}}


def restore_optimizer(optimizer: Optimizer, state: Mapping[str, Any], *, only_settings: bool = False) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        if len(saved["params"]) != len(group["params"]):
            raise ValueError(f"{len(saved['params'])} parameters of the optimizer, not {len(group['params'])}")
        group.update({name: value for name, value in saved.items() if name != "params"})
    if only_settings:
        return
    optimizer.state.clear()
    on_device = {id(p) for group in optimizer.param_groups if _counts_on_device(group) for p in group["params"]}
    for number, values in state["state"].items():
        parameter = parameters[number]
        steps = id(parameter) in on_device
        on_cpu = parameter.device.type == "cpu"
        optimizer.state[parameter] = values if on_cpu else _moved(values, parameter.device, steps=steps)


def _counts_on_device(group: Mapping[str, Any]) -> bool:
    """Does torch keep the number of steps of these parameters where they are? Otherwise it is on the CPU."""
    return bool(group.get("capturable") or group.get("fused"))


def _moved(values: Any, device: torch.device, *, steps: bool) -> Any:
    """The state of a parameter on its device, but for the number of steps, unless ``steps``."""
    if not isinstance(values, Mapping):
        return to_device(values, device)
    return {name: each if name == "step" and not steps else to_device(each, device) for name, each in values.items()}


# A state from a file may be anything.


def check_states(
    optimizer: Optimizer, scheduler: LRScheduler | None, state: Mapping[str, Any], scheduled: Mapping[str, Any] | None
) -> None:
    """Raise an error unless these can be states of an optimizer and its scheduler, both new, and be gone on with."""
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        _check_group(group, saved)
    for number, values in state["state"].items():
        whole(number)
        _check_values(values)
    if scheduler is not None:
        own, saved = scheduler.state_dict(), scheduled
        if saved is None or own.keys() != saved.keys():
            raise ValueError("the scheduler has other values")
        for name, value in own.items():
            if _kind(value) != _kind(saved[name]) and not _unbounded(value):
                raise ValueError(f"{name} of the scheduler is {str(saved[name])[:40]}, and was {str(value)[:40]}")
    trial = copy.deepcopy(optimizer)
    restore_optimizer(trial, copy.deepcopy(dict(state)))
    _rehearse(trial)


def _check_group(group: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Settings may have been changed by a scheduler, but neither their names nor what kind of value they are."""
    if group.keys() != saved.keys() and {*saved} - {*group} - {"initial_lr"}:
        raise ValueError(f"the optimizer has no {', '.join(sorted(map(str, saved.keys() - group.keys())))}")
    if missing := group.keys() - saved.keys():
        raise ValueError(f"{', '.join(sorted(missing))} of the optimizer is missing")
    for name, value in saved.items():
        own = group.get(name, 0.0)
        if name != "params" and _kind(value) != _kind(own):
            raise ValueError(f"{name} of the optimizer is {str(value)[:40]}, and was made as {str(own)[:40]}")


def _unbounded(value: object) -> bool:
    """The best metric so far is infinite before there is one."""
    return type(value) is float and not math.isfinite(value)


def _kind(value: object) -> object:
    """What one value of a setting has in common with another: numbers are numbers, finite ones."""
    if isinstance(value, tuple | list):
        return [_kind(each) for each in value]
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape
    if type(value) in (int, float):
        return math.isfinite(value)  # type: ignore[arg-type]
    return type(value)


def _check_values(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            if not (value.is_floating_point() or value.is_complex()):
                raise ValueError(f"{name} of the optimizer is {value.dtype}: it holds no fractions")
        elif value is not None and type(value) not in (int, float, bool, list, dict):
            raise ValueError(f"{name} of the optimizer is {str(value)[:40]}")


def _rehearse(trial: Optimizer) -> None:
    """Step once with a gradient of 0: whatever it cannot continue with raises an error now."""
    if isinstance(trial, torch.optim.LBFGS):  # it would ask for the loss
        return
    for group in trial.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    step_of(trial)()


def as_made(optimizer: Optimizer, scheduler: LRScheduler | None) -> dict[str, Any]:
    """The settings of a new optimizer and its scheduler, which must be the same when a run is resumed."""
    settings: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        where = "optimizer" if len(optimizer.param_groups) == 1 else f"optimizer, group {number}"
        settings |= {f"{where}: {name}": value for name, value in group.items() if name != "params"}
    settings["scheduler"] = None if scheduler is None else type(scheduler).__name__
    if scheduler is not None:
        settings |= {f"scheduler: {name}": value for name, value in scheduler.state_dict().items()}
    return copy.deepcopy(settings)


def check_as_made(made: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse to resume with other settings: they would be ignored."""
    for name in dict.fromkeys([*saved, *made]):
        before, now = saved.get(name), made.get(name)
        if not _same(before, now):
            raise ConfigError(f"the run was begun with {name} = {before!r}, not {now!r}: resume it with the same")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)
