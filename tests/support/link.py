"""A link between two network namespaces: ``python -m support.link HERE THERE MILLISECONDS``, as root.

Packets are taken from a tunnel device on one side and put into the one on the other side that much later. Lines on
standard input change it: ``cut`` loses everything, without a word to either side, and ``mend`` carries again. The
kernel's own ways of delaying packets are modules that many machines do not have.
"""

import ctypes
import fcntl
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


def carry(here: int, there: int, seconds: float) -> None:
    """Until standard input ends."""
    other, under_way, whole = {here: there, there: here}, deque[tuple[float, int, bytes]](), True
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for ready in select.select([here, there, COMMANDS], [], [], wait)[0]:
            if ready == COMMANDS:
                commands = os.read(COMMANDS, LARGEST).split()
                if not commands:
                    return
                whole = commands[-1] == b"mend"
            elif packet := os.read(ready, LARGEST):
                under_way.append((time.monotonic() + seconds, other[ready], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, to, packet = under_way.popleft()
            if whole:
                os.write(to, packet)


if __name__ == "__main__":
    here, there = map(tunnel, sys.argv[1:3])
    print("up", flush=True)
    carry(here, there, float(sys.argv[3]) / 1000)
