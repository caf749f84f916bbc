"""Memory that the server shares with its worker processes.

It has no name: a process gets it by its file descriptor, and it is freed when the last process that holds it ends. It
is not under ``/dev/shm`` (which containers often limit to 64 MB), and a page takes no memory before it is written.
"""

import mmap
import os
from dataclasses import dataclass

import torch
from torch import Tensor


class SharedMemory:
    """``size`` bytes of zeros, or the memory behind a descriptor that another process made.

    With ``private``, changes that this process makes are its own.
    """

    def __init__(self, size: int = 0, *, descriptor: int | None = None, private: bool = False) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("paceline")
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        self._mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE)
        self.bytes = memoryview(self._mapped)

    def tensor(self, dtype: torch.dtype = torch.uint8, begin: int = 0, count: int = -1) -> Tensor:
        """A view of ``count`` values from byte ``begin``; the memory stays mapped as long as a view of it exists."""
        return torch.frombuffer(self._mapped, dtype=dtype, offset=begin, count=count)


@dataclass(frozen=True)
class SharedRegions:
    """Everything that the server of a run shares with its workers."""

    channels: SharedMemory
    arena: SharedMemory  # weights and contributions, at fixed places
    config: SharedMemory  # the serialized ``WorkerConfig``
    payload: SharedMemory  # the serialized ``WorkerPayload``
    blobs: int  # the descriptor of a file in memory

    @property
    def descriptors(self) -> list[int]:
        """In the order in which ``worker.main`` expects them."""
        return [*(each.descriptor for each in (self.channels, self.arena, self.config, self.payload)), self.blobs]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
