"""The description of workers that are processes of this machine."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields
from paceline.delays import Delay
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.real import check_state, check_workers, medians_of, with_state

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
    threads      torch threads of each worker; by default the cores are divided among the workers
    replace      start another process when a worker is lost
    min_workers  the run stops when fewer workers than this are ready or starting
    deadline     how long a worker may be silent before it is killed
    labels       one for each worker, if groups are to be formed by them
    state        where workers train models of their own, who keeps what their optimizers remember: the ``"server"``,
                 which sends it along with each piece of work, so that a run is resumed exactly; or each ``"worker"``,
                 so that only models travel. Then a worker that is lost, or whose work is halted, begins with a fresh
                 optimizer, and so do all of them when a run is resumed; the trace tells, and a replay is still exact
    """

    workers: int
    slow: Mapping[int, float | Delay] = field(default_factory=dict)
    threads: int | None = None
    replace: bool = True
    min_workers: int = 1
    deadline: SilenceTimeout = SilenceTimeout()
    labels: Sequence[str] = field(default=(), repr=False)  # a run depends on them only by its groups
    state: Literal["server", "worker"] = "server"

    def __post_init__(self) -> None:
        check_fields(self)
        check_workers(self.workers, self.min_workers, self.slow, self.labels, self.deadline)
        check_state(self.state)
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

        return launch(self, with_state(self.state, workload), seed)

    def inline(self, workload: "Workload", seed: int) -> "tuple[ProcessInlineWorker, SharedContributions]":
        """A worker that does in this process what the workers do in theirs."""
        from paceline.fleets.processes.inline import inline

        return inline(self, with_state(self.state, workload), seed)
