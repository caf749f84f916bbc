"""A worker process: it waits for an order, computes it block by block, and reports the result."""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from paceline.core.errors import ConfigError
from paceline.data.samples import DatasetSamples
from paceline.fleets.processes.channel import FAILED, READY, RECORD, Channel, ChannelLayout, Order
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.payload import ComputeFunction, WorkerPayload
from paceline.fleets.processes.serialization import unpack
from paceline.learning.arena.arena import Layout, ParameterArena, Report
from paceline.learning.arena.blobs import Blobs
from paceline.learning.copies import hang


@dataclass(frozen=True)
class WorkerConfig:
    """Settings of the workers of a run.

    Serialized apart from the payload: user code in the payload may raise when it is loaded, and a worker needs the
    channel to report that.
    """

    channels: ChannelLayout
    layout: Layout  # of the arena
    path: list[str]  # where modules are imported from
    directory: str
    threads: int
    spin: float
    slowness: tuple[float, ...]  # of each worker: how many times as long a block takes
    host: str = ""  # another machine than the server's: whether it can read the data is found out at the start


def main(number: int, descriptors: Sequence[int]) -> int:
    """Work until the server says to quit. Returns the exit code of the process."""
    results, eventfd, channels, arena, config, payload, blobs = descriptors
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the server, which ends its workers
    settings: WorkerConfig = unpack(SharedMemory(descriptor=config), ())
    channel = Channel(SharedMemory(descriptor=channels), settings.channels, number, eventfd)
    order: Order | None = None

    def tell(done: int, serial: int) -> None:
        os.write(results, RECORD.pack(number, done, serial))

    try:
        compute = _prepare(
            settings, SharedMemory(descriptor=arena), SharedMemory(descriptor=payload, private=True), Blobs(blobs)
        )
        tell(READY, 0)
        last = -1
        while (order := channel.receive(last, settings.spin)) is not None:
            last = order.serial
            began = time.perf_counter()
            done, reported = run_order(order, compute, channel, settings.slowness[number])
            if not channel.halted(last):
                channel.report(reported, time.perf_counter() - began)
                tell(done, last)
    except BaseException as error:  # even what user code raises to leave
        channel.fail(str(error) if isinstance(error, ConfigError) else traceback.format_exc())
        tell(FAILED, 0 if order is None else order.serial)
        return 1
    return 0


def _prepare(config: WorkerConfig, memory: SharedMemory, payload: SharedMemory, blobs: Blobs) -> ComputeFunction:
    """Load the model and the data; returns the compute function."""
    sys.path[:] = config.path
    os.chdir(config.directory)
    torch.set_num_threads(config.threads)
    gc.set_threshold(100_000, 50, 50)
    arena = ParameterArena(config.layout, memory.tensor())
    parameters = [nn.Parameter(values) for values in arena[0].parameters]
    loaded: WorkerPayload = unpack(payload, parameters)
    hang(parameters, loaded.hung)
    if config.host and isinstance(loaded.samples, DatasetSamples):
        _check_data(loaded.samples, config.host)
    return loaded.open(parameters, arena, blobs)


def _check_data(samples: DatasetSamples, host: str) -> None:
    try:
        samples.fetch(np.zeros(1, dtype=np.int64))
    except OSError as error:
        raise ConfigError(
            f"the data cannot be read on {host} ({type(error).__name__}: {error}): name a place that every node can "
            "read, or train on tensors, which are sent"
        ) from None


class WorkerChannel(Protocol):
    """What a worker needs of its channel while it computes an order."""

    def halted(self, serial: int, /) -> bool: ...

    def recalled(self, serial: int, /) -> bool: ...

    def heartbeat(self, block: int, /) -> None: ...

    def sleep(self, seconds: float, serial: int, /) -> None: ...


def run_order(order: Order, compute: ComputeFunction, channel: WorkerChannel, slowness: float) -> tuple[int, Report]:
    """Compute an order until it is done, halted or recalled. Returns the units done, and numbers about the row."""
    serial = order.serial
    throttle = _throttle(order, channel, slowness)

    def keep_going(block: int) -> bool:
        if block:
            throttle()
            channel.heartbeat(block)
        return not (channel.halted(serial) or channel.recalled(serial))

    done, reported = compute(order, keep_going)
    if done == order.units:
        throttle()
    return done, reported


def _throttle(order: Order, channel: WorkerChannel, slowness: float) -> Callable[[], None]:
    """A function to call after each block: it sleeps until the block has taken as long as the fleet's ``slow`` says."""
    began = time.perf_counter()

    def throttle() -> None:
        nonlocal began
        elapsed = time.perf_counter() - began
        missing = max((slowness - 1) * elapsed, order.seconds / order.units - elapsed)
        if missing > 0:
            channel.sleep(missing, order.serial)
        began = time.perf_counter()

    return throttle
