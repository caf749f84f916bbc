"""Where a worker's parameters lie, and so how weights come to them and gradients from them.

``InArena``  in the arena itself, on the CPU: nothing is copied but gradients
``Staged``   in memory of the worker's own, on its device: weights are copied once a version, gradients come back to the
             slot through a stream of their own

``paceline.learning.gradients.ranks`` has a third: as a task's ``parallel`` set it up on the ranks of a worker.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.learning.arena.arena import Slot, StagedSlot
from paceline.learning.devices import CPU, PinnedMemory, Transfers


class Placement(Protocol):
    """Where the parameters and buffers of a worker's model lie."""

    @property
    def device(self) -> torch.device: ...

    def download(self, source: Slot, version: int | None, /) -> None:
        """Let the model have the weights and buffers of a slot, which are those of a version, if that is known."""
        ...

    def hand_in(self, slot: Slot, gradients: Sequence[Tensor], buffers: Sequence[Tensor], /) -> None:
        """Write gradients and buffers to a slot. They are there when ``finish`` has returned."""
        ...

    def finish(self) -> None: ...


class InArena:
    """Parameters are views of the slot that a ticket names: whatever their version, they are there already."""

    device = CPU

    def __init__(self, parameters: Sequence[nn.Parameter], buffers: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._buffers = buffers
        self._source: Slot | None = None

    def download(self, source: Slot, version: int | None) -> None:
        if source is not self._source:
            for parameter, values in zip(self._parameters, source.parameters, strict=True):
                parameter.data = values
            self._source = source
        for buffer, values in zip(self._buffers, source.buffers, strict=True):
            buffer.copy_(values)

    def hand_in(self, slot: Slot, gradients: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        torch._foreach_copy_(slot.parameters, list(gradients))
        for buffer, values in zip(slot.buffers, buffers, strict=True):
            buffer.copy_(values)

    def finish(self) -> None:
        pass


class Staged:
    """Parameters are views of a ``StagedSlot`` on the worker's device."""

    def __init__(self, staged: StagedSlot, transfers: Transfers, buffers: Sequence[Tensor]) -> None:
        self.device = transfers.device
        self._staged = staged
        self._transfers = transfers
        self._pinned = PinnedMemory(transfers.device)
        self._buffers = buffers
        self._version: int | None = None

    def download(self, source: Slot, version: int | None) -> None:
        if version is None or version != self._version:
            self._pinned.pin(source.memory)
            self._staged.take(source)
            self._version = version
        for buffer, values in zip(self._buffers, self._staged.buffers, strict=True):
            buffer.copy_(values)

    def hand_in(self, slot: Slot, gradients: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        self._pinned.pin(slot.memory)
        with self._transfers.outgoing():
            for own, gradient in zip(slot.parameters, gradients, strict=True):
                own.copy_(gradient, non_blocking=True)
            for buffer, values in zip(slot.buffers, buffers, strict=True):
                buffer.copy_(values, non_blocking=True)

    def finish(self) -> None:
        self._transfers.finish()
