"""Samples by index: a pair of tensors is indexed at once, a map-style dataset item by item."""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from paceline.core.errors import ConfigError

Indices = NDArray[np.int64]


class MapDataset(Protocol):
    """A map-style ``torch.utils.data.Dataset``: ``dataset[i]`` is (input, target)."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


class TensorSamples:
    """Inputs and targets as tensors, one row per sample."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        if len(inputs) != len(targets):
            raise ConfigError(f"{len(inputs)} inputs and {len(targets)} targets do not pair up")
        self._inputs = inputs
        self._targets = targets
        self._buffers: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._inputs)

    def fetch(self, indices: Indices) -> tuple[Any, Any]:
        """A batch of inputs and targets. The next call with as many indices overwrites the inputs."""
        rows = torch.from_numpy(indices if indices.flags.writeable else indices.copy())  # else torch warns
        buffer = self._buffers.get(len(indices))
        if buffer is None:
            if len(self._buffers) == 8:
                self._buffers.clear()
            buffer = self._buffers[len(indices)] = self._inputs.new_empty((len(indices), *self._inputs.shape[1:]))
        if rows.device != self._inputs.device:
            rows = rows.to(self._inputs.device)
        return torch.index_select(self._inputs, 0, rows, out=buffer), self._targets.index_select(0, rows)

    def targets(self) -> NDArray[Any]:
        return self._targets.cpu().numpy()

    def listed_targets(self) -> NDArray[Any] | None:
        return self.targets()

    def may_have_target(self, value: int) -> bool:
        return not self._targets.is_floating_point() and bool((self._targets == value).any())


class DatasetSamples:
    """A map-style dataset with items (input, target)."""

    def __init__(self, dataset: MapDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, indices: Indices) -> tuple[Any, Any]:
        return self.collate(self.items(indices))

    def items(self, indices: Indices) -> list[Any]:
        return [self._dataset[i] for i in indices.tolist()]

    @staticmethod
    def collate(items: list[Any]) -> tuple[Any, Any]:
        batch = default_collate(items)
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            parts = f"{len(batch)} parts" if isinstance(batch, list | tuple) else type(batch).__name__
            raise ConfigError(
                f"an item of the data set must be (input, target), not {parts}: several inputs of a model can be one, "
                "as in ((words, mask), target)"
            )
        inputs, targets = batch
        return inputs, targets

    def targets(self) -> NDArray[Any]:
        listed = getattr(self._dataset, "targets", None)
        if listed is None:
            listed = [self._dataset[i][1] for i in range(len(self))]
        return np.asarray(listed)

    def listed_targets(self) -> NDArray[Any] | None:
        """The targets, or None if every item would have to be loaded to know them."""
        return self.targets() if getattr(self._dataset, "targets", None) is not None else None

    def may_have_target(self, value: int) -> bool:
        return True  # every item would have to be loaded to know


Samples = TensorSamples | DatasetSamples
Data = tuple[Tensor | NDArray[Any], Tensor | NDArray[Any]] | MapDataset


def samples(data: Data) -> Samples:
    """Samples from a pair of tensors or arrays, or from a map-style dataset."""
    pair = as_tensors(data, None)
    if is_pair(pair):
        inputs, targets = pair
        return TensorSamples(inputs, targets)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return DatasetSamples(data)
    raise ConfigError(f"data must be a pair of tensors or arrays, or a map-style dataset, not {type(data).__name__}")


def is_pair(data: Any) -> bool:
    return isinstance(data, Sequence) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def as_tensors(data: Any, floats: torch.dtype | None) -> Any:
    """A pair of numpy arrays as tensors; other data unchanged.

    Arrays of float64, the default of numpy, become ``floats`` if it is given: few models have weights in float64.
    """
    if not isinstance(data, Sequence) or len(data) != 2:
        return data
    if not all(isinstance(part, Tensor | np.ndarray) for part in data):
        if isinstance(data, tuple) and not all(isinstance(part, tuple) for part in data):
            kinds = " and ".join(type(part).__name__ for part in data)
            raise ConfigError(f"data must be a pair of tensors or arrays, not of {kinds}: use torch.tensor or np.array")
        return data
    return tuple(part if isinstance(part, Tensor) else _tensor(part, floats) for part in data)


def _tensor(array: NDArray[Any], floats: torch.dtype | None) -> Tensor:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # about arrays that are read-only: nothing writes to the tensor
            tensor = torch.from_numpy(np.ascontiguousarray(array))
    except TypeError as error:
        raise ConfigError(f"an array of {array.dtype} cannot be trained on: {' '.join(str(error).split())}") from None
    return tensor.to(floats) if floats is not None and tensor.dtype is torch.float64 else tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """Move the tensors in a nested structure of lists, tuples and dicts to a device."""
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch
