"""Serialization of what every worker gets at the start: the model, the loss and the data, in memory that all share.

Functions without an importable name are pickled by value, so lambdas, closures and whatever a script or a notebook
defines can be sent. Large tensors are not pickled: they are copied once into the shared memory, and all workers use
them there. Trained parameters are not pickled at all: their values are in the arena.
"""

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import cloudpickle
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import is_parametrized

from paceline.core.errors import ConfigError
from paceline.fleets.processes.memory import SharedMemory
from paceline.learning.arena.arena import aligned

LARGE = 1 << 16  # bytes
HEADER = 8  # bytes that say where the index begins


def pack(content: object, parameters: Sequence[nn.Parameter]) -> SharedMemory:
    """Serialize an object; ``parameters`` are only referred to, by their position."""
    packed = io.BytesIO()
    packer = _Packer(packed, parameters)
    try:
        packer.dump(content)
    except Exception as error:  # an object's own ``__reduce__`` may raise anything
        raise ConfigError(f"the task cannot be sent to worker processes: {' '.join(str(error).split())}") from error
    places, end = [], aligned(HEADER)
    for tensor in packer.tensors:
        places.append((end, tensor.dtype, tensor.shape))
        end = aligned(end + tensor.numel() * tensor.element_size())
    index = pickle.dumps((places, packed.getvalue()))
    memory = SharedMemory(end + len(index))
    memory.bytes[:HEADER] = end.to_bytes(HEADER, "little")
    memory.bytes[end:] = index
    for tensor, (begin, dtype, shape) in zip(packer.tensors, places, strict=True):
        memory.tensor(dtype, begin, shape.numel()).view(shape).copy_(tensor)
    return memory


class SerializedMemory(Protocol):
    """Memory that holds a serialized object."""

    @property
    def bytes(self) -> memoryview: ...

    def tensor(self, dtype: torch.dtype = torch.uint8, begin: int = 0, count: int = -1) -> Tensor: ...


def unpack(memory: SerializedMemory, parameters: Sequence[nn.Parameter]) -> Any:
    """The object that was packed; ``parameters`` take the places of those that it was packed with."""
    begin = int.from_bytes(memory.bytes[:HEADER], "little")
    places, packed = pickle.loads(memory.bytes[begin:])
    tensors = [memory.tensor(dtype, begin, shape.numel()).view(shape) for begin, dtype, shape in places]
    return _Unpacker(packed, {"parameter": parameters, "tensor": tensors}).load()


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Refers to parameters and large tensors instead of pickling them."""

    def __init__(self, file: io.BytesIO, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._names: dict[int, tuple[str, int]] = {id(each): ("parameter", i) for i, each in enumerate(parameters)}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, nn.Module) and is_parametrized(obj):
            return _parametrized, (type(obj).__bases__[0],), vars(obj), None, None, _parametrize
        reduce: Callable[[Any], Any] = super().reducer_override
        return reduce(obj)

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        if not isinstance(obj, Tensor):
            return None
        if id(obj) not in self._names and _is_plain(obj) and obj.numel() * obj.element_size() >= LARGE:
            self._names[id(obj)] = "tensor", len(self.tensors)
            self.tensors.append(obj)
        return self._names.get(id(obj))


def _parametrized(kind: type[nn.Module]) -> nn.Module:
    """Make a module that had parametrizations (such as ``torch.nn.utils.parametrizations.weight_norm``) again.

    Torch gives such a module a class of its own, which has no importable name, and refuses to pickle it. It is made
    from its original class instead.
    """
    return kind.__new__(kind)


def _parametrize(module: nn.Module, state: dict[str, Any]) -> None:
    module.__dict__.update(state)
    parametrize._inject_new_class(module)
    for name in module.parametrizations:  # type: ignore[union-attr]
        parametrize._inject_property(module, name)


class _Unpacker(pickle.Unpickler):
    def __init__(self, packed: bytes, known: Mapping[str, Sequence[Tensor]]) -> None:
        super().__init__(io.BytesIO(packed))
        self._known = known

    def persistent_load(self, pid: Any) -> Tensor:
        kind, number = pid
        named: Tensor = self._known[kind][number]
        return named


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.device.type == "cpu" and not tensor.requires_grad and not tensor.is_sparse
