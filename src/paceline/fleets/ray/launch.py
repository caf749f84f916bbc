"""From the description of a fleet to its actors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.fleets.processes import launch as processes_launch
from paceline.fleets.processes.group import ProcessWorkers
from paceline.fleets.processes.inline import ProcessInlineWorker
from paceline.fleets.processes.launch import SharedContext
from paceline.fleets.processes.supervisor import Starter
from paceline.fleets.ray.fleet import RayFleet
from paceline.learning.gradients.shared import SharedGradients
from paceline.learning.models.local_work import Bench
from paceline.learning.models.shared import SharedModels
from paceline.learning.workload import Workload

if TYPE_CHECKING:
    from paceline.fleets.ray.session import Office


def launch(
    fleet: RayFleet, workload: Workload, seed: int, office: "Office | None" = None
) -> tuple[ProcessWorkers, SharedGradients]:
    """Have the workers of a workload placed and started, or those that stay in an office."""
    return processes_launch.launch(fleet, workload, seed, partial(_agency, fleet, office, True))


def hire_trainers(fleet: RayFleet, bench: Bench, office: "Office | None" = None) -> tuple[ProcessWorkers, SharedModels]:
    """The same for workers that train models of their own."""
    return processes_launch.hire_trainers(fleet, bench, partial(_agency, fleet, office, False))


def _agency(fleet: RayFleet, office: "Office | None", once_a_version: bool, context: SharedContext) -> Starter:
    try:
        from paceline.fleets.ray.launcher import Agency
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("RayFleet needs Ray, which is not installed: pip install paceline[ray]") from None
    from paceline.fleets.ray.session import Office

    return Agency(fleet, office or Office(fleet, stays=False), context, once_a_version=once_a_version)


@contextmanager
def standing(fleet: RayFleet) -> Iterator["Standing"]:
    """A fleet whose actors stay from one run to the next."""
    from paceline.fleets.ray.session import Office

    office = Office(fleet, stays=True)
    try:
        yield Standing(fleet, office)
    finally:
        office.close()


@dataclass(frozen=True, repr=False)
class Standing:
    """A fleet that has its places in the cluster and, after the first run, its actors."""

    fleet: RayFleet
    office: "Office"

    def __repr__(self) -> str:
        return repr(self.fleet)  # what is trained does not depend on it

    @property
    def workers(self) -> int:
        return self.fleet.workers

    @property
    def medians(self) -> tuple[float, ...]:
        return self.fleet.medians

    def launch(self, workload: Workload, seed: int) -> tuple[ProcessWorkers, SharedGradients]:
        return launch(self.fleet, workload, seed, self.office)

    def hire_trainers(self, bench: Bench) -> tuple[ProcessWorkers, SharedModels]:
        return hire_trainers(self.fleet, bench, self.office)

    def inline(self, workload: Workload, seed: int) -> tuple[ProcessInlineWorker, SharedGradients]:
        return self.fleet.inline(workload, seed)

    def understudy_trainers(self, bench: Bench) -> tuple[ProcessInlineWorker, SharedModels]:
        return self.fleet.understudy_trainers(bench)
