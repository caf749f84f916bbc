"""What a run was made of: which mini-batches each update used, at which versions of the model, with which weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

import paceline as pl
from paceline.core.messages import Start, Step, Ticket
from paceline.data.batches import Batches
from paceline.data.partition import Indices


@dataclass(frozen=True)
class Noted:
    """Mini-batches in the order in which they were drawn."""

    drawn: list[Indices] = field(default_factory=list, repr=False)

    def open(self, shards: Sequence[Indices], batch_size: int, seed: int) -> Batches:
        return NotedBatches(pl.Shuffled().open(shards, batch_size, seed), self.drawn)


class NotedBatches:
    def __init__(self, batches: Batches, drawn: list[Indices]) -> None:
        self._batches, self._drawn = batches, drawn

    def draw(self, worker: int) -> Indices:
        self._drawn.append(self._batches.draw(worker))
        return self._drawn[-1]

    def put_back(self, worker: int, indices: Indices) -> None:
        self._batches.put_back(worker, indices)


class Used(NamedTuple):
    """One contribution to an update."""

    weight: Fraction
    batches: list[Indices]  # one, or those of a piece of local training
    version: int


def steps_of(run: pl.Run, drawn: Sequence[Indices]) -> Iterator[list[Used]]:
    """The updates of a run, from its trace and the mini-batches that were drawn for it."""
    batches = iter(drawn)
    given: dict[Ticket, list[Indices]] = {}
    for fact in run.trace:
        if isinstance(fact, Start):
            given[fact.ticket] = list(islice(batches, fact.ticket.work.mini_batches))  # nothing after the last update
        elif isinstance(fact, Step):
            yield [Used(weight, given[ticket], ticket.version) for ticket, weight in fact.weights.items()]
