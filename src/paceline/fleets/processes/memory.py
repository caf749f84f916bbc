"""Memory without a name, shared by whoever holds its descriptor: when the last process is gone, so is it.

It is not under ``/dev/shm`` (which containers often limit to 64 MB), and a page takes no memory before it is used.
"""

import mmap
import os

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
        """A part of it; the memory stays as long as any such tensor, or a view of it, does."""
        return torch.frombuffer(self._mapped, dtype=dtype, offset=begin, count=count)
