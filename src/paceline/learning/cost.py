"""How long a piece of work takes that is more than one gradient, and what all of them took together."""

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple


class Bill(NamedTuple):
    """What a piece of work takes: messages in bytes, mini-batches trained on, and as many only passed forward."""

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


def times_of(bill: Bill, mini_batch: Callable[[], float], message: Callable[[int], float]) -> Times:
    """What a bill comes to, where a mini-batch and a message of so many bytes take these seconds.

    A worker labels as fast as it trains in this piece.
    """
    compute = fsum(mini_batch() for _ in range(bill.mini_batches))
    download = message(bill.download) if bill.download else 0.0
    return Times(download, bill.forwards * compute / bill.mini_batches, compute, message(bill.upload))


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
