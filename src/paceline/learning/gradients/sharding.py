r"""A server in several pieces: each shard has a range of the parameters, and its piece of the optimizer.

The flat parameters are cut into ranges of whole blocks. A machine cuts its sum of gradients in the same way and hands
each range to its shard; a shard adds the ranges of all machines up, steps, and hands its range of the new version to
the machines. Nothing but numbers passes through the server: the squares of each block, from which it computes the norm.

Only optimizers that work element by element can be cut, and then the bits do not depend on the number of shards: sums,
steps and squares of blocks are the same operations on the same numbers, and the squares are added up exactly.
"""

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from paceline.core.errors import ConfigError
from paceline.learning.arena.arena import Layout
from paceline.learning.optimizers import step_of

ELEMENTWISE = (SGD, Adam, AdamW, RMSprop, Adagrad)
BLOCKS = 256  # of a vector, at least, if it has as many elements: the most shards that can be the same to the bit
LARGEST_BLOCK = 1 << 14  # elements; a larger sum would be split up among threads

Bounds = tuple[tuple[int, int], ...]  # of each vector: the elements of one shard
Squares = list[NDArray[np.float64]]  # of each vector: the sums of squares of its blocks


def block_of(elements: int) -> int:
    """The elements of a block in a vector of so many: a power of two, whatever the number of shards."""
    return min(LARGEST_BLOCK, 1 << max(0, (elements // BLOCKS).bit_length() - 1))


def bounds_of(layout: Layout, shards: int) -> list[Bounds]:
    """Which elements of each vector every shard has."""
    total = sum(place.numel for place in layout.vectors)
    if shards > total:
        raise ConfigError(f"shards={shards} are more than the {total} parameters of the model: at most {total}")
    cuts = []
    for place in layout.vectors:
        block = block_of(place.numel)
        blocks = -(-place.numel // block)
        cuts.append([min(place.numel, blocks * shard // shards * block) for shard in range(shards + 1)])
    return [tuple((cut[shard], cut[shard + 1]) for cut in cuts) for shard in range(shards)]


def squares(vector: Tensor, block: int) -> NDArray[np.float64]:
    """The sum of squares of each block, of a vector that begins with a block."""
    if vector.is_complex():
        vector, block = torch.view_as_real(vector).flatten(), 2 * block
    whole = len(vector) // block * block
    parts = (
        [vector[:whole].view(-1, block), vector[whole:].view(1, -1)]
        if whole < len(vector)
        else [vector.view(-1, block)]
    )
    sums = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64).square_() for part in parts if part.numel()]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *sums]).numpy()


def norm_of(found: Sequence[Squares]) -> float:
    """The norm of a gradient whose blocks have these squares, by shard; infinite or NaN if it is not finite."""
    every = np.concatenate([each for shard in found for each in shard])
    total = float(every.sum())
    return math.sqrt(math.fsum(every.tolist())) if math.isfinite(total) else total if total > 0 else math.nan


def check_elementwise(optimizer: Optimizer, shards: int) -> None:
    """Raise ``ConfigError`` if an optimizer cannot be cut into pieces."""
    if type(optimizer) not in ELEMENTWISE:
        names = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise ConfigError(
            f"shards={shards} needs an optimizer that works element by element, and {type(optimizer).__name__} is not "
            f"known to: use one of {names}, or shards=1"
        )


@dataclass(frozen=True)
class ShardSettings:
    """What a shard has to know: where parameters are in its vectors, and how they are moved."""

    kind: type[Optimizer]
    groups: Sequence[Mapping[str, Any]]  # the settings of each parameter group
    group_of: Sequence[int]  # of each parameter; -1 if the optimizer has not got it
    slices: Sequence[tuple[int, int, int]]  # of each parameter: its vector, its begin and end there
    bounds: Bounds
    blocks: Sequence[int]  # the elements of a block of each vector


def settings_of(optimizer: Optimizer, parameters: Sequence[Tensor], layout: Layout, bounds: Bounds) -> ShardSettings:
    """The settings of the shard that has these elements."""
    groups = optimizer.param_groups
    group_of = {id(each): number for number, group in enumerate(groups) for each in group["params"]}
    ends = [begin + shape.numel() for (_, begin), shape in zip(layout.slices, layout.shapes, strict=True)]
    return ShardSettings(
        type(optimizer),
        hyperparameters(groups),
        [group_of.get(id(each), -1) for each in parameters],
        [(vector, begin, end) for (vector, begin), end in zip(layout.slices, ends, strict=True)],
        bounds,
        [block_of(place.numel) for place in layout.vectors],
    )


def hyperparameters(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a step depends on, without the parameters."""
    return [{name: value for name, value in group.items() if name not in ("params", "param_names")} for group in groups]


class ParameterShard:
    """One range of the parameters, and its piece of the optimizer."""

    def __init__(self, settings: ShardSettings, values: Sequence[Tensor]) -> None:
        self._settings = settings
        self._values = [value.clone() for value in values]
        self._gradients = [torch.zeros_like(value) for value in self._values]
        self._pieces: dict[int, nn.Parameter] = {}  # of each parameter that has elements here
        self._grads: dict[int, Tensor] = {}
        for number, (vector, begin, end) in enumerate(settings.slices):
            first, last = settings.bounds[vector]
            here = slice(max(begin, first) - first, min(end, last) - first)
            if here.start < here.stop and settings.group_of[number] >= 0:
                self._pieces[number] = nn.Parameter(self._values[vector][here])
                self._grads[number] = self._gradients[vector][here]
        made = [
            {**group, "params": [p for number, p in self._pieces.items() if settings.group_of[number] == which]}
            for which, group in enumerate(settings.groups)
        ]
        make: Callable[[Any], Optimizer] = settings.kind
        self._optimizer = make(made) if self._pieces else None
        self._step = None if self._optimizer is None else step_of(self._optimizer)

    @property
    def values(self) -> list[Tensor]:
        return self._values

    def add(self, partials: Sequence[Sequence[Tensor]]) -> Squares:
        """Add up what the machines handed in, in their order. Returns the squares of the blocks."""
        for number, vectors in enumerate(partials):
            for total, vector in zip(self._gradients, vectors, strict=True):
                total.add_(vector) if number else total.copy_(vector)
        return [squares(each, block) for each, block in zip(self._gradients, self._settings.blocks, strict=True)]

    def step(
        self, groups: Sequence[Mapping[str, Any]], scale: float | None, unused: Collection[int], *, check: bool
    ) -> bool:
        """Step along the sum. Returns false if that is not finite, where it is checked; then nothing has moved."""
        if self._optimizer is None or self._step is None:
            return True
        before = [value.clone() for value in self._values] if check else None
        for own, group in zip(self._optimizer.param_groups, groups, strict=True):
            own.update(group)
        if scale is not None:
            for gradient in self._gradients:
                gradient.mul_(scale)
        for number, piece in self._pieces.items():
            piece.grad = None if number in unused else self._grads[number]
        self._step()
        if before is None or all(bool(value.isfinite().all()) for value in self._values):
            return True
        self.undo(before)
        return False

    def undo(self, before: Sequence[Tensor]) -> None:
        for value, former in zip(self._values, before, strict=True):
            value.copy_(former)

    def optimizer_state(self) -> dict[int, dict[str, Any]]:
        """The state of each parameter's piece, by the number of the parameter."""
        state = {} if self._optimizer is None else self._optimizer.state
        return {number: dict(state[piece]) for number, piece in self._pieces.items() if piece in state}

    def restore(self, values: Sequence[Tensor], state: Mapping[int, Mapping[str, Any]]) -> None:
        """Take values, and the state of whole parameters, of which this shard keeps its piece."""
        self.undo(values)
        if self._optimizer is None:
            return
        self._optimizer.state.clear()
        for number, piece in self._pieces.items():
            if number in state:
                vector, begin, end = self._settings.slices[number]
                first, last = self._settings.bounds[vector]
                here = slice(max(begin, first) - begin, min(end, last) - begin)
                self._optimizer.state[piece] = {
                    name: copy.deepcopy(value.flatten()[here] if _is_elementwise(value, end - begin) else value)
                    for name, value in state[number].items()
                }


def joined_state(
    pieces: Sequence[Mapping[int, Mapping[str, Any]]], shapes: Sequence[torch.Size]
) -> dict[int, dict[str, Any]]:
    """The optimizer's state of whole parameters, from that of their pieces in the order of shards."""
    found: dict[int, dict[str, Any]] = {}
    for number, shape in enumerate(shapes):
        own = [piece[number] for piece in pieces if number in piece]
        if own:
            found[number] = {
                name: torch.cat([each[name] for each in own]).view(shape)
                if isinstance(value, Tensor) and value.dim() == 1
                else value
                for name, value in own[0].items()
            }
    return found


def _is_elementwise(value: Any, elements: int) -> bool:
    """Whether a state has one value for each element; a count of steps has none of these shapes."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.numel() == elements
