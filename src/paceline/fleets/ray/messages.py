"""What the server and the agents of machines tell each other."""

import platform
from typing import NamedTuple

import torch

import paceline
from paceline.fleets.ray.wire import Bytes
from paceline.learning.arena.arena import Report


class AgentInfo(NamedTuple):
    """Where an agent runs, and on which versions."""

    pid: int
    node: str  # Ray's id
    host: str
    versions: dict[str, str]


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


class Result(NamedTuple):
    """A worker has handed something in."""

    worker: int
    serial: int
    done: int
    reported: Report
    seconds: float
    row: Bytes | None = None  # as it is sent between machines, where it was not asked for
    end: Bytes | None = None  # what is besides the gradient in its slot
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


Message = Result | Ready | Failed | Ended | SignOfLife
