"""An optimizer on the server, for which what the workers' models have moved is a gradient: DiLoCo, BMUF, SlowMo."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

from paceline.core.errors import ConfigError
from paceline.core.stateful import State
from paceline.learning.optimizers import (
    Recipe,
    as_made,
    check_states,
    optimizer_state,
    plain_rate,
    restore_optimizer,
    step_of,
)
from paceline.strategies.aggregation import Outer, OuterSGD


class OuterOptimizer:
    r"""Steps the global model along $\Delta = \sum_k \alpha_k (w - w_k)$; its state is kept in checkpoints.

    A parameter that no worker changed has no gradient until the optimizer knows it, and one of 0 from then on, so that
    its momentum continues, and a parameter that no loss depends on never moves.
    """

    def __init__(self, outer: Outer, named: Sequence[tuple[str, Parameter]], workers: int) -> None:
        self._parameters = [parameter for _, parameter in named]
        try:
            optimizer, _ = Recipe(_maker(outer, workers)).make(named)
        except ConfigError as error:
            raise ConfigError(f"outer={_shown(outer)}: {error}") from None
        _check_covers(optimizer, self._parameters)
        self._optimizer: Optimizer = optimizer
        self._step = step_of(optimizer)
        self._rate = plain_rate(optimizer, self._parameters)
        self.made: Mapping[str, Any] = {
            f"outer {name}": value for name, value in as_made(optimizer, None).items() if name != "scheduler"
        }

    @property
    def is_the_mean(self) -> bool:
        r"""Is the next step $w - 1\,(w - \bar w)$? Then it is $\bar w$, and need not be rounded on the way."""
        return self._rate is not None and self._rate() == 1.0

    @torch.no_grad()
    def step(self, differences: Sequence[Tensor | None]) -> None:
        """Step along these differences, one for each parameter; nothing where all workers left it as it was."""
        for parameter, difference in zip(self._parameters, differences, strict=True):
            if difference is not None:
                parameter.grad = difference.to(parameter.dtype)
            elif parameter in self._optimizer.state:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad = None
        self._step()
        for parameter in self._parameters:
            parameter.grad = None

    def state(self) -> State:
        return optimizer_state(self._optimizer)

    def restore(self, state: State) -> None:
        check_states(self._optimizer, None, state, None)
        restore_optimizer(self._optimizer, state)


def _maker(outer: Outer, workers: int) -> Callable[[Any], Optimizer]:
    if not isinstance(outer, OuterSGD):
        return outer
    momentum = 1 - 1 / workers if outer.momentum is None else outer.momentum
    nesterov = outer.nesterov and momentum > 0  # torch refuses it without
    return lambda parameters: SGD(parameters, lr=outer.lr, momentum=momentum, nesterov=nesterov)


def _check_covers(optimizer: Optimizer, parameters: Sequence[Parameter]) -> None:
    """What the outer optimizer does not step would never change, however well it is trained."""
    stepped = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if missed := sum(id(parameter) not in stepped for parameter in parameters):
        raise ConfigError(
            f"outer= steps {len(parameters) - missed} of {len(parameters)} trained parameters, and the others would "
            "never change: hand all of them to the optimizer"
        )


def _shown(outer: Outer) -> str:
    return repr(outer) if isinstance(outer, OuterSGD) else getattr(outer, "__name__", type(outer).__name__)
