"""Which test samples a model gets right, kept as text, so that two models can be compared sample by sample."""

import base64

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paceline.learning.task import eval_mode

AT_ONCE = 2048


def right(model: nn.Module, pictures: tuple[Tensor, Tensor]) -> NDArray[np.bool_]:
    """For each sample, whether the largest output is that of its label."""
    inputs, labels = pictures
    with eval_mode(model), torch.no_grad():
        chosen = torch.cat([model(part).argmax(1) for part in torch.split(inputs, AT_ONCE)])
    return np.asarray((chosen == labels).numpy(), dtype=np.bool_)


def packed(values: NDArray[np.bool_]) -> str:
    """Eight a byte, as text."""
    return base64.b64encode(np.packbits(values).tobytes()).decode()


def unpacked(text: str, count: int) -> NDArray[np.bool_]:
    kept = np.frombuffer(base64.b64decode(text), np.uint8)
    if len(kept) != -(-count // 8):
        raise ValueError(f"{len(kept)} bytes are not those of {count} samples")
    return np.unpackbits(kept, count=count).astype(np.bool_)
