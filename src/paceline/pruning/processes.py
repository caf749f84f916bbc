"""The processes of ``torch.distributed``, where there are several."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed


def processes() -> int:
    """How many train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def minimum(values: NDArray[Any]) -> None:
    """Replace each value by the smallest that a process has for it. All processes must call this."""
    on_gpu = "nccl" in distributed.get_backend()
    shared = torch.from_numpy(values).to("cuda" if on_gpu else "cpu")
    distributed.all_reduce(shared, op=distributed.ReduceOp.MIN)
    if on_gpu:
        np.copyto(values, shared.cpu().numpy())
