"""The description of workers that are processes of this machine."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields, shown
from paceline.delays import Delay
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.real import check_workers, medians_of

if TYPE_CHECKING:
    from paceline.fleets.processes.group import ProcessWorkers
    from paceline.fleets.processes.inline import ProcessInlineWorker
    from paceline.learning.contributions import SharedContributions
    from paceline.learning.workload import Workload


@dataclass(frozen=True)
class ProcessFleet:
    """Worker processes on this machine, in real time.

    slow         workers that are made slow: worker 3 four times as slow with ``{3: 4.0}``, or as slow as a ``Delay``
                 says with ``{3: LogNormal(0.2, 0.5)}`` (seconds a mini-batch, if it is not slower anyway)
    threads      of torch in each worker; by default the cores are shared out
    replace      have another process for a worker that is lost
    min_workers  the run stops when fewer than these are here or on their way
    deadline     how long a worker may be silent
    labels       one for each worker, if groups are to be formed by them
    """

    workers: int
    slow: Mapping[int, float | Delay] = field(default_factory=dict)
    threads: int | None = None
    replace: bool = True
    min_workers: int = 1
    deadline: SilenceTimeout = SilenceTimeout()
    labels: Sequence[str] = field(default=(), repr=False)  # no part of a run but by the groups that come of them

    def __post_init__(self) -> None:
        check_fields(self)
        check_workers(self.workers, self.min_workers, self.slow, self.labels)
        if not isinstance(self.deadline, SilenceTimeout):
            raise ConfigError(f"deadline={shown(self.deadline)} is none: give SilenceTimeout(at_least=5.0)")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads={self.threads} is not possible: at least 1, or none for a share of the cores")
        if sys.platform != "linux":
            raise ConfigError(f"worker processes need Linux, and this is {sys.platform}: use a SimulatedFleet")

    @property
    def medians(self) -> tuple[float, ...]:
        return medians_of(self.slow, self.workers)

    def launch(self, workload: "Workload", seed: int) -> "tuple[ProcessWorkers, SharedContributions]":
        """Start the workers; the run begins when all of them are ready."""
        from paceline.fleets.processes.launch import launch

        return launch(self, workload, seed)

    def inline(self, workload: "Workload", seed: int) -> "tuple[ProcessInlineWorker, SharedContributions]":
        """A worker that does in this process what the workers do in theirs."""
        from paceline.fleets.processes.inline import inline

        return inline(self, workload, seed)
