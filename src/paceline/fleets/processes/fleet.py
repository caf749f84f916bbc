"""The description of workers that are processes of this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields, nearest
from paceline.delays import Delay
from paceline.fleets.base import check_threads
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.real import check_device_names, check_state, check_system, check_workers, medians_of, with_state

if TYPE_CHECKING:
    from paceline.fleets.processes.group import ProcessWorkers
    from paceline.fleets.processes.inline import ProcessInlineWorker
    from paceline.learning.contributions import SharedContributions
    from paceline.learning.workload import Workload

STARTS = ("fork", "spawn")


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
    devices      what workers compute on: "auto" deals out the accelerators of this machine, ``["cuda:0", "cuda:1"]``
                 names one for each worker (of several ranks: one for each rank, worker by worker). By default the CPU
    ranks_per_worker  processes that make up one worker: they share each mini-batch out among them, and exchange
                 gradients by ``torch.distributed``; see ``Task(parallel=)``
    start        "fork": workers share what the fork server has loaded; "spawn": each loads Python anew, which takes
                 seconds, for libraries that cannot be forked
    staging      copy weights and gradients on the CPU too, as workers on a device do: for tests
    """

    workers: int
    slow: Mapping[int, float | Delay] = field(default_factory=dict)
    threads: int | None = None
    replace: bool = True
    min_workers: int = 1
    deadline: SilenceTimeout = SilenceTimeout()
    labels: Sequence[str] = field(default=(), repr=False)  # a run depends on them only by its groups
    state: Literal["server", "worker"] = "server"
    devices: str | Sequence[str] | None = None
    ranks_per_worker: int = 1
    start: str = field(default="fork", repr=False)  # no run depends on it, nor on the next
    staging: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        check_workers(self.workers, self.min_workers, self.slow, self.labels, self.deadline)
        check_state(self.state)
        check_threads(self.threads)
        if self.ranks_per_worker < 1:
            raise ConfigError(f"ranks_per_worker={self.ranks_per_worker} is not possible: at least 1")
        processes = self.workers * self.ranks_per_worker
        ranks = "" if self.ranks_per_worker == 1 else f" of {self.ranks_per_worker} ranks each"
        check_device_names(self.devices, processes, f"{self.workers} workers{ranks}")
        if self.start not in STARTS:
            raise ConfigError(f"start={self.start!r} is unknown: {nearest(self.start, STARTS)}")
        check_system()

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
