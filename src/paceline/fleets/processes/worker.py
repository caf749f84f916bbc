"""A worker process: it waits for an order, computes it block by block, and tells when it is done."""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from paceline.fleets.processes.channel import FAILED, READY, RECORD, Channel, Order, Shape
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.payload import WorkerPayload
from paceline.fleets.processes.serialization import unpack
from paceline.learning.arena.arena import Layout, ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.copies import hang


@dataclass(frozen=True)
class Instructions:
    """How the workers of a run are to work; packed apart from the payload, which may fail to be unpacked."""

    mailboxes: Shape
    layout: Layout
    path: list[str]  # where modules are imported from
    directory: str
    threads: int
    spin: float
    slowness: tuple[float, ...]  # of each worker: how many times as long a block takes


def main(number: int, descriptors: Sequence[int]) -> int:
    """The life of a worker."""
    post, wake, mailboxes, arena, instructions, payload, blobs = descriptors
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which lets its workers go
    how: Instructions = unpack(SharedMemory(descriptor=instructions), ())
    mailbox = Channel(SharedMemory(descriptor=mailboxes), how.mailboxes, number, wake)
    worker = Worker(number, mailbox, post, how)
    order: Order | None = None
    try:
        worker.prepare(SharedMemory(descriptor=arena), SharedMemory(descriptor=payload, private=True), Blobs(blobs))
        worker.tell(READY, 0)
        while (order := mailbox.take(worker.last, how.spin)) is not None:
            worker.carry_out(order)
    except BaseException:  # even what user code raises to leave
        mailbox.complain(traceback.format_exc())
        worker.tell(FAILED, 0 if order is None else order.serial)
        return 1
    return 0


class Worker:
    def __init__(self, number: int, mailbox: Channel, post: int, how: Instructions) -> None:
        self.last = -1
        self._number = number
        self._mailbox = mailbox
        self._post = post
        self._how = how
        self._slowness = how.slowness[number]

    def prepare(self, arena: SharedMemory, payload: SharedMemory, blobs: Blobs) -> None:
        sys.path[:] = self._how.path
        os.chdir(self._how.directory)
        torch.set_num_threads(self._how.threads)
        gc.set_threshold(100_000, 50, 50)
        shared = ParameterArena(self._how.layout, arena.tensor())
        parameters = [nn.Parameter(values) for values in shared[0].parameters]
        given: WorkerPayload = unpack(payload, parameters)
        hang(parameters, given.hung)
        self._compute = given.open(parameters, shared, blobs)

    def carry_out(self, order: Order) -> None:
        self.last = order.serial
        mailbox, serial = self._mailbox, order.serial
        taken = began = time.perf_counter()

        def go_on(block: int) -> bool:
            nonlocal began
            if block:
                began = self._dawdle(order, began)
                mailbox.beat(block)
            return not (mailbox.halted(serial) or mailbox.recalled(serial))

        done, brought = self._compute(order, go_on)
        if done == order.units:
            self._dawdle(order, began)
        if not mailbox.halted(serial):
            mailbox.bring(brought)
            mailbox.count_seconds(time.perf_counter() - taken)
            self.tell(done, serial)

    def _dawdle(self, order: Order, began: float) -> float:
        """Let a block take as long as it is made to. Returns when the next one begins."""
        elapsed = time.perf_counter() - began
        missing = max((self._slowness - 1) * elapsed, order.seconds / order.units - elapsed)
        if missing > 0:
            self._mailbox.pause(missing, order.serial)
        return time.perf_counter()

    def tell(self, done: int, serial: int) -> None:
        os.write(self._post, RECORD.pack(self._number, done, serial))
