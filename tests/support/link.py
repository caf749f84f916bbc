"""A link between two network namespaces: ``python -m support.link HERE THERE MILLISECONDS``, as root.

Packets are taken from a tunnel device on one side and put into the one on the other side that much later. Lines on
standard input change it: ``cut`` loses everything, without a word to either side, and ``mend`` carries again; ``rate``
and a number of megabits a second limits each way, and ``bytes`` prints how much each way has carried. The kernel's own
ways of delaying packets are modules that many machines do not have.
"""

import ctypes
import fcntl
import math
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, TUN, NO_HEADER = 0x400454CA, 1, 0x1000
DEVICE = "plink"
LARGEST = 65536
COMMANDS = 0  # standard input


def tunnel(namespace: str) -> int:
    """The device of a namespace, opened. This process is in that namespace from now on."""
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(there, 0) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(there)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), TUN | NO_HEADER))
    return device


class Direction:
    """One way of the link: packets follow each other at its rate, and each takes some time besides."""

    def __init__(self, to: int, seconds: float) -> None:
        self.bytes_a_second = math.inf
        self.bytes = 0  # carried so far
        self._to = to
        self._seconds = seconds
        self._free_at = 0.0
        self._under_way: deque[tuple[float, bytes]] = deque()

    def take(self, packet: bytes) -> None:
        self._free_at = max(self._free_at, time.monotonic()) + len(packet) / self.bytes_a_second
        self._under_way.append((self._free_at + self._seconds, packet))

    @property
    def next_at(self) -> float:
        return self._under_way[0][0] if self._under_way else math.inf

    def deliver(self, *, whole: bool) -> None:
        while self.next_at <= time.monotonic():
            _, packet = self._under_way.popleft()
            self.bytes += len(packet)
            if whole:
                os.write(self._to, packet)


def carry(here: int, there: int, seconds: float) -> None:
    """Until standard input ends."""
    ways, whole = {here: Direction(there, seconds), there: Direction(here, seconds)}, True
    while True:
        due = min(way.next_at for way in ways.values())
        wait = None if due == math.inf else max(0.0, due - time.monotonic())
        for ready in select.select([here, there, COMMANDS], [], [], wait)[0]:
            if ready != COMMANDS:
                if packet := os.read(ready, LARGEST):
                    ways[ready].take(packet)
                continue
            commands = os.read(COMMANDS, LARGEST).decode().splitlines()
            if not commands:
                return
            for command in commands:
                whole = obey(command, whole, ways)
        for way in ways.values():
            way.deliver(whole=whole)


def obey(command: str, whole: bool, ways: dict[int, Direction]) -> bool:
    """Do what a line of standard input says. Returns whether the link is whole."""
    name, _, number = command.partition(" ")
    if name == "rate":
        for way in ways.values():
            way.bytes_a_second = float(number) * 1e6 / 8
    elif name == "bytes":
        print(*(way.bytes for way in ways.values()), flush=True)
    return name == "mend" if name in ("cut", "mend") else whole


if __name__ == "__main__":
    here, there = map(tunnel, sys.argv[1:3])
    print("up", flush=True)
    carry(here, there, float(sys.argv[3]) / 1000)
