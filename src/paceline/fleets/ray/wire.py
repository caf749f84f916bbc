"""What goes between machines: weights, sums of gradients and ranges of them, as bytes."""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.learning.arena.arena import Layout, Slot
from paceline.learning.gradients.distributed import sent
from paceline.learning.gradients.sharding import Bounds

Bytes = NDArray[np.uint8]

# Ray sends what is smaller than 100 KiB with the call or with its result. Anything larger goes through the object
# stores of both nodes, which takes several times as long for some hundred kilobytes.
CHUNK = 96_000  # bytes
SMALL = CHUNK // 2  # what may be sent along with other things
MAX_INLINE = 12 * CHUNK  # a larger message goes through the object store, as a whole


def chunks_of(size: int) -> int:
    """The number of chunks in which a message of so many bytes is sent."""
    return max(1, -(-size // CHUNK)) if size <= MAX_INLINE else 1


def split(message: Bytes, chunks: int) -> list[Bytes]:
    return np.array_split(message, chunks) if chunks > 1 else [message]


def joined(chunks: Sequence[Bytes]) -> Bytes:
    return np.concatenate(chunks) if len(chunks) > 1 else chunks[0]


def as_bytes(array: Bytes) -> Tensor:
    """A tensor on bytes, which may be read-only: torch has no such tensors, and would warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


class WireFormat:
    """How the vectors of a layout are sent: as they are, or single precision in another type of number.

    Buffers are sent as they are.
    """

    def __init__(self, layout: Layout, wire: torch.dtype | None) -> None:
        self._layout = layout
        self._wire = wire
        self._dtypes = [
            wire if wire is not None and place.dtype is torch.float32 else place.dtype for place in layout.vectors
        ]
        self._ends = np.cumsum(
            [p.numel * dtype.itemsize for p, dtype in zip(layout.vectors, self._dtypes, strict=True)]
        ).tolist()

    @property
    def bytes(self) -> int:
        """The size of a sum of gradients."""
        return int(self._ends[-1])

    @property
    def weights_bytes(self) -> int:
        """The size of weights and buffers."""
        return self.bytes + self._layout.buffers_end - self._layout.weights_end

    def packed(self, vectors: Sequence[Tensor]) -> Bytes:
        """Vectors as one message."""
        parts = [sent(vector, self._wire).view(torch.uint8).numpy() for vector in vectors]
        return joined(parts)

    def unpacked(self, message: Bytes) -> list[Tensor]:
        """The vectors of a message, in the types in which they were sent."""
        begins = [0, *self._ends[:-1]]
        return [
            _typed(message[begin:end], dtype)
            for begin, end, dtype in zip(begins, self._ends, self._dtypes, strict=True)
        ]

    def pack_weights(self, model: Slot) -> Bytes:
        """Weights and buffers as one message. It shares memory with the model where it can."""
        buffers = model.memory[self._layout.weights_end : self._layout.buffers_end].numpy()
        if len(model.vectors) == 1 and not len(buffers):
            return self.packed(model.vectors)
        return joined([self.packed(model.vectors), buffers])

    def unpack_weights(self, chunks: Sequence[Bytes], slot: Slot) -> None:
        """Write weights and buffers to a slot."""
        message = joined(chunks)
        for vector, values in zip(slot.vectors, self.unpacked(message), strict=True):
            vector.copy_(values)
        buffers = slot.memory[self._layout.weights_end : self._layout.buffers_end]
        buffers.copy_(as_bytes(message[self.bytes : self.bytes + len(buffers)]))

    # Ranges of vectors, for shards.

    def unpack_piece(self, message: Bytes, bounds: Bounds) -> list[Tensor]:
        """The ranges of a message, in the types in which they were sent."""
        found, begin = [], 0
        for dtype, (first, last) in zip(self._dtypes, bounds, strict=True):
            end = begin + (last - first) * dtype.itemsize
            found.append(_typed(message[begin:end], dtype))
            begin = end
        return found


def _typed(message: Bytes, dtype: torch.dtype) -> Tensor:
    if message.ctypes.data % dtype.itemsize:  # a vector of another type before it may leave it unaligned
        message = message.copy()
    return as_bytes(message).view(dtype)
