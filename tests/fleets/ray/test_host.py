"""What an agent finds out about its machine before a run."""

import fcntl
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.fleets.processes.channel import Channel, ChannelLayout, Order
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.ray.host import devices_of, missing_memory
from paceline.fleets.ray.messages import HostSettings
from paceline.fleets.real import open_files_for


def test_accelerators_are_dealt_out_in_the_order_of_workers() -> None:
    """Whole ones, or shares of one; those that Ray made visible to an agent have numbers from 0 on."""
    assert devices_of(HostSettings((1, 3), 20, False, None, 1.0), 4) == ("cpu", "cuda:0", "cpu", "cuda:1")
    assert devices_of(HostSettings((0, 1, 2), 20, False, None, 0.5), 3) == ("cuda:0", "cuda:0", "cuda:1")
    assert devices_of(HostSettings((0, 1), 20, False, None), 2) == ()


@pytest.mark.parametrize(("kibibytes", "missing"), [(2**20, "0.50"), (3 * 2**19, "")])
def test_a_machine_without_room_says_how_much_is_missing(
    kibibytes: int, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of a model of 300 MiB need five times that."""
    made = SimpleNamespace(layout=SimpleNamespace(stride=3 * 2**29 // 5))
    monkeypatch.setattr("paceline.fleets.ray.host.unpack", lambda memory, objects: made)
    monkeypatch.setattr("paceline.fleets.ray.host.this_node", lambda: ("node", "10.0.0.2"))
    monkeypatch.setattr(Path, "read_text", lambda path: f"MemTotal: 1 kB\nMemAvailable: {kibibytes} kB\n")
    nothing = np.zeros(0, dtype=np.uint8)
    found = missing_memory(HostSettings((0, 1), 20, False, None), nothing, nothing)
    line = "10.0.0.2 has 1.00 GiB free, and 2 workers need 1.50 GiB for weights, gradients and data: 0.50 GiB missing"
    assert found == (line if missing else "")


@pytest.mark.parametrize("overtaken", [False, True])
def test_an_order_that_comes_after_the_end_does_not_keep_a_worker(overtaken: bool) -> None:
    """Calls that bring orders and those that bring the end may overtake each other."""
    layout = ChannelLayout(1, 4)
    memory, eventfd = SharedMemory(layout.bytes), os.eventfd(0, os.EFD_NONBLOCK)
    try:
        channel = Channel(memory, layout, 0, eventfd)
        order = Order(5, 2, 0, 0, np.arange(4), 0, 0.0)
        for happens in (channel.quit, lambda: channel.send_unless_quit(order))[:: -1 if overtaken else 1]:
            happens()
        assert channel.receive(-1, 0.0) is None
        assert channel.halted(5)
    finally:
        os.close(memory.descriptor)
        os.close(eventfd)


def test_a_worker_sleeps_also_where_many_files_are_open() -> None:
    layout = ChannelLayout(1, 4)
    memory, first = SharedMemory(layout.bytes), os.eventfd(0, os.EFD_NONBLOCK)
    with open_files_for(1, 1200, 0):
        eventfd = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 1100)
    try:
        channel = Channel(memory, layout, 0, eventfd)
        began = time.perf_counter()
        channel.sleep(0.0205, 5)
        assert time.perf_counter() >= began + 0.0205
        channel.notify()  # an order does not wake it
        channel.sleep(0.0205, 5)
        assert time.perf_counter() >= began + 0.041
        channel.halt(5)
        channel.sleep(3600.0, 5)
    finally:
        for each in (memory.descriptor, eventfd, first):
            os.close(each)
