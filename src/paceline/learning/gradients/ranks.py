r"""The ranks of a worker that is several processes: how they share a mini-batch out, and put its gradient together.

Rank $r$ of $R$ computes the $r$-th part of each block. By default every rank has the whole model, and Paceline adds the
gradients up:

$$g = \sum_{r < R} \frac1n \sum_{i \in B_r} \nabla \ell_i$$

over the $n$ samples of the mini-batch, which is what one process would compute, but for the rounding of sums.
``Task(parallel=)`` may set the model up with torch's own ``DistributedDataParallel`` or ``fully_shard`` instead. These
*average* gradients over ranks, so that each rank's part is then multiplied by $R$.

Running statistics of batch normalisation are those of a rank's own part; what is handed in is their mean over ranks.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.learning.arena.arena import Layout, Slot, StagedSlot
from paceline.learning.devices import PinnedMemory, Transfers
from paceline.learning.loss import Parallel


class Ranks(Protocol):
    """The ranks of a worker, as one of them sees them."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def speaks(self) -> bool:
        """Does this rank hand in what they have computed together?"""
        ...

    def total(self, numbers: Tensor, /) -> None:
        """Replace numbers in memory of the CPU by their sums over all ranks."""
        ...

    def collect(self, vectors: Sequence[Tensor], /) -> None:
        """Replace the vectors of the rank that speaks by the sums over all; the others' are undefined from then on."""
        ...


class Alone:
    """A worker of one process."""

    rank = 0
    size = 1
    speaks = True

    def total(self, numbers: Tensor) -> None:
        pass

    def collect(self, vectors: Sequence[Tensor]) -> None:
        pass


class InTurn:
    """All ranks of a worker in one process, one after the other, for a replay. The last one has the sums, and speaks.

    Two ranks give the bits of two processes, for a sum of two does not depend on their order. Of more ranks the order
    in which a collective adds is its own, so that a replay agrees to rounding.
    """

    def __init__(self, size: int) -> None:
        self.rank = 0
        self.size = size
        self._sums: list[Tensor] = []
        self._place = 0

    @property
    def speaks(self) -> bool:
        return self.rank == self.size - 1

    def begin(self, rank: int) -> None:
        """What follows is the work of this rank."""
        self.rank, self._place = rank, 0

    def total(self, numbers: Tensor) -> None:
        self.collect([numbers])

    def collect(self, vectors: Sequence[Tensor]) -> None:
        for vector in vectors:
            if self.rank == 0:
                self._sums[self._place :] = [vector.clone()]
            else:
                self._sums[self._place].add_(vector)
                vector.copy_(self._sums[self._place])
            self._place += 1


def share(begin: int, end: int, ranks: Ranks) -> slice:
    """The part of a block's samples that is a rank's own."""
    total, rank, size = end - begin, ranks.rank, ranks.size
    return slice(begin + total * rank // size, begin + total * (rank + 1) // size)


class RankSums:
    """Sums over the ranks of a worker: of gradients, of the float buffers, and of numbers about them."""

    def __init__(self, layout: Layout, device: torch.device, ranks: Ranks) -> None:
        self._ranks = ranks
        self._sums = StagedSlot(layout, device)

    def gradients(self, gradients: Sequence[Tensor | None], factor: float) -> list[Tensor]:
        """On the rank that speaks the sums over all ranks, times a factor."""
        for own, gradient in zip(self._sums.parameters, gradients, strict=True):
            if gradient is None:
                own.zero_()
            else:
                own.copy_(gradient)
        self._ranks.collect(self._sums.vectors)
        if factor != 1.0:
            for vector in self._sums.vectors:
                vector.mul_(factor)
        return self._sums.parameters

    def buffers(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """On the rank that speaks the means over all ranks; its own where these are no real numbers."""
        for own, buffer in zip(self._sums.buffers, buffers, strict=True):
            own.copy_(buffer)
        real = [own for own in self._sums.buffers if own.is_floating_point()]
        self._ranks.collect(real)
        for own in real:
            own.div_(self._ranks.size)
        return self._sums.buffers


def parallelized(
    parallel: Parallel, model: nn.Module, mesh: Any, layout: Layout, device: torch.device
) -> tuple[nn.Module, list[nn.Parameter]]:
    """What a task's ``parallel`` makes of the model on this rank, and its trained parameters in the model's order."""
    module = parallel(model, mesh)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"parallel returned {type(module).__name__}: let it return the module that is trained")
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if [each.shape for each in parameters] != layout.shapes:
        raise ConfigError(
            f"parallel returned a module with {len(parameters)} trained parameters of other shapes than the model's "
            f"{len(layout.shapes)}: wrap or shard the model, and leave its parameters as they are"
        )
    if elsewhere := {str(each.device) for each in parameters if each.device != device}:
        raise ConfigError(
            f"parallel returned a module on {', '.join(sorted(elsewhere))}, and this rank computes on {device}: call "
            "model.to(mesh.device_type) before it is wrapped"
        )
    return module, parameters


def described(parameters: Sequence[nn.Parameter]) -> list[str]:
    """What ranks have to agree on."""
    return [f"{str(each.dtype).removeprefix('torch.')} of shape {list(each.shape)}" for each in parameters]


class Sharded:
    """Parameters are what ``Task(parallel=)`` made of them: whole on every rank (DDP), or sharded (FSDP2).

    A sharded parameter is a ``DTensor``. Each rank copies its part of the weights from the arena, and writes its part
    of the gradient to the slot, so that no rank ever holds all of either. What every rank has whole is written by the
    rank that speaks for the worker.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], transfers: Transfers, buffers: Sequence[Tensor], *, speaks: bool
    ) -> None:
        self.device = transfers.device
        self._parameters = parameters
        self._transfers = transfers
        self._pinned = PinnedMemory(transfers.device)
        self._buffers = buffers
        self._speaks = speaks
        self._parts = [_part(parameter) for parameter in parameters]
        self._version: int | None = None

    def download(self, source: Slot, version: int | None) -> None:
        with torch.no_grad():
            if version is None or version != self._version:
                self._pinned.pin(source.memory)
                for parameter, part, values in zip(self._parameters, self._parts, source.parameters, strict=True):
                    _local(parameter.data).copy_(values[part], non_blocking=True)
                self._version = version
            for buffer, values in zip(self._buffers, source.buffers, strict=True):
                buffer.copy_(values)

    def hand_in(self, slot: Slot, gradients: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
        self._pinned.pin(slot.memory)
        with self._transfers.outgoing():
            for own, part, gradient in zip(slot.parameters, self._parts, gradients, strict=True):
                if _is_sharded(gradient) or self._speaks:
                    own[part].copy_(_local(gradient), non_blocking=True)
            if self._speaks:
                for buffer, values in zip(slot.buffers, buffers, strict=True):
                    buffer.copy_(values, non_blocking=True)

    def finish(self) -> None:
        self._transfers.finish()


def _is_sharded(tensor: Tensor) -> bool:
    """Is it a ``DTensor``? Its module takes seconds to load, and is loaded if there are any."""
    return hasattr(tensor, "to_local")


def _local(tensor: Any) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if _is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def _part(parameter: Any) -> Any:
    """Which part of a parameter this rank holds: an index into the whole."""
    if not _is_sharded(parameter):
        return ...
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    return tuple(slice(begin, begin + size) for begin, size in zip(offset, shape, strict=True))
