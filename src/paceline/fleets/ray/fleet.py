"""The description of workers on the machines of a Ray cluster."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from paceline.core.errors import ConfigError
from paceline.core.fields import check_fields, shown
from paceline.delays import Delay
from paceline.fleets.processes.timeouts import SilenceTimeout
from paceline.fleets.ray.notices import RAY, check_notices
from paceline.fleets.real import check_state, check_system, check_workers, medians_of, with_state

if TYPE_CHECKING:
    import torch

    from paceline.fleets.processes.group import ProcessWorkers
    from paceline.fleets.processes.inline import ProcessInlineWorker
    from paceline.fleets.ray.session import ClusterSession
    from paceline.learning.contributions import SharedContributions
    from paceline.learning.workload import Workload
    from paceline.trace.format import MachineWorkers


AddressTrust = bool | Literal["without token"]  # how far the address of a cluster is trusted


@dataclass(frozen=True)
class RayFleet:
    """Workers on the machines of a Ray cluster, in real time: each machine runs its workers as a ``ProcessFleet`` does.

    resources_per_worker  what Ray reserves for each; torch gets as many threads as there are whole ``CPU``
    address       of a cluster, such as ``"10.0.0.1:6379"``, or ``"auto"`` for your own on one of its machines; without
                  one, a cluster is started on this machine and ended with the run
    placement     ``"spread"`` over the machines, or ``"pack"`` onto few
    labels        what the machine of each worker must be labelled with, such as ``("gpu=a100", "gpu=a100", "gpu=t4")``
    share_memory  workers on the server's own node share memory with it; otherwise they too have an agent
    shards        the server in so many pieces, each an actor on another machine with a range of the parameters; every
                  machine has an agent then, also the server's own
    wire          ``"bfloat16"`` halves what goes between machines, gradients, weights and models of single precision,
                  and rounds it; by default everything is sent as it is
    slow          workers that are made slow, as in a ``ProcessFleet``
    replace       start another actor when a worker is lost, as soon as the cluster has resources for it
    min_workers   the run stops when fewer workers than this are ready or starting
    deadline      how long a worker may be silent before it is killed
    state         who keeps what the optimizers of workers remember that train models: as in a ``ProcessFleet``
    notices       who is asked whether a machine will be taken away, which becomes the event ``Leaving``: ``"ray"``, and
                  on spot machines their cloud, ``("ray", "aws")``, ``"gcp"`` or ``"azure"``
    trust_address connect to the address, and send it this machine's Ray token if the cluster asks for it; or only
                  connect, ``"without token"``: where a TOML file of the user's names it. False where the directory of a
                  run does: such an address is refused
    """

    workers: int
    resources_per_worker: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    address: str | None = field(default=None, repr=False)  # a run may be resumed on another cluster
    placement: Literal["spread", "pack"] = "spread"
    labels: Sequence[str] = field(default=(), repr=False)  # a run depends on them only by its groups
    share_memory: bool = True
    shards: int = field(default=1, repr=False)  # a run may be resumed with another number
    wire: Literal["bfloat16"] | None = None
    slow: Mapping[int, float | Delay] = field(default_factory=dict)
    replace: bool = True
    min_workers: int = 1
    deadline: SilenceTimeout = SilenceTimeout()
    state: Literal["server", "worker"] = "server"
    notices: Sequence[str] = field(default=(RAY,), repr=False)  # a run may be resumed with others
    trust_address: AddressTrust = field(default=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        check_workers(self.workers, self.min_workers, self.slow, self.labels, self.deadline)
        check_state(self.state)
        if self.placement not in ("spread", "pack"):
            raise ConfigError(f"placement={self.placement!r} is unknown: 'spread' or 'pack'")
        if self.address == "local":  # Ray's word for none
            object.__setattr__(self, "address", None)
        if self.address is not None and self.address.startswith("ray://"):
            raise ConfigError(
                f"address={self.address!r} is that of a Ray client, which has no object store: train on a machine of "
                "the cluster (ray job submit) with address='auto'"
            )
        if self.shards < 1:
            raise ConfigError(f"shards={self.shards} leaves no server: at least 1")
        check_notices(self.notices)
        if self.trust_address not in (True, False, "without token"):
            raise ConfigError(f"trust_address={shown(self.trust_address)} is unknown: True, False or 'without token'")
        check_system()
        if self.wire not in (None, "bfloat16"):
            raise ConfigError(f"wire={self.wire!r} is unknown: 'bfloat16', or none to send everything as it is")
        if not isinstance(self.resources_per_worker, Mapping):
            given = shown(self.resources_per_worker)
            raise ConfigError(f'resources_per_worker={given} names no amounts: give {{"CPU": 1}}, or {{"GPU": 1}}')
        for name, amount in self.resources_per_worker.items():
            if not (isinstance(name, str) and name):
                raise ConfigError(f"resources_per_worker: {shown(name)} is no name of a resource: such as 'GPU'")
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < float("inf"):
                raise ConfigError(f"resources_per_worker: {shown(amount)} of {name} is not possible: at least 0")
        for label in self.labels:
            if not all(label.partition("=")):
                raise ConfigError(f"labels: {label!r} names no label of a Ray node and its value: such as 'gpu=a100'")

    @property
    def wire_dtype(self) -> "torch.dtype | None":
        """The type of number in which single precision is sent, if it is another."""
        import torch

        return torch.bfloat16 if self.wire else None

    @property
    def threads(self) -> int:
        """The number of torch threads of each worker."""
        return max(1, int(self.resources_per_worker.get("CPU", 0)))

    @property
    def medians(self) -> tuple[float, ...]:
        return medians_of(self.slow, self.workers)

    def persistent(self) -> "AbstractContextManager[PersistentRayFleet]":
        """The fleet for several runs: its agents, which take seconds to start, stay until the end of a ``with``.

        >>> with RayFleet(8, address="auto").persistent() as fleet:
        ...     for strategy in strategies:
        ...         train(task, strategy=strategy, fleet=fleet, ...)
        """
        return _persistent(self)

    def standing(self) -> "AbstractContextManager[PersistentRayFleet]":
        """The former name of ``persistent``."""
        warnings.warn("RayFleet.standing is now RayFleet.persistent", DeprecationWarning, stacklevel=2)
        return self.persistent()

    def launch(self, workload: "Workload", seed: int) -> "tuple[ProcessWorkers, SharedContributions]":
        """Reserve resources and start the workers; the run begins when they are ready."""
        return _launch(self, None, workload, seed)

    def inline(self, workload: "Workload", seed: int) -> "tuple[ProcessInlineWorker, SharedContributions]":
        """A worker in this process that computes what the workers compute."""
        from paceline.fleets.processes.inline import inline

        return inline(self, with_state(self.state, workload), seed)

    def inline_on(
        self, machines: "MachineWorkers", workload: "Workload", seed: int
    ) -> "tuple[ProcessInlineWorker, SharedContributions]":
        """The same for workers that were on several machines: gradients are added up by machine, as they were there."""
        from paceline.fleets.processes.inline import inline_on

        return inline_on(self, machines, with_state(self.state, workload), seed)


@dataclass(frozen=True, repr=False)
class PersistentRayFleet:
    """A fleet that keeps its reservation in the cluster and, after the first run, its agents."""

    fleet: RayFleet
    session: "ClusterSession"

    def __repr__(self) -> str:
        return repr(self.fleet)

    @property
    def described_as(self) -> RayFleet:
        """What a run directory keeps: results do not depend on whether the actors stay."""
        return self.fleet

    @property
    def workers(self) -> int:
        return self.fleet.workers

    @property
    def medians(self) -> tuple[float, ...]:
        return self.fleet.medians

    def launch(self, workload: "Workload", seed: int) -> "tuple[ProcessWorkers, SharedContributions]":
        return _launch(self.fleet, self.session, workload, seed)

    def inline(self, workload: "Workload", seed: int) -> "tuple[ProcessInlineWorker, SharedContributions]":
        return self.fleet.inline(workload, seed)

    def inline_on(
        self, machines: "MachineWorkers", workload: "Workload", seed: int
    ) -> "tuple[ProcessInlineWorker, SharedContributions]":
        return self.fleet.inline_on(machines, workload, seed)


@contextmanager
def _persistent(fleet: RayFleet) -> Iterator[PersistentRayFleet]:
    from paceline.fleets.ray.session import ClusterSession

    session = ClusterSession(fleet, persistent=True)
    try:
        yield PersistentRayFleet(fleet, session)
    finally:
        session.close()


def _launch(
    fleet: RayFleet, session: "ClusterSession | None", workload: "Workload", seed: int
) -> "tuple[ProcessWorkers, SharedContributions]":
    try:
        from paceline.fleets.ray.launcher import MachineLauncher
        from paceline.fleets.ray.session import ClusterSession
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("RayFleet needs Ray, which is not installed: pip install paceline[ray]") from None
    from paceline.fleets.processes.launch import Cluster, launch

    def open_cluster() -> Cluster:
        """Only now: a task that cannot be sent is refused before anybody is asked for resources."""
        opened = session or ClusterSession(fleet, persistent=False)
        own = opened.machines[opened.own_machine] if opened.own_machine >= 0 else ()
        return Cluster(own, partial(MachineLauncher, fleet, opened), (lambda: None) if session else opened.close)

    return launch(fleet, with_state(fleet.state, workload), seed, open_cluster)
