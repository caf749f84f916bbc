"""Gradients on several machines whose server is in several pieces: tensors go from machines to shards and back."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from paceline.core.messages import Ticket
from paceline.core.stateful import State
from paceline.learning.arena.arena import Layout, Slot
from paceline.learning.contributions import Evaluated, Weights
from paceline.learning.gradients.distributed import DistributedGradients, Machine
from paceline.learning.gradients.held import LEVELS, Parts, RowEnd
from paceline.learning.gradients.sharding import (
    Bounds,
    ShardSettings,
    Squares,
    bounds_of,
    check_elementwise,
    hyperparameters,
    joined_state,
    norm_of,
    settings_of,
)
from paceline.learning.model_state import ModelState

Pieces = Sequence[Any]  # of a sum, one for each shard: whatever the transport makes of them


class ShardedMachine(Machine, Protocol):
    """A machine that exchanges ranges with shards."""

    def ask_pieces(self, parts: Parts, ends: Sequence[int], /) -> tuple[Pieces, Callable[[], Sequence[RowEnd]]]:
        """Ask for a sum of rows, in pieces for the shards, and for what is besides a gradient in some slots."""
        ...

    def deliver_pieces(self, slot: int, pieces: Pieces, model: Slot, /) -> None:
        """Put the weights of shards, and the buffers of a model, into a slot."""
        ...


class Shards(Protocol):
    """All shards of a server, to be asked."""

    @property
    def number(self) -> int: ...

    def begin(self, settings: Sequence[ShardSettings], model: Slot, bounds: Sequence[Bounds], /) -> None:
        """Give each shard its range of a model."""
        ...

    def add(self, partials: Sequence[Pieces], /) -> Sequence[Squares]:
        """Let the shards add up what machines hand in, in the order of machines."""
        ...

    def step(
        self, groups: Sequence[Mapping[str, Any]], scale: float | None, unused: Collection[int], check: bool, /
    ) -> bool:
        """Step; whether all values are finite, where that is to be checked. If they are not, no shard has moved."""
        ...

    def weights(self) -> Pieces:
        """The present weights, one piece for each shard."""
        ...

    def fetch(self, model: Slot, bounds: Sequence[Bounds], /) -> None:
        """Bring the present weights here."""
        ...

    def optimizer_state(self) -> Sequence[Mapping[int, Mapping[str, Any]]]: ...

    def restore(self, model: Slot, bounds: Sequence[Bounds], state: Mapping[int, Mapping[str, Any]], /) -> None: ...


class ShardedGradients(DistributedGradients):
    """The server's side: it decides, and its shards hold the weights."""

    def __init__(
        self, state: ModelState, layout: Layout, logged: Sequence[str], machines: Sequence[ShardedMachine],
        shards: Shards, *, levels: int = LEVELS,
    ) -> None:  # fmt: skip
        super().__init__(state, layout, logged, machines, levels=levels)
        self._sharded_machines = machines
        self._shards = shards
        self._bounds = bounds_of(layout, shards.number)
        self._fetched = True  # are the weights here the present ones?
        self._attached = True

    # What the server's optimizer leaves to the shards.

    def begin(self, optimizer: Optimizer) -> None:
        """Hand the model and the optimizer's settings to the shards."""
        check_elementwise(optimizer, self._shards.number)
        settings = [settings_of(optimizer, self._state.parameters, self.layout, each) for each in self._bounds]
        self._shards.begin(settings, self._model, self._bounds)

    def apply(self, optimizer: Optimizer, scale: float | None, unused: Collection[int], *, check: bool) -> bool:
        """Step along the sum that was evaluated last. Returns false if that is not finite; then nothing has moved."""
        self._fetched = False
        finite = self._shards.step(hyperparameters(optimizer.param_groups), scale, unused, check)
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what schedulers look at
        return finite

    def fetch(self) -> None:
        """Bring the present weights to the model of this process."""
        if not self._fetched and self._attached:
            self._shards.fetch(self._model, self._bounds)
            self._fetched = True

    def gather(self, optimizer: Optimizer) -> None:
        """Give the optimizer of this process the state of all shards, for a checkpoint."""
        joined = joined_state(self._shards.optimizer_state(), self.layout.shapes)
        optimizer.state.clear()
        for number, state in joined.items():
            optimizer.state[self._state.parameters[number]] = state

    def scatter(self, optimizer: Optimizer) -> None:
        """Give the shards the model and the optimizer's state of this process, of a checkpoint."""
        every = enumerate(self._state.parameters)
        known = {number: dict(optimizer.state[each]) for number, each in every if each in optimizer.state}
        self._shards.restore(self._model, self._bounds, known)
        optimizer.state.clear()
        self._fetched = True

    def detach(self) -> None:
        self.fetch()
        self._attached = False
        super().detach()

    # The same as without shards, with pieces in place of tensors.

    def _deliver(self, machine: Machine, slot: int) -> None:
        for each in self._sharded_machines:
            if each is machine:
                each.deliver_pieces(slot, self._shards.weights(), self._model)

    def _sum(self, weights: Weights, keep: Collection[Ticket]) -> Evaluated:
        asked = []
        for which, some in self._by_machine(weights):
            wanted = self._wanted_ends(some)
            slots = [self._promises[ticket].slot for ticket in wanted]
            parts = self._parts(some, self._books[which].first_row)
            asked.append((wanted, *self._sharded_machines[which].ask_pieces(parts, slots)))
        result = Evaluated()
        for wanted, _, answer in asked:
            self._report_all(result, weights, wanted, answer())
        result.unused = self._unused(weights)
        if asked:
            result.norm = norm_of(self._shards.add([pieces for _, pieces, _ in asked]))
            result.finite = math.isfinite(result.norm)
        return result

    def state(self) -> State:
        self.fetch()
        return super().state()


def range_of(vectors: Sequence[torch.Tensor], bounds: Bounds) -> list[torch.Tensor]:
    """The elements of one shard."""
    return [vector[begin:end] for vector, (begin, end) in zip(vectors, bounds, strict=True)]
