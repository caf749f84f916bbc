"""The devices that workers compute on: which there are, which worker has which, and how one is opened in a worker.

``torch.accelerator`` says which kind there is: cuda (NVIDIA, and AMD through ROCm), mps, xpu. A process that forks must
not have initialised its driver, for a driver does not survive a fork; ``open_device`` says so where it happened.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigError

CPU = torch.device("cpu")

log = logging.getLogger("paceline")


def accelerators() -> list[str]:
    """The names of the accelerators of this machine; no driver is initialised for it."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    return [] if kind is None else [f"{kind.type}:{number}" for number in range(torch.accelerator.device_count())]


def devices_of(devices: str | Sequence[str] | None, processes: int) -> tuple[str, ...]:
    """The device of each of so many processes on this machine. ``ConfigError`` if one of them does not exist.

    "auto" deals the accelerators out in turn; without any, everybody computes on the CPU, and that is said.
    """
    if devices is None:
        return ("cpu",) * processes
    found = accelerators()
    if isinstance(devices, str):
        if not found:
            log.warning('devices="auto" finds no accelerator: all workers compute on the CPU')
        return tuple(found[number % len(found)] if found else "cpu" for number in range(processes))
    return tuple(checked(name, found) for name in devices)


def checked(name: str, found: Sequence[str]) -> str:
    """A device with its number: "cuda" is "cuda:0". ``ConfigError`` if it is neither the CPU nor among those found."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{name!r} is no name of a device: {_there_are(found)}") from None
    full = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    if full != "cpu" and full not in found:
        raise ConfigError(f"the device {name!r} does not exist: {_there_are(found)}")
    return full


def _there_are(found: Sequence[str]) -> str:
    return f"this machine has {', '.join(found)} and cpu" if found else "this machine has no accelerator, only cpu"


def open_device(name: str) -> torch.device:
    """The device of this process, from now on the current one of its kind.

    ``ConfigError``, one line, if it does not exist, or if its driver was initialised before this process was forked.
    """
    device = torch.device(name)
    if device.type == "cpu":
        return CPU
    module: Any = torch.get_device_module(device)
    if getattr(module, "_is_in_bad_fork", bool)():
        raise ConfigError(
            f"{name} cannot be used: a library initialised the driver of {device.type} in the fork server, before this "
            'worker was forked; use ProcessFleet(start="spawn"), or do not import that library at start-up'
        )
    device = torch.device(checked(name, accelerators()))
    torch.accelerator.set_device_index(device)
    return device


@dataclass(frozen=True)
class Transfers:
    """Copies between a device and the memory that processes share.

    Copies to the CPU go through a stream of their own, which waits for what was computed. ``finish`` returns when all
    copies and computations are done: what was copied may be read by others from then on.
    """

    device: torch.device = CPU
    stream: torch.Stream | None = None

    @classmethod
    def of(cls, device: torch.device) -> "Transfers":
        return cls(device, None if device.type in ("cpu", "mps") else torch.Stream(device))  # mps has one stream

    def outgoing(self) -> AbstractContextManager[Any]:
        """Copies inside of it go through the stream, once everything so far is computed."""
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.accelerator.current_stream(self.device))
        return self.stream

    def finish(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


class PinnedMemory:
    """Pins memory that processes share, piece by piece, so that a device copies to and from it by itself.

    Only cuda can pin memory that is there already. A piece that cannot be pinned (there is a limit, ``ulimit -l``) is
    copied as any other memory, which is slower and otherwise the same; that is said once.
    """

    def __init__(self, device: torch.device) -> None:
        self._cudart: Any = torch.cuda.cudart() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pinned: set[int] = set()

    def pin(self, memory: Tensor) -> None:
        """Pin a piece, unless it is pinned."""
        address = memory.data_ptr()
        if self._cudart is None or address in self._pinned:
            return
        self._pinned.add(address)
        error = self._cudart.cudaHostRegister(address, memory.numel() * memory.element_size(), 0)
        if int(error):
            self._cudart = None
            log.warning("memory that is shared with the device cannot be pinned (%s): copies take longer", error)
