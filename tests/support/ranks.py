"""Models, losses and faults for workers of several ranks. Workers import this module, so it imports little."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def layers(*more: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, last = nn.Linear(64, 20, dtype=torch.float64), nn.Linear(20, 10, dtype=torch.float64)
        return nn.Sequential(first, *more, nn.Tanh(), last)


class Tied(nn.Module):
    """One matrix used twice, and one not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()
        self.twice = nn.Parameter(torch.eye(20, dtype=torch.float64))
        self.never = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        first, *rest = self.layers.children()
        hidden: Tensor = first(inputs) @ self.twice @ self.twice
        for layer in rest:
            hidden = layer(hidden)
        return hidden


class Cast(nn.Module):
    """Outputs of another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, values: Tensor) -> Tensor:
        return values.to(self.dtype)


def half_precision() -> nn.Module:
    """Parameters of two types; the outputs are in float32."""
    model = layers(nn.BatchNorm1d(20, dtype=torch.float64), nn.Dropout(0.2)).float()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        last = nn.Linear(10, 10, dtype=torch.bfloat16)
    return nn.Sequential(model, Cast(torch.bfloat16), last, Cast(torch.float32))


def mean_and_more(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    outputs = model(batch[0])
    return {"loss": cross_entropy(outputs, batch[1]), "largest": outputs.amax(dim=1)}


class StruckRank(nn.Module):
    """Something happens to one rank of one worker, at its third pass."""

    def __init__(self, model: nn.Module, fault: Callable[[], None], mark: Path) -> None:
        super().__init__()
        self.model, self.fault, self.mark = model, fault, mark
        self.passes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += self.training
        if self.training and self.passes == 3 and dist.is_initialized() and dist.get_rank() == 1:
            try:
                self.mark.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                self.fault()
        outputs: Tensor = self.model(inputs)
        return outputs


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def raised() -> None:
    raise ValueError("only here")


def averaged(model: nn.Module, mesh: Any) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model.to(mesh.device_type))


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def other_shapes(model: nn.Module, mesh: Any) -> nn.Module:
    return nn.Linear(64, 10 + dist.get_rank(), dtype=torch.float64)


def other_types(model: nn.Module, mesh: Any) -> nn.Module:
    return model.float() if dist.get_rank() else model


def nothing(model: nn.Module, mesh: Any) -> Any:
    """Forgets to return the module."""


def of_pairs(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.std()
