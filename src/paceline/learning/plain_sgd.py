"""The step of ``torch.optim.SGD`` without what surrounds it.

Around the arithmetic, torch's step spends about a sixth of a small model's whole forward and backward pass on hooks,
profiler marks and grouping. A plain SGD needs none of it: same operations in the same order on the same state, so the
same bits, and schedulers, ``state_dict`` and ``load_state_dict`` of the user's optimizer go on working.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

UNUSUAL = ("maximize", "foreach", "fused", "differentiable")


def plain_sgd(optimizer: Optimizer) -> Callable[[], None] | None:
    """A quicker ``step`` for an ordinary ``torch.optim.SGD``; nothing for any other optimizer."""
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


def plain_rate(optimizer: Optimizer, parameters: Sequence[Parameter]) -> Callable[[], float | None]:
    r"""Tells $\eta$ whenever the next step is nothing but $w - \eta\, g$ for all parameters; else nothing."""
    groups = optimizer.param_groups
    same = len(groups) == 1 and [id(each) for each in groups[0]["params"]] == [id(each) for each in parameters]
    if not (same and _is_ordinary(optimizer)):
        return lambda: None

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
