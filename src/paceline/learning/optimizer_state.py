"""An optimizer and its scheduler, put aside and taken up again exactly.

``Optimizer.load_state_dict`` gives every state the type of its parameter, which changes how later steps round; here a
state comes back as it was.
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.core.errors import ConfigError


def optimizer_state(optimizer: Optimizer) -> dict[str, Any]:
    packed = dict(optimizer.state_dict())
    if more := packed.keys() - {"state", "param_groups"}:
        raise ConfigError(
            f"{type(optimizer).__name__} cannot be kept in a checkpoint: besides torch's own state it has {min(more)!r}"
        )
    return packed


def restore_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for group, saved in zip(optimizer.param_groups, state["param_groups"], strict=True):
        if len(saved["params"]) != len(group["params"]):
            raise ValueError(f"{len(saved['params'])} parameters of the optimizer, not {len(group['params'])}")
        group.update({name: value for name, value in saved.items() if name != "params"})
    optimizer.state.clear()
    for number, values in state["state"].items():
        optimizer.state[parameters[number]] = values


def as_made(optimizer: Optimizer, scheduler: LRScheduler | None) -> dict[str, Any]:
    """The settings of a new optimizer and its scheduler, by which another run's are told apart."""
    settings: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        where = "optimizer" if len(optimizer.param_groups) == 1 else f"optimizer, group {number}"
        settings |= {f"{where}: {name}": value for name, value in group.items() if name != "params"}
    settings["scheduler"] = None if scheduler is None else type(scheduler).__name__
    if scheduler is not None:
        settings |= {f"scheduler: {name}": value for name, value in scheduler.state_dict().items()}
    return copy.deepcopy(settings)


def check_as_made(made: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings: they would be ignored."""
    for name in dict.fromkeys([*saved, *made]):
        before, now = saved.get(name), made.get(name)
        if not _same(before, now):
            raise ConfigError(f"the run was begun with {name} = {before!r}, not {now!r}: resume it with the same")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)
