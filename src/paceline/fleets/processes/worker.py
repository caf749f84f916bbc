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
from paceline.fleets.processes.gang import Gang, gang_of, start_ranks
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.payload import ComputeFunction, Place, WorkerPayload
from paceline.fleets.processes.serialization import unpack
from paceline.learning.arena.arena import Layout, ParameterArena, Report, StagedSlot
from paceline.learning.arena.blobs import Blobs
from paceline.learning.copies import hang
from paceline.learning.devices import open_device

CONFIG = 4  # its place among the descriptors


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
    devices: tuple[str, ...] = ()  # of each worker; of ranks, those of the first worker come first. By default the CPU
    staging: bool = False  # copy weights and gradients also where that is not necessary
    ranks: int = 1  # the processes of each worker
    spawn: bool = False  # ranks load Python anew
    sharded: bool = False  # the task sets the model up on the ranks

    def device(self, worker: int, rank: int) -> str:
        return self.devices[worker * self.ranks + rank] if self.devices else "cpu"


def main(number: int, descriptors: Sequence[int]) -> int:
    """Work until the server says to quit. Returns the exit code of the process."""
    settings: WorkerConfig = unpack(SharedMemory(descriptor=descriptors[CONFIG]), ())
    gang = None
    if settings.ranks > 1:
        gang = start_ranks(number, settings.ranks, descriptors, spawn=settings.spawn)
    return _work(number, descriptors, settings, gang)


def be_rank(number: int, rank: tuple[int, int, Sequence[int]], descriptors: Sequence[int]) -> int:
    """Be one of a worker's other ranks, in a process that has loaded Python anew: see ``gang_of``."""
    settings: WorkerConfig = unpack(SharedMemory(descriptor=descriptors[CONFIG]), ())
    return _work(number, descriptors, settings, gang_of(*rank))


def _work(number: int, descriptors: Sequence[int], settings: WorkerConfig, gang: Gang | None) -> int:
    results, eventfd, channels, _, _, _, _ = descriptors
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the server, which ends its workers
    channel = Channel(SharedMemory(descriptor=channels), settings.channels, number, eventfd)
    order: Order | None = None

    def tell(done: int, serial: int) -> None:
        os.write(results, RECORD.pack(number, done, serial))

    try:
        compute = _prepare(settings, descriptors, number, gang)
        if gang is not None and gang.rank:
            gang.follow(compute)
            return 0
        if gang is not None:
            compute = gang.leading(compute)
        tell(READY, 0)
        last = -1
        while (order := channel.receive(last, settings.spin)) is not None:
            last = order.serial
            began = time.perf_counter()
            done, reported = run_order(order, compute, channel, settings.slowness[number])
            if not channel.halted(last):
                channel.report(reported, time.perf_counter() - began)
                tell(done, last)
        if gang is not None:
            gang.quit()
    except BaseException as error:  # even what user code raises to leave
        if gang is None or gang.is_to_blame():
            channel.fail(_described(error, gang))
            tell(FAILED, 0 if order is None else order.serial)
        return 1
    return 0


def _described(error: BaseException, gang: Gang | None) -> str:
    """A traceback; what is wrong with the settings of a run needs none."""
    rank = "" if gang is None else f"rank {gang.rank}: "
    return rank + (f"{type(error).__name__}: {error}" if isinstance(error, ConfigError) else traceback.format_exc())


def _prepare(config: WorkerConfig, descriptors: Sequence[int], number: int, gang: Gang | None) -> ComputeFunction:
    """Load the model and the data; returns the compute function."""
    _, _, _, memory, _, payload, blobs = descriptors
    sys.path[:] = config.path
    os.chdir(config.directory)
    torch.set_num_threads(config.threads)
    gc.set_threshold(100_000, 50, 50)
    device = open_device(config.device(number, 0 if gang is None else gang.rank))
    if gang is not None:
        gang.join(device)
    arena = ParameterArena(config.layout, SharedMemory(descriptor=memory).tensor())
    staged, own = None, arena[0].parameters
    if config.sharded:  # what the task does with them must not change those of the server
        own = ParameterArena(config.layout, SharedMemory(descriptor=memory, private=True).tensor())[0].parameters
    elif config.staging or gang is not None or device.type != "cpu":
        staged = StagedSlot(config.layout, device)
        staged.take(arena[0])
        own = staged.parameters
    parameters = [nn.Parameter(values.data) for values in own]  # each counts its own changes
    loaded: WorkerPayload = unpack(SharedMemory(descriptor=payload, private=True), parameters)
    hang(parameters, loaded.hung)
    if config.host and isinstance(loaded.samples, DatasetSamples):
        _check_data(loaded.samples, config.host)
    return loaded.open(parameters, arena, Blobs(blobs), Place(device, staged, gang))


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
