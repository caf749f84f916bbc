"""Samples by index, and the batches that are made of them.

A pair of tensors is indexed at once, a map-style dataset item by item. A batch is whatever collating makes: tensors in
dicts and other mappings, lists, tuples, named tuples and dataclasses, however nested.
"""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from paceline.core.errors import ConfigError

Indices = NDArray[np.int64]
Collate = Callable[[list[Any]], Any]


class MapDataset(Protocol):
    """A map-style ``torch.utils.data.Dataset``: ``dataset[i]`` is a sample, such as (input, target)."""

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
        """A batch of inputs and targets. The next call with as many indices overwrites the inputs.

        Whole numbers are not overwritten: a sparse gradient refers to those that an embedding was given.
        """
        rows = torch.from_numpy(indices if indices.flags.writeable else indices.copy())  # else torch warns
        if not (self._inputs.is_floating_point() or self._inputs.is_complex()):
            rows = rows.to(self._inputs.device)
            return self._inputs.index_select(0, rows), self._targets.index_select(0, rows)
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
    """A map-style dataset. ``collate`` makes a batch of a list of items: torch's ``default_collate`` if none is given.

    With ``pairs`` a batch must be (inputs, targets).
    """

    def __init__(self, dataset: MapDataset, collate: Collate | None = None, *, pairs: bool = True) -> None:
        self._dataset = dataset
        self._collate: Collate = default_collate if collate is None else collate
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, indices: Indices) -> Any:
        items = [self._dataset[i] for i in indices.tolist()]
        try:
            batch = self._collate(items)
        except Exception as error:
            raise self._cannot_collate(items, indices, error) from error
        if not self._pairs:
            return batch
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            parts = f"{len(batch)} parts" if isinstance(batch, list | tuple) else type(batch).__name__
            raise ConfigError(
                f"an item of the data set must be (input, target), not {parts}: several inputs of a model can be one, "
                "as in ((words, mask), target); for any other batch give Task a step= instead of a loss="
            )
        return batch

    def _cannot_collate(self, items: list[Any], indices: Indices, error: Exception) -> ConfigError:
        """Names the first sample that does not go with the first one of the batch."""
        culprit = next((n for n in range(len(items)) if not self._collates([items[0], items[n]])), len(items) - 1)
        which = f"sample {indices[culprit]}" + (f" with sample {indices[0]}" if culprit else "")
        ours = self._collate is default_collate
        return ConfigError(
            f"{which} cannot be put into a batch by {getattr(self._collate, '__name__', 'collate')} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:160]}): "
            + ("give Task a collate= function, such as one that pads" if ours else "correct Task's collate= function")
        )

    def _collates(self, items: list[Any]) -> bool:
        try:
            self._collate(items)
        except Exception:  # whatever it raises is told by the caller
            return False
        return True

    def targets(self) -> NDArray[Any]:
        listed = getattr(self._dataset, "targets", None)
        if listed is None:
            items = (self._dataset[i] for i in range(len(self)))
            listed = [item[1] if isinstance(item, list | tuple) and len(item) == 2 else None for item in items]
            if any(target is None for target in listed):
                raise ConfigError(
                    "a partition by classes needs the class of each sample, and the items of the data set are not "
                    "(input, target): give the data set an attribute targets, or choose partition=Equal()"
                )
        return np.asarray(listed)

    def listed_targets(self) -> NDArray[Any] | None:
        """The targets, or None if every item would have to be loaded to know them."""
        return self.targets() if getattr(self._dataset, "targets", None) is not None else None

    def may_have_target(self, value: int) -> bool:
        return True  # every item would have to be loaded to know


Samples = TensorSamples | DatasetSamples
Data = tuple[Tensor | NDArray[Any], Tensor | NDArray[Any]] | MapDataset


def samples(data: Data, collate: Collate | None = None, *, pairs: bool = True) -> Samples:
    """Samples from a pair of tensors or arrays, or from a map-style dataset; see ``DatasetSamples``."""
    pair = as_tensors(data, None)
    if is_pair(pair):
        inputs, targets = pair
        if collate is None:
            return TensorSamples(inputs, targets)
        return DatasetSamples(TensorDataset(inputs, targets), collate, pairs=pairs)
    if isinstance(data, tuple) and data and all(isinstance(part, Tensor | np.ndarray) for part in data):
        raise ConfigError(
            f"data of {len(data)} tensors or arrays are no pair: give torch.utils.data.TensorDataset of the tensors"
        )
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        return DatasetSamples(data, collate, pairs=pairs)
    raise ConfigError(f"data must be a pair of tensors or arrays, or a map-style dataset, not {type(data).__name__}")


