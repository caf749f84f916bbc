"""Where a worker's parameters lie, and so how weights come to them and gradients from them.

``InArena``  in the arena itself, on the CPU: nothing is copied but gradients
``Staged``   in memory of the worker's own, on its device: weights are copied once a version, gradients come back to the
             slot through a stream of their own

``paceline.learning.gradients.ranks`` has a third: as a task's ``parallel`` set it up on the ranks of a worker.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from paceline.learning.arena.arena import Slot, StagedSlot
from paceline.learning.devices import CPU, PinnedMemory, Transfers

LARGE = 1 << 24  # bytes of a model whose gradients are written to the slot one by one


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


class RowWriter:
    """Writes gradients to a slot while they are computed, parameter by parameter, and frees them.

    A worker with a large model then holds one gradient, in the slot, and not a second one beside it. What several
    passes compute is added up in the slot, which are the sums that autograd would make. Sparse gradients are left to
    autograd until the end, since it puts those of several passes side by side before it adds them up.

    It must not write to the slot that the weights are read from: ``to`` says whether it will.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._row: Sequence[Tensor] = ()
        self.written: set[int] = set()
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._take, number))  # type: ignore[no-untyped-call]

    @classmethod
    def of(cls, parameters: Sequence[nn.Parameter], *, least: int = LARGE) -> "RowWriter | None":
        """Nothing for a small model, for which copying all at once is faster, and where hooks look at gradients."""
        size = sum(each.numel() * each.element_size() for each in parameters)
        hooked = any(getattr(each, "_post_accumulate_grad_hooks", None) for each in parameters)
        return None if hooked or size < least else cls(parameters)

    def to(self, slot: Slot, source: Slot) -> bool:
        """From now on write to a slot, unless it is where the weights are."""
        self.written.clear()
        # with counts of changes of their own: autograd looks at those of the weights, which lie in the same memory
        self._row = () if slot is source else [each.data for each in slot.parameters]
        return bool(self._row)

    def _take(self, number: int, parameter: Tensor) -> None:
        gradient = parameter.grad
        if not self._row or gradient is None or (gradient.is_sparse and number not in self.written):
            return
        if number in self.written:
            self._row[number].add_(gradient)
        else:
            self._row[number].copy_(gradient)
            self.written.add(number)
        parameter.grad = None

    def finish(self, parameters: Sequence[nn.Parameter]) -> None:
        """Write what was left to autograd."""
        for number, parameter in enumerate(parameters):
            if parameter.grad is not None:
                self._row[number].copy_(parameter.grad.to_dense())
                self.written.add(number)
                parameter.grad = None
