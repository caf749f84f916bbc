"""Waiting for one descriptor, whatever its number is."""

import select


def readable(descriptor: int, seconds: float) -> bool:
    """Wait until a descriptor is readable, for whole milliseconds. ``select`` would refuse descriptors above 1,023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000.0))
