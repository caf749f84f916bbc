"""What the server and the agents of machines tell each other."""

import platform
from collections.abc import Sequence
from typing import NamedTuple

import torch

import paceline
from paceline.fleets.ray.wire import Bytes
from paceline.learning.arena.arena import Report
from paceline.learning.gradients.held import Parts


class AgentInfo(NamedTuple):
    """Where an agent runs, and on which versions."""

    pid: int
    node: str  # Ray's id
    host: str
    versions: dict[str, str]
    started: int = 0  # when: ``start_time`` of its process


def versions() -> dict[str, str]:
    """What has to be the same on all machines of a run."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "torch": torch.__version__.partition("+")[0], "paceline": paceline.__version__}


class HostSettings(NamedTuple):
    """What an agent hosts in one run."""

    workers: tuple[int, ...]  # their numbers
    slots: int  # of the arena
    models: bool  # do workers hand in models?
    wire: torch.dtype | None
    gpus: float = 0.0  # for each worker, of those that Ray made visible to the agent
    clouds: tuple[str, ...] = ()  # that are asked whether they take the machine back


class Expected(NamedTuple):
    """A sum that the server will ask for, as soon as the tickets in it are handed in."""

    parts: Parts
    ends: tuple[int, ...]  # the slots of which more than the gradient is wanted
    tickets: tuple[tuple[int, int], ...]  # the slot and the serial number of each


class Sum(NamedTuple):
    """A sum that was expected."""

    expected: Expected
    ends: Sequence[Bytes] = ()  # what is besides the gradient in slots
    row: Bytes | None = None  # as it is sent between machines; none where it comes in results of its own


class Result(NamedTuple):
    """A worker has handed something in."""

    worker: int
    serial: int
    done: int
    reported: Report
    seconds: float
    sum: Sum | None = None  # that it completes
    row: Bytes | None = None  # where workers hand in models
    blob: bytes | bytearray | None = None


class Ready(NamedTuple):
    """A worker's process has loaded everything."""

    worker: int
    pid: int


class Failed(NamedTuple):
    """A worker raised an error."""

    worker: int
    serial: int
    error: str


class Ended(NamedTuple):
    """The process of a worker has ended. ``start`` counts the processes that the worker has had."""

    worker: int
    start: int
    reason: str


class SignOfLife(NamedTuple):
    """What a worker's channel says of its progress."""

    worker: int
    heartbeat: int
    received: int


class Notice(NamedTuple):
    """A cloud takes the machine back in so many seconds, or no more; or it could not be asked."""

    cloud: str
    seconds: float | None
    problem: str = ""
    worker: int = -1  # it is about all of them


Message = Result | Ready | Failed | Ended | SignOfLife | Notice
