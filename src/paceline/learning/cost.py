"""How long work takes that is more than one gradient, and what all of it took together. Without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple


class Cost(NamedTuple):
    """What a worker takes for a ticket: messages in bytes, mini-batches trained on, and as many only passed forward."""

    download: int
    mini_batches: int
    forwards: float
    upload: int


class Times(NamedTuple):
    """The same in seconds, in the order in which they pass."""

    download: float
    relabelling: float
    compute: float
    upload: float


def times_of(cost: Cost, mini_batch: Callable[[], float], message: Callable[[int], float]) -> Times:
    """What a cost comes to, where a mini-batch and a message of so many bytes take these seconds.

    A worker labels as fast as it trains for this ticket.
    """
    compute = fsum(mini_batch() for _ in range(cost.mini_batches))
    download = message(cost.download) if cost.download else 0.0
    return Times(download, cost.forwards * compute / cost.mini_batches, compute, message(cost.upload))


@dataclass(slots=True)
class Costs:
    """What the work that arrived took, in seconds of all workers together."""

    compute: float = 0.0
    relabelling: float = 0.0
    communication: float = 0.0

    def add(self, times: Times) -> None:
        self.compute += times.compute
        self.relabelling += times.relabelling
        self.communication += times.download + times.upload
