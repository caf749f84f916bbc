"""Memory of slots for whole models: the weights that are trained, and one slot for each contribution.

All slots have the same layout, so that any combination of them is one matrix-vector product, and a worker can read
the weights of its ticket from the very slot that it will write its gradient to.
"""

import ctypes
import math
import mmap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.codec import whole
from paceline.data.partition import Indices
from paceline.learning.model_state import like, norm

ALIGNMENT = 64  # bytes; a cache line
LARGE = 1 << 20  # bytes
MADV_REMOVE = 9


@dataclass(frozen=True, slots=True)
class Place:
    """Where a vector lies in a slot."""

    begin: int  # in bytes
    dtype: torch.dtype
    numel: int

    @property
    def end(self) -> int:
        return self.begin + self.numel * self.dtype.itemsize


class Layout:
    """Where a slot holds parameters, or their gradients (one vector for each dtype), buffers, marks and losses.

    ``logged`` is how many values a step logs: of each the slot holds the sum, and over how many samples it is. With
    ``pages`` a slot begins on a page of its own, so that it can be pinned for a device.
    """

    def __init__(
        self, parameters: Sequence[Tensor], buffers: Sequence[Tensor], samples: int, logged: int = 0, *,
        pages: bool = False,
    ) -> None:  # fmt: skip
        self.shapes = [parameter.shape for parameter in parameters]
        self.buffer_shapes = [buffer.shape for buffer in buffers]
        self.vectors: list[Place] = []
        self.slices: list[tuple[int, int]] = [(0, 0)] * len(parameters)  # of each parameter: its vector, its begin
        end = 0
        for number, dtype in enumerate(dict.fromkeys(parameter.dtype for parameter in parameters)):
            numel = 0
            for which, parameter in enumerate(parameters):
                if parameter.dtype == dtype:
                    self.slices[which] = number, numel
                    numel += parameter.numel()
            self.vectors.append(Place(end, dtype, numel))
            end = aligned(self.vectors[-1].end)
        self.weights_end = end  # in bytes: what follows is small, as a rule
        self.buffers: list[Place] = []
        for buffer in buffers:
            self.buffers.append(Place(end, buffer.dtype, buffer.numel()))
            end = aligned(self.buffers[-1].end)
        self.buffers_end = end
        self.unused = Place(end, torch.uint8, len(parameters))  # is 1 where a gradient is missing
        end = aligned(self.unused.end)
        self.logged = Place(end, torch.float64, 2 * logged)
        end = aligned(self.logged.end)
        wide = torch.promote_types(self.vectors[0].dtype, torch.float32).to_real()
        self.losses = Place(end, wide, samples)
        # an odd number of cache lines: slots then do not compete for the same places of the cache
        unit = mmap.PAGESIZE if pages else ALIGNMENT
        self.stride = (-(-self.losses.end // unit) | 1) * unit

    def split(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """The parameters as views of the vectors that hold them."""
        return [
            vectors[which][begin : begin + shape.numel()].view(shape)
            for (which, begin), shape in zip(self.slices, self.shapes, strict=True)
        ]

    def end_of(self, memory: Tensor) -> "SlotEnd":
        """The views of what follows the weights of a slot, in the bytes from ``weights_end`` to ``losses.end``."""

        def of(place: Place) -> Tensor:
            return memory[place.begin - self.weights_end : place.end - self.weights_end].view(place.dtype)

        buffers = [of(place).view(shape) for place, shape in zip(self.buffers, self.buffer_shapes, strict=True)]
        return SlotEnd(buffers, of(self.unused), of(self.losses).numpy(), of(self.logged))


class Report(NamedTuple):
    """What a worker reports of a gradient that it hands in."""

    losses: int  # how many: one a sample, or one in all
    loss_sum: float
    norm: float  # of the gradient; infinite or NaN if it is not finite, or overflows
    loss_weight: float  # what the sum of the losses is divided by
    unused: int = 0  # parameters without a gradient: they are marked in the slot


EMPTY_REPORT = Report(0, 0.0, 0.0, 0.0)


class Promise:
    """What is known of a ticket until it is settled: the slots that it reads and writes, and what was reported."""

    __slots__ = (
        "began", "handed_in", "indices", "loss_sum", "loss_weight", "losses", "missing", "norm", "number", "samples",
        "slot", "source", "unused", "used",
    )  # fmt: skip

    def __init__(self, indices: Indices, slot: int, source: int, number: int = 0, began: Sequence[Any] = ()) -> None:
        self.indices = indices
        self.number = number  # counts the work that its worker was given
        self.began = began  # the buffers that it was given to begin with
        self.slot = slot  # the slot that its worker writes to
        self.source = source  # the slot with its weights
        self.samples = len(indices)  # computed
        self.handed_in = False
        self.losses = 0  # handed in: one a sample, or one in all
        self.loss_sum = 0.0
        self.loss_weight = 0.0
        self.norm = math.nan  # of the gradient
        self.used = False
        self.missing = 0  # of how many parameters it has no gradient: only then does the slot mark them
        self.unused: Collection[int] = ()  # these, where the slot was read


class SlotEnd(NamedTuple):
    """What a slot holds besides a gradient, as it comes from another machine."""

    buffers: list[Tensor]
    unused: Tensor
    losses_array: NDArray[Any]
    logged: Tensor


@dataclass(frozen=True, slots=True)
class Slot:
    """The views of one slot."""

    memory: Tensor  # all of it, as bytes
    vectors: list[Tensor]
    parameters: list[Tensor]
    buffers: list[Tensor]
    unused: Tensor  # marks the parameters without a gradient, where there are any
    losses: Tensor
    losses_array: NDArray[Any]  # the same memory
    logged: Tensor  # of each value that a step logs: the sum, and over how many samples

    def take(self, other: "Slot") -> None:
        """Copy the weights and buffers of another slot."""
        for own, others in zip(self.vectors + self.buffers, other.vectors + other.buffers, strict=True):
            own.copy_(others)

    def fill(self, saved: Mapping[str, Any]) -> list[int]:
        """Write a row of a checkpoint. Returns the parameters that it has no gradient of."""
        for views, values in ((self.vectors, saved["vectors"]), (self.buffers, saved["buffers"])):
            for view, value in zip(views, like(views, values), strict=True):
                view.copy_(value)
        self.losses.copy_(like([self.losses], [saved["losses"]])[0])
        self.logged.copy_(like([self.logged], [saved.get("logged", torch.zeros_like(self.logged))])[0])
        unused = [whole(number) for number in saved.get("unused", ())]
        self.unused.zero_()
        self.unused[unused] = 1
        return unused

    def report(self, losses: int, of_batch: float | None = None, *, unused: int = 0) -> Report:
        """What is reported of a gradient with so many losses: one a sample, or one in all of a batch of a weight."""
        loss_sum = float(self.losses_array[:losses].sum(dtype=np.float64))
        if of_batch is None:
            return Report(losses, loss_sum, norm(self.vectors), losses, unused)
        return Report(losses, loss_sum * of_batch, norm(self.vectors), of_batch, unused)


class StagedSlot:
    """The weights of a slot, or the gradients for one, in memory of a process's own, on its device.

    A worker that does not compute where the arena lies has one for the weights: they are copied when their version is
    another than that of its last ticket.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.vectors = [torch.zeros(place.numel, dtype=place.dtype, device=device) for place in layout.vectors]
        self.parameters = layout.split(self.vectors)
        self.buffers = [
            torch.zeros(shape, dtype=place.dtype, device=device)
            for place, shape in zip(layout.buffers, layout.buffer_shapes, strict=True)
        ]

    def take(self, slot: Slot) -> None:
        """Copy the weights and buffers of a slot."""
        for own, others in zip(self.vectors + self.buffers, slot.vectors + slot.buffers, strict=True):
            own.copy_(others, non_blocking=True)


class ParameterArena:
    """Slots of one layout, one after the other in one piece of memory."""

    def __init__(self, layout: Layout, memory: Tensor) -> None:
        self.layout = layout
        self._bytes = memory.view(-1, layout.stride)
        self._made: dict[int, Slot] = {}

    def matrices(self, first: int) -> list[Tensor]:
        """The vectors of all slots from ``first`` on: of each dtype one matrix, a row a slot."""
        return [self._bytes[first:, place.begin : place.end].view(place.dtype) for place in self.layout.vectors]

    def bytes(self, number: int) -> Tensor:
        """All of a slot, as it is sent."""
        return self._bytes[number]

    def release(self, numbers: Iterable[int]) -> None:
        """Give the memory of large slots back to the system, as far as it is shared; from then on they hold zeros."""
        if self.layout.stride < LARGE:
            return
        libc = ctypes.CDLL(None)
        for number in numbers:
            begin = self._bytes[number].data_ptr()
            first, end = -(-begin // mmap.PAGESIZE), (begin + self.layout.stride) // mmap.PAGESIZE
            address, size = first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE
            libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_REMOVE)  # is refused where it is private

    def __getitem__(self, number: int) -> Slot:
        if number not in self._made:
            self._made[number] = self._views(self._bytes[number])
        return self._made[number]

    def _views(self, memory: Tensor) -> Slot:
        layout = self.layout
        vectors = [memory[place.begin : place.end].view(place.dtype) for place in layout.vectors]
        buffers = [
            memory[place.begin : place.end].view(place.dtype).view(shape)
            for place, shape in zip(layout.buffers, layout.buffer_shapes, strict=True)
        ]
        losses = memory[layout.losses.begin : layout.losses.end].view(layout.losses.dtype)
        unused = memory[layout.unused.begin : layout.unused.end]
        logged = memory[layout.logged.begin : layout.logged.end].view(layout.logged.dtype)
        return Slot(memory, vectors, layout.split(vectors), buffers, unused, losses, losses.numpy(), logged)


def aligned(size: int) -> int:
    """The next multiple of a cache line."""
    return -(-size // ALIGNMENT) * ALIGNMENT