def is_pair(data: Any) -> bool:
    return isinstance(data, Sequence) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def as_tensors(data: Any, floats: torch.dtype | None) -> Any:
    """A pair of numpy arrays as tensors; other data unchanged.

    Arrays of float64, the default of numpy, become ``floats`` if it is given: few models have weights in float64. Whole
    numbers of any width become int64 where they are targets: torch takes classes as nothing else.
    """
    if isinstance(data, Tensor | np.ndarray) and data.ndim == 0:
        raise ConfigError(f"data must be a pair of tensors or arrays, or a map-style dataset, not one number, {data}")
    if not isinstance(data, Sequence) or len(data) != 2:
        return data
    if not all(isinstance(part, Tensor | np.ndarray) for part in data):
        if isinstance(data, tuple) and not all(isinstance(part, tuple) for part in data):
            kinds = " and ".join(type(part).__name__ for part in data)
            raise ConfigError(f"data must be a pair of tensors or arrays, not of {kinds}: use torch.tensor or np.array")
        return data
    if any(part.ndim == 0 for part in data):
        raise ConfigError("data must be a pair of tensors or arrays with a row for each sample, not of single numbers")
    inputs, targets = (part if isinstance(part, Tensor) else _tensor(part, floats) for part in data)
    return inputs, targets.to(torch.int64) if converts(data[1]) else targets


def converts(targets: Any) -> bool:
    """Are these targets whole numbers in an array, of another width than torch takes as classes?"""
    return isinstance(targets, np.ndarray) and targets.dtype.kind in "iu" and targets.dtype != np.int64


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


# Batches.


def to_device(batch: Any, device: torch.device) -> Any:
    """Move the tensors of a batch to a device; a part that has a method ``to`` of its own moves itself.

    Numbers, texts, and objects without that method stay as they are.
    """
    if isinstance(batch, Tensor):
        return batch if batch.device == device else batch.to(device, non_blocking=True)
    kind = type(batch)
    if kind is tuple or kind is list:  # as most batches are
        return kind([to_device(part, device) for part in batch])
    if kind is not dict and callable(getattr(batch, "to", None)):
        return batch.to(device)
    parts = _parts(batch)
    return batch if parts is None else _like(batch, [to_device(part, device) for part in parts])


def mapped(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The same batch with ``function(tensor)`` in the place of each tensor."""
    if isinstance(batch, Tensor):
        return function(batch)
    parts = _parts(batch)
    return batch if parts is None else _like(batch, [mapped(part, function) for part in parts])


def copied(batch: Any) -> Any:
    """The same batch, its tensors in memory of their own."""
    return mapped(batch, Tensor.clone)


def leaves(batch: Any) -> Iterator[Any]:
    """Everything in a batch that is not made of parts: tensors, numbers, texts."""
    parts = None if isinstance(batch, Tensor) else _parts(batch)
    if parts is None:
        yield batch
    else:
        for part in parts:
            yield from leaves(part)


def joined(batches: Sequence[Any], sizes: Sequence[int]) -> Any:
    """One batch with the rows of all; nothing if not everything in them is a tensor with a row for each sample."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        pairs = zip(batches, sizes, strict=True)
        rows = all(each.dim() and each.shape == (size, *first.shape[1:]) for each, size in pairs)
        return torch.cat(list(batches)) if rows else None
    parts = [_parts(batch) for batch in batches]
    if not parts[0] or any(each is None or len(each) != len(parts[0]) for each in parts):
        return None
    if isinstance(first, Mapping) and any(list(batch) != list(first) for batch in batches):
        return None
    pieces = [joined(each, sizes) for each in zip(*(each for each in parts if each is not None), strict=True)]
    return None if any(piece is None for piece in pieces) else _like(first, pieces)


def _parts(batch: Any) -> list[Any] | None:
    """What a batch is made of; nothing if it is not known to be made of anything."""
    if isinstance(batch, list | tuple):
        return list(batch)
    if isinstance(batch, Mapping):
        return list(batch.values())
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    return None


def _like(example: Any, parts: list[Any]) -> Any:
    """A batch of the example's kind, of these parts."""
    kind = type(example)
    if kind is tuple or kind is list:
        return kind(parts)
    if kind is dict:
        return dict(zip(example, parts, strict=True))
    if isinstance(example, list | tuple):
        return kind(*parts) if hasattr(example, "_fields") else kind(parts)
    if isinstance(example, Mapping) and not isinstance(example, MutableMapping):
        return dict(zip(example, parts, strict=True))
    made = copy.copy(example)
    if isinstance(example, Mapping):
        for name, part in zip(example, parts, strict=True):
            made[name] = part
        return made
    for field, part in zip(dataclasses.fields(example), parts, strict=True):
        object.__setattr__(made, field.name, part)  # it may be frozen
    return made
