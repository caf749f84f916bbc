"""Where the workers of a fleet compute: their devices, how many processes each has, and how these are started."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paceline.core.errors import ConfigError
from paceline.learning.devices import devices_of
from paceline.learning.workload import Workload

log = logging.getLogger("paceline")


@runtime_checkable
class OnDevices(Protocol):
    """A fleet of this machine that says on which devices its workers compute, and how they are started."""

    @property
    def workers(self) -> int: ...

    @property
    def devices(self) -> str | Sequence[str] | None: ...

    @property
    def ranks_per_worker(self) -> int: ...

    @property
    def start(self) -> str: ...

    @property
    def staging(self) -> bool: ...


@dataclass(frozen=True)
class Places:
    """The same, looked up on this machine. ``devices`` has one for each process, those of the first worker first."""

    devices: tuple[str, ...] = ()
    ranks: int = 1
    spawn: bool = False
    staging: bool = False
    sharded: bool = False  # the task sets the model up on the ranks

    @classmethod
    def of(cls, fleet: object, workload: Workload) -> "Places":
        """``ConfigError`` if a device does not exist, or if the workload cannot be done by workers of several ranks.

        Of a fleet that says nothing of devices, the workers compute on the CPU.
        """
        ranks = ranks_of(fleet)
        if ranks == 1 and workload.parallel is not None:
            log.warning("the task's parallel= has no effect on workers of one process: see ranks_per_worker")
        if not isinstance(fleet, OnDevices):
            return cls()
        if ranks > 1:
            _check_ranks(ranks, workload)
        devices = () if fleet.devices is None else devices_of(fleet.devices, fleet.workers * ranks)
        return cls(devices, ranks, fleet.start == "spawn", fleet.staging, ranks > 1 and workload.parallel is not None)

    @property
    def pinned(self) -> bool:
        """Does a device copy from and to the arena?"""
        return any(device != "cpu" for device in self.devices)

    def device(self, worker: int, rank: int = 0) -> str:
        return self.devices[worker * self.ranks + rank] if self.devices else "cpu"


def ranks_of(fleet: object) -> int:
    """The processes of each worker."""
    return fleet.ranks_per_worker if isinstance(fleet, OnDevices) else 1


def _check_ranks(ranks: int, workload: Workload) -> None:
    if workload.hands_in_models:
        raise ConfigError(
            f"ranks_per_worker={ranks} is for workers that hand in gradients, and here each trains a model of its own "
            f"({workload.kind}): use ranks_per_worker=1"
        )
    if workload.trained_loss is not None and workload.parallel is not None:
        raise ConfigError(
            "parallel= sets the model up on the ranks, and the loss has parameters of its own, which it would not "
            "reach: let the model have them, or leave parallel= out"
        )
