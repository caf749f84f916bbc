"""The shards of a server as actors: tensors go between them and the agents, as references pass through the server."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from paceline.core.errors import PacelineError
from paceline.fleets.ray.connection import ActorGone, ActorHandle
from paceline.fleets.ray.wire import Bytes, WireFormat
from paceline.learning.arena.arena import Layout, Slot
from paceline.learning.gradients.sharded import Pieces, range_of
from paceline.learning.gradients.sharding import Bounds, ParameterShard, ShardSettings, Squares

ANSWERED_WITHIN = 300.0  # seconds: models are large, and links slow


class Shard:
    """The actor of one shard."""

    def begin(self, settings: ShardSettings, layout: Layout, wire: torch.dtype | None, values: Bytes) -> None:
        self._bounds = settings.bounds
        self._exact, self._wire = WireFormat(layout, None), WireFormat(layout, wire)
        self._shard = ParameterShard(settings, self._exact.unpack_piece(values, settings.bounds))

    def add(self, *partials: Bytes) -> Squares:
        """Add up what machines hand in."""
        return self._shard.add([self._wire.unpack_piece(each, self._bounds) for each in partials])

    def step(
        self, groups: Sequence[Mapping[str, Any]], scale: float | None, unused: Collection[int], check: bool
    ) -> Any:
        """Step. Returns whether all values are finite, and the new values as machines get them."""
        self._before = [value.clone() for value in self._shard.values] if check else []
        finite = self._shard.step(groups, scale, unused, check=check)
        return [finite, self.weights()]

    def undo(self) -> None:
        """Another shard's step was not finite."""
        self._shard.undo(self._before)

    def weights(self) -> Bytes:
        """The values as machines get them."""
        return self._wire.packed(self._shard.values)

    def values(self) -> Bytes:
        return self._exact.packed(self._shard.values)

    def optimizer_state(self) -> dict[int, dict[str, Any]]:
        return self._shard.optimizer_state()

    def free(self) -> None:
        """Free the memory, until the next run begins."""
        self._shard = self._before = None  # type: ignore[assignment]

    def restore(self, values: Bytes, state: Mapping[int, Mapping[str, Any]]) -> None:
        self._shard.restore(self._exact.unpack_piece(values, self._bounds), state)


class RemoteShards:
    """All shards, as the server asks them."""

    def __init__(self, actors: Sequence[ActorHandle], layout: Layout, wire: torch.dtype | None) -> None:
        self.number = len(actors)
        self.actors = actors
        self._layout = layout
        self._dtype = wire
        self._exact = WireFormat(layout, None)
        self._present: Pieces = ()

    def begin(self, settings: Sequence[ShardSettings], model: Slot, bounds: Sequence[Bounds]) -> None:
        values = [self._exact.packed(range_of(model.vectors, each)) for each in bounds]
        self._ask("begin", [(one, self._layout, self._dtype, own) for one, own in zip(settings, values, strict=True)])
        self._present = self._references("weights")

    def add(self, partials: Sequence[Pieces]) -> Sequence[Squares]:
        by_shard = [tuple(pieces[shard] for pieces in partials) for shard in range(self.number)]
        return self._ask("add", by_shard)

    def step(
        self, groups: Sequence[Mapping[str, Any]], scale: float | None, unused: Collection[int], check: bool
    ) -> bool:
        made = [
            actor.ask_references("step", groups, scale, unused, check, results=2, group="") for actor in self.actors
        ]
        if check and not all(self._got([finite for finite, _ in made])):
            self._ask("undo", [()] * self.number)
            return False
        self._present = [weights for _, weights in made]
        return True

    def weights(self) -> Pieces:
        return self._present

    def fetch(self, model: Slot, bounds: Sequence[Bounds]) -> None:
        for values, each in zip(self._ask("values", [()] * self.number), bounds, strict=True):
            for own, value in zip(range_of(model.vectors, each), self._exact.unpack_piece(values, each), strict=True):
                own.copy_(value)

    def optimizer_state(self) -> Sequence[Mapping[int, Mapping[str, Any]]]:
        return self._ask("optimizer_state", [()] * self.number)

    def restore(self, model: Slot, bounds: Sequence[Bounds], state: Mapping[int, Mapping[str, Any]]) -> None:
        values = [self._exact.packed(range_of(model.vectors, each)) for each in bounds]
        self._ask("restore", [(own, state) for own in values])
        self._present = self._references("weights")

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The results of a method of every shard."""
        return self._got(self._references(method, arguments))

    def _references(self, method: str, arguments: Sequence[tuple[Any, ...]] = ()) -> list[Any]:
        every = arguments or [()] * self.number
        return [
            actor.ask_references(method, *each, results=1, group="")[0]
            for actor, each in zip(self.actors, every, strict=True)
        ]

    def _got(self, references: Sequence[Any]) -> list[Any]:
        found: list[Any] | ActorGone = self.actors[0].results(references, ANSWERED_WITHIN)
        if isinstance(found, ActorGone):
            raise PacelineError(
                f"a shard of the server {found.reason}, and its weights are lost: continue from the last checkpoint "
                "with resume=True (--resume)"
            )
        return found
