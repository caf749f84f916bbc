"""The channel between the server and one worker: a few numbers in shared memory, and an eventfd that wakes the worker.

An order is replaced without locks. The server clears its number first, then writes the other fields, then the new
number; the worker reads the number before and after the other fields. So a worker never sees half of an old order and
half of a new one. A waiting worker polls for a short time, then sleeps on the eventfd. The server always writes to the
eventfd: a worker that was awake anyway only looks once more.
"""

import os
import platform
import struct
import time
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import NamedTuple

from paceline.data.partition import Indices
from paceline.fleets.processes.memory import SharedMemory
from paceline.learning.arena.arena import Report

SPIN = 500e-6  # seconds that a worker polls: about as long as the server takes for an update of a small model
IN_ORDER = platform.machine() in ("x86_64", "AMD64")  # elsewhere stores may be seen in another order: do not spin
MILLISECOND = 1e-3
ERROR_BYTES = 16_384  # for a traceback
ORDER, SLOT, SOURCE, UNITS, SAMPLES, SEED, HALT, RECALL, MIN_SECONDS, RECEIVED, HEARTBEAT, SECONDS = range(12)
LOSSES, LOSS_SUM, NORM, LOSS_WEIGHT, UNUSED, VERSION = range(12, 18)
WORDS = 24
NONE, QUIT = 0, -1

# What workers write to the pipe that all of them share: worker, units done, serial number of the ticket. It is shorter
# than ``PIPE_BUF``, so writes are atomic.
RECORD = struct.Struct("<iiq")
FAILED, READY = -1, -2  # instead of units
LEAVING, STAYING = -3, -4  # a machine will be gone, by a time of ``time.monotonic`` in milliseconds; or is not
UNKNOWN = 2**62  # instead of that time


class Order(NamedTuple):
    """One ticket, as it is sent to a worker."""

    serial: int
    units: int
    slot: int  # the slot of the arena that the result goes to
    source: int  # the slot with the weights
    indices: Indices
    seed: int
    seconds: float  # the worker takes at least this long
    version: int | None = None  # of the weights; where it is that of the last order, so are the weights


@dataclass(frozen=True)
class ChannelLayout:
    """The size of the memory that holds all channels of a run."""

    workers: int
    batch_size: int

    @property
    def stride(self) -> int:
        return -(-(8 * (WORDS + self.batch_size) + ERROR_BYTES) // 128) * 128

    @property
    def bytes(self) -> int:
        return self.workers * self.stride


class Channel:
    """The channel of one worker; the server and the worker each have an object of this class."""

    def __init__(self, memory: SharedMemory, layout: ChannelLayout, worker: int, eventfd: int) -> None:
        begin = worker * layout.stride
        end_of_words = begin + 8 * WORDS
        end_of_indices = end_of_words + 8 * layout.batch_size
        self.eventfd = eventfd
        self._words = memory.bytes[begin:end_of_words].cast("q")
        self._reals = memory.bytes[begin:end_of_words].cast("d")
        self._indices = memory.tensor()[end_of_words:end_of_indices].numpy().view("int64")
        self._error = memory.bytes[end_of_indices : end_of_indices + ERROR_BYTES]

    # The server's side.

    def send(self, order: Order) -> None:
        """Write an order; ``notify`` wakes the worker."""
        words = self._words
        words[ORDER] = NONE
        samples = len(order.indices)
        words[SLOT], words[SOURCE], words[UNITS], words[SAMPLES] = order.slot, order.source, order.units, samples
        words[SEED] = order.seed
        words[VERSION] = -1 if order.version is None else order.version
        self._reals[MIN_SECONDS] = order.seconds
        self._indices[:samples] = order.indices
        words[ORDER] = order.serial + 1

    def notify(self) -> None:
        """Wake the worker, if it sleeps."""
        os.eventfd_write(self.eventfd, 1)

    def halt(self, serial: int) -> None:
        self._words[HALT] = serial + 1
        os.eventfd_write(self.eventfd, 1)

    def recall(self, serial: int) -> None:
        self._words[RECALL] = serial + 1

    def quit(self) -> None:
        self._words[HALT] = QUIT  # first: see ``send_unless_quit``
        self._words[ORDER] = QUIT
        os.eventfd_write(self.eventfd, 1)

    def send_unless_quit(self, order: Order) -> None:
        """Write an order, and wake the worker; one that another thread has told to quit meanwhile still quits."""
        self.send(order)
        if self._words[HALT] == QUIT:
            self._words[ORDER] = QUIT
        self.notify()

    def reset(self) -> None:
        """Remove what was sent to the last process, before another one starts."""
        self._words[ORDER] = NONE
        self._words[HALT] = NONE

    @property
    def last_received(self) -> int:
        """Changes whenever the worker receives another order: a sign of life of one that is always halted."""
        return self._words[RECEIVED]

    @property
    def last_heartbeat(self) -> int:
        """Changes whenever the worker begins another block, or another mini-batch of a ticket with many."""
        return self._words[HEARTBEAT]

    @property
    def reported(self) -> Report:
        """Numbers about the row that was handed in last."""
        words, reals = self._words, self._reals
        return Report(words[LOSSES], reals[LOSS_SUM], reals[NORM], reals[LOSS_WEIGHT], words[UNUSED])

    @property
    def seconds(self) -> float:
        """How long the worker itself took for the row that was handed in last."""
        return self._reals[SECONDS]

    @property
    def error(self) -> str:
        """The traceback of a worker that failed."""
        return bytes(self._error).rstrip(b"\0").decode(errors="replace")

    # The worker's side.

    def receive(self, last: int, spin: float) -> Order | None:
        """Wait for an order other than the last one (its serial number). ``None`` means: quit."""
        words = self._words
        until = time.perf_counter() + spin
        while True:
            order = words[ORDER]
            if order == QUIT:
                return None
            if order not in (NONE, last + 1):
                found = self._read(order)
                if words[ORDER] == order:
                    words[RECEIVED] = order
                    return found
            elif time.perf_counter() >= until:
                os.eventfd_read(self.eventfd)
            else:
                os.sched_yield()  # perhaps the server needs this core

    def _read(self, order: int) -> Order:
        words = self._words
        version = words[VERSION]
        return Order(
            order - 1, words[UNITS], words[SLOT], words[SOURCE], self._indices[: words[SAMPLES]].copy(), words[SEED],
            self._reals[MIN_SECONDS], None if version < 0 else version,
        )  # fmt: skip

    def halted(self, serial: int) -> bool:
        halt = self._words[HALT]
        return halt in (serial + 1, QUIT)

    def recalled(self, serial: int) -> bool:
        return self._words[RECALL] == serial + 1

    def sleep(self, seconds: float, serial: int) -> None:
        """Sleep, but no longer than until the ticket is halted."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0 and not self.halted(serial):
            if left < MILLISECOND:  # which polling would round up
                time.sleep(left)
            elif wait([self.eventfd], left - MILLISECOND):
                os.eventfd_read(self.eventfd)

    def heartbeat(self, block: int) -> None:
        self._words[HEARTBEAT] = block

    def report(self, reported: Report, seconds: float) -> None:
        """Write the numbers about a row, and how long it took."""
        words, reals = self._words, self._reals
        words[LOSSES], reals[LOSS_SUM], reals[NORM], reals[LOSS_WEIGHT], words[UNUSED] = reported
        reals[SECONDS] = seconds

    def fail(self, error: str) -> None:
        """Write a traceback: its end, where it says what was wrong."""
        end = error.encode(errors="replace")[-ERROR_BYTES:]
        self._error[:] = end.ljust(ERROR_BYTES, b"\0")
