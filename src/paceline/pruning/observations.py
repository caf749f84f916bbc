"""Per-sample losses that a training loop reports, batch by batch, in one or several processes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from paceline.core.errors import ConfigError
from paceline.data.partition import Indices
from paceline.pruning.memory import Floats


def processes() -> int:
    """The number of processes of ``torch.distributed``, or 1."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def minimum(values: NDArray[Any]) -> None:
    """All-reduce with the minimum, in place. Every process must call this."""
    on_gpu = "nccl" in distributed.get_backend()
    shared = torch.from_numpy(values).to("cuda" if on_gpu else "cpu")
    distributed.all_reduce(shared, op=distributed.ReduceOp.MIN)
    if on_gpu:
        np.copyto(values, shared.cpu().numpy())


Places = Tensor | NDArray[np.integer[Any]] | Sequence[int]
Values = Tensor | NDArray[np.floating[Any]] | Sequence[float]


class Batch(NamedTuple):
    """Indices and losses of a batch, not checked yet."""

    indices: Tensor | NDArray[Any]
    losses: Tensor | Floats
    size: int
    version: int  # of the losses: torch increments it when they are changed in place


def buffered(indices: Places, losses: Values) -> Batch:
    """A batch to be checked later: only the shapes are checked now, so that a GPU need not be waited for."""
    if not isinstance(indices, Tensor):
        indices = np.array(indices)  # a copy: the caller may change its own
    version = 0
    if isinstance(losses, Tensor):
        # with CUDA graphs, memory is overwritten without a change of the version
        losses = losses.detach() if losses.is_cpu else losses.detach().clone()
        version = losses._version
    else:
        losses = np.array(losses, dtype=np.float32)
    shape = losses.shape
    if len(shape) != 1 or indices.shape != shape:
        hint = ': per-sample losses come from reduction="none"' if not shape else ""
        raise ConfigError(f"{_count(indices)} indices and {_count(losses)} losses do not pair up{hint}")
    return Batch(indices, losses, shape[0], version)


class Observed(NamedTuple):
    """Samples of several batches, concatenated."""

    places: Indices
    losses: Floats
    means: NDArray[np.float64]  # mean loss of the batch of each sample


def check_batches(batches: Sequence[Batch], samples: int) -> Observed:
    """Concatenate batches. Losses that are not finite or were changed in place are refused, as are invalid indices."""
    if any(isinstance(each.losses, Tensor) and each.losses._version != each.version for each in batches):
        raise ConfigError("losses were changed in place after they were observed: observe(indices, losses.clone())")
    places = whole_numbers(_joined([each.indices for each in batches]))
    losses = _numbers(_joined([each.losses for each in batches]))
    sizes = np.array([each.size for each in batches if each.size], dtype=np.int64)
    # in double precision, so that equal losses are not smaller than their mean
    totals = np.add.reduceat(losses, np.cumsum(sizes) - sizes, dtype=np.float64)
    # as unsigned numbers, negative indices are the largest
    if not np.isfinite(totals).all() or int(places.view(np.uint64).max()) >= samples:
        raise ConfigError(_problem(places, losses, samples))
    return Observed(places, losses, np.repeat(totals / sizes, sizes))


def _joined(pieces: list[Any]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(each, Tensor) for each in pieces):
        return torch.cat(pieces)
    return np.concatenate([each.cpu().numpy() if isinstance(each, Tensor) else each for each in pieces])


def whole_numbers(indices: Places) -> Indices:
    """Indices as an array of int64."""
    array = indices.cpu().numpy() if isinstance(indices, Tensor) else np.asarray(indices)
    if array.dtype != np.int64:
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise ConfigError(f"indices are whole numbers, not {array.dtype}")
        array = array.astype(np.int64)
    return array


def _numbers(losses: Tensor | Floats) -> Floats:
    # numpy has no bfloat16
    return losses.to("cpu", torch.float32).numpy() if isinstance(losses, Tensor) else losses


def _problem(places: Indices, losses: Floats, samples: int) -> str:
    outside = (places < 0) | (places >= samples)
    if outside.any():
        return f"there is no sample {places[outside][0]}: indices are 0 to {samples - 1}"
    at = int(np.flatnonzero(~np.isfinite(losses))[0])
    return f"the loss of sample {places[at]} is {losses[at]}: only finite losses can be compared"


def _count(array: Tensor | NDArray[Any]) -> str:
    return str(len(array)) if len(array.shape) == 1 else f"shape {tuple(array.shape)} of"
