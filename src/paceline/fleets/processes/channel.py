"""How the server and one worker talk: a few numbers in shared memory, and a descriptor to wake the worker by.

The server takes the order away before it changes what belongs to it, and puts the new one there last; the worker reads
the order before and after the rest. So an order that is replaced while it is being read is never half old, half new.
A worker that waits looks at the order for some time, then sleeps until the descriptor wakes it. The server wakes it
always: a worker that was awake anyway only looks once more.
"""

import os
import platform
import select
import struct
import time
from dataclasses import dataclass
from typing import NamedTuple

from paceline.core.messages import Ticket
from paceline.data.partition import Indices
from paceline.fleets.processes.memory import SharedMemory
from paceline.learning.arena.arena import Brought

SPIN = 500e-6  # seconds that a worker keeps looking: about as long as the server takes for an update of a small model
IN_ORDER = platform.machine() in ("x86_64", "AMD64")  # elsewhere stores may be seen in another order: do not spin
TEXT = 16_384  # bytes for a traceback
ORDER, ROW, SOURCE, UNITS, SAMPLES, SEED, HALT, RECALL, SECONDS, TAKEN, BEAT, SPENT = range(12)
LOSSES, LOSS_SUM, NORM, LOSS_WEIGHT, UNUSED = range(12, 17)
WORDS = 24
NOTHING, QUIT = 0, -1

RECORD = struct.Struct("<iiq")  # worker, units done, serial number: shorter than what a pipe takes as one piece
FAILED, READY = -1, -2  # instead of units


class Order(NamedTuple):
    """One ticket, as a worker is told of it."""

    serial: int
    units: int
    row: int  # the slot to hand in
    source: int  # the slot with the weights
    indices: Indices
    seed: int
    seconds: float  # how long it is made to take at least


@dataclass(frozen=True)
class Shape:
    """The size of all mailboxes of a run."""

    workers: int
    batch_size: int

    @property
    def stride(self) -> int:
        return -(-(8 * (WORDS + self.batch_size) + TEXT) // 128) * 128

    @property
    def bytes(self) -> int:
        return self.workers * self.stride


class Channel:
    """One worker's."""

    def __init__(self, memory: SharedMemory, shape: Shape, worker: int, wake: int) -> None:
        begin = worker * shape.stride
        end_of_words = begin + 8 * WORDS
        end_of_indices = end_of_words + 8 * shape.batch_size
        self.wake = wake
        self._words = memory.bytes[begin:end_of_words].cast("q")
        self._reals = memory.bytes[begin:end_of_words].cast("d")
        self._indices = memory.tensor()[end_of_words:end_of_indices].numpy().view("int64")
        self._text = memory.bytes[end_of_indices : end_of_indices + TEXT]

    # The server's side.

    def post(self, order: Order) -> None:
        words = self._words
        words[ORDER] = NOTHING
        samples = len(order.indices)
        words[ROW], words[SOURCE], words[UNITS], words[SAMPLES] = order.row, order.source, order.units, samples
        words[SEED] = order.seed
        self._reals[SECONDS] = order.seconds
        self._indices[:samples] = order.indices
        words[ORDER] = order.serial + 1

    def ring(self) -> None:
        """Wake the worker, if it sleeps."""
        os.eventfd_write(self.wake, 1)

    def halt(self, ticket: Ticket) -> None:
        self._words[HALT] = ticket.serial + 1
        os.eventfd_write(self.wake, 1)

    def recall(self, ticket: Ticket) -> None:
        self._words[RECALL] = ticket.serial + 1

    def quit(self) -> None:
        self._words[ORDER] = QUIT
        self._words[HALT] = QUIT
        os.eventfd_write(self.wake, 1)

    def clear(self) -> None:
        """For the next process: whatever was left for the last one is gone."""
        self._words[ORDER] = NOTHING
        self._words[HALT] = NOTHING

    @property
    def taken(self) -> int:
        """Changes whenever the worker takes another order: a sign of life from those who are never let finish."""
        return self._words[TAKEN]

    @property
    def beaten(self) -> int:
        """Changes whenever the worker begins another block, or another mini-batch of a piece of many."""
        return self._words[BEAT]

    @property
    def brought(self) -> Brought:
        """What is known of the row that was handed in last."""
        words, reals = self._words, self._reals
        return Brought(words[LOSSES], reals[LOSS_SUM], reals[NORM], reals[LOSS_WEIGHT], words[UNUSED])

    @property
    def spent(self) -> float:
        """The seconds that the worker itself took for what it handed in last."""
        return self._reals[SPENT]

    @property
    def complaint(self) -> str:
        """What the worker had to say before it failed."""
        return bytes(self._text).rstrip(b"\0").decode(errors="replace")

    # The worker's side.

    def take(self, last: int, spin: float) -> Order | None:
        """Wait for another order than the last one (a serial number); nothing when it is to quit."""
        words = self._words
        until = time.perf_counter() + spin
        while True:
            order = words[ORDER]
            if order == QUIT:
                return None
            if order not in (NOTHING, last + 1):
                found = self._read(order)
                if words[ORDER] == order:
                    words[TAKEN] = order
                    return found
            elif time.perf_counter() >= until:
                os.eventfd_read(self.wake)
            else:
                os.sched_yield()  # perhaps it is the server that needs the core

    def _read(self, order: int) -> Order:
        words = self._words
        return Order(
            order - 1, words[UNITS], words[ROW], words[SOURCE], self._indices[: words[SAMPLES]].copy(), words[SEED],
            self._reals[SECONDS],
        )  # fmt: skip

    def halted(self, serial: int) -> bool:
        halt = self._words[HALT]
        return halt in (serial + 1, QUIT)

    def recalled(self, serial: int) -> bool:
        return self._words[RECALL] == serial + 1

    def pause(self, seconds: float, serial: int) -> None:
        """Be slow, unless halted."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0 and not self.halted(serial):
            if select.select([self.wake], [], [], left)[0]:
                os.eventfd_read(self.wake)

    def beat(self, block: int) -> None:
        self._words[BEAT] = block

    def bring(self, brought: Brought) -> None:
        words, reals = self._words, self._reals
        words[LOSSES], reals[LOSS_SUM], reals[NORM], reals[LOSS_WEIGHT], words[UNUSED] = brought

    def count_seconds(self, seconds: float) -> None:
        self._reals[SPENT] = seconds

    def complain(self, text: str) -> None:
        """The end of it, where a traceback says what was wrong."""
        end = text.encode(errors="replace")[-TEXT:]
        self._text[:] = end.ljust(TEXT, b"\0")
