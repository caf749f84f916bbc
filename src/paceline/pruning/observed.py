"""What users hand over, as arrays, refused where it cannot be meant. Called for every batch, so every call counts."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.pruning.memory import Floats
from paceline.sampling.partition import Indices

Places = Tensor | NDArray[np.integer[Any]] | Sequence[int]
Values = Tensor | NDArray[np.floating[Any]] | Sequence[float]


def whole_numbers(indices: Places) -> Indices:
    """Indices as an array."""
    if isinstance(indices, Tensor):
        array = indices.numpy() if indices.is_cpu else indices.cpu().numpy()
    else:
        array = np.asarray(indices)
    if array.dtype != np.int64:
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise ConfigError(f"indices are whole numbers, not {array.dtype}")
        array = array.astype(np.int64)
    return array


def numbers(losses: Values) -> Floats:
    """Losses as an array of single precision."""
    if isinstance(losses, Tensor):
        losses = losses.detach()
        if losses.dtype is not torch.float32 or not losses.is_cpu:
            losses = losses.to("cpu", torch.float32)  # numpy knows no bfloat16
        return losses.numpy()
    return np.asarray(losses, dtype=np.float32)


def checked_mean(places: Indices, losses: Floats, samples: int) -> float:
    """The mean loss of a batch; refused are losses that do not pair up or are not finite, and indices of no sample."""
    if losses.ndim != 1 or places.ndim != 1 or len(places) != len(losses):
        hint = ': per-sample losses come from reduction="none"' if losses.ndim == 0 else ""
        raise ConfigError(f"{_shape(places)} indices and {_shape(losses)} losses do not pair up{hint}")
    # in double precision, so that equal losses are not below their own mean
    total = float(np.add.reduce(losses, dtype=np.float64))
    # negative ones are the largest when seen as without a sign
    if not math.isfinite(total) or int(np.maximum.reduce(places.view(np.uint64))) >= samples:
        raise ConfigError(_problem(places, losses, samples))
    return total / len(losses)


def _problem(places: Indices, losses: Floats, samples: int) -> str:
    outside = (places < 0) | (places >= samples)
    if outside.any():
        return f"there is no sample {places[outside][0]}: indices are 0 to {samples - 1}"
    at = int(np.flatnonzero(~np.isfinite(losses))[0])
    return f"the loss of sample {places[at]} is {losses[at]}: only finite losses can be compared"


def _shape(array: NDArray[Any]) -> str:
    return str(len(array)) if array.ndim == 1 else f"shape {array.shape} of"
