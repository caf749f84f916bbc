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
from paceline.fleets.processes.launch import Premises
from paceline.fleets.processes.supervisor import Starter
from paceline.fleets.ray.fleet import RayFleet
from paceline.learning.gradients.shared import RowContributions
from paceline.learning.job import Job
from paceline.learning.models.local_work import Bench
from paceline.learning.models.shared import PieceRows

if TYPE_CHECKING:
    from paceline.fleets.ray.session import Office


def launch(
    fleet: RayFleet, job: Job, seed: int, office: "Office | None" = None
) -> tuple[ProcessWorkers, RowContributions]:
    """Have the workers of a job placed and started, or those that stay in an office."""
    return processes_launch.launch(fleet, job, seed, partial(_agency, fleet, office, True))


def hire_trainers(fleet: RayFleet, bench: Bench, office: "Office | None" = None) -> tuple[ProcessWorkers, PieceRows]:
    """The same for workers that train models of their own."""
    return processes_launch.hire_trainers(fleet, bench, partial(_agency, fleet, office, False))


def _agency(fleet: RayFleet, office: "Office | None", once_a_version: bool, premises: Premises) -> Starter:
    try:
        from paceline.fleets.ray.launcher import Agency
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("RayFleet needs Ray, which is not installed: pip install paceline[ray]") from None
    from paceline.fleets.ray.session import Office

    return Agency(fleet, office or Office(fleet, stays=False), premises, once_a_version=once_a_version)


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

    def launch(self, job: Job, seed: int) -> tuple[ProcessWorkers, RowContributions]:
        return launch(self.fleet, job, seed, self.office)

    def hire_trainers(self, bench: Bench) -> tuple[ProcessWorkers, PieceRows]:
        return hire_trainers(self.fleet, bench, self.office)

    def understudy(self, job: Job, seed: int) -> tuple[ProcessInlineWorker, RowContributions]:
        return self.fleet.understudy(job, seed)

    def understudy_trainers(self, bench: Bench) -> tuple[ProcessInlineWorker, PieceRows]:
        return self.fleet.understudy_trainers(bench)
