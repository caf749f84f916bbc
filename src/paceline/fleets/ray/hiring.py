"""From the description of a fleet to its actors."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.fleets.processes.crew import ProcessCrew
from paceline.fleets.processes.mailbox import Shape
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.parcel import pack
from paceline.fleets.processes.roster import Memories, Roster
from paceline.fleets.processes.understudy import ProcessUnderstudy
from paceline.fleets.processes.worker import Equipment, Instructions
from paceline.fleets.ray.fleet import RayFleet
from paceline.learning.data import TensorSamples
from paceline.learning.job import Job
from paceline.learning.rows import RowContributions, segments_needed
from paceline.learning.segments import Layout, Segments
from paceline.randomness import stream

if TYPE_CHECKING:
    from paceline.fleets.ray.office import Office


@contextmanager
def standing(fleet: RayFleet) -> Iterator["Standing"]:
    """A fleet whose actors stay from one run to the next."""
    office = _office(fleet, stays=True)
    try:
        yield Standing(fleet, office)
    finally:
        office.close()


@dataclass(frozen=True)
class Standing:
    """A fleet that has its place in the cluster, and its actors after the first run."""

    fleet: RayFleet
    office: "Office" = field(repr=False)

    def __repr__(self) -> str:
        return repr(self.fleet)

    @property
    def workers(self) -> int:
        return self.fleet.workers

    @property
    def medians(self) -> tuple[float, ...]:
        return self.fleet.medians

    def hire(self, job: Job, seed: int) -> tuple[ProcessCrew, RowContributions]:
        return hire(self.fleet, job, seed, self.office)

    def understudy(self, job: Job, seed: int) -> tuple[ProcessUnderstudy, RowContributions]:
        return self.fleet.understudy(job, seed)


def _office(fleet: RayFleet, *, stays: bool) -> "Office":
    try:
        from paceline.fleets.ray.office import Office
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("RayFleet needs Ray, which is not installed: pip install paceline[ray]") from None
    return Office(fleet, stays=stays)


def hire(
    fleet: RayFleet, job: Job, seed: int, office: "Office | None" = None
) -> tuple[ProcessCrew, RowContributions]:
    """Have the workers of a job placed and started."""
    state, workers = job.state, fleet.workers
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(f"the server trains on the CPU, and the model is on {', '.join(elsewhere)}")
    layout, shape = Layout(state.parameters, state.buffers, job.batch_size), Shape(workers, job.batch_size)
    memories = _memories(fleet, job, layout, shape)
    try:
        office = office or _office(fleet, stays=False)
    except BaseException:
        memories.close()
        raise
    from paceline.fleets.ray.agency import Agency

    segments = Segments(layout, memories.segments.tensor())
    contributions = RowContributions(state, segments, workers)
    post, theirs = os.pipe()
    agency = Agency(fleet, office, memories, segments, theirs, shared=isinstance(job.samples, TensorSamples))
    delays = {
        worker: slow.durations(stream(seed, "delay", worker))
        for worker, slow in fleet.slow.items()
        if not isinstance(slow, int | float)
    }
    roster = Roster(shape, fleet.deadline, memories, theirs, agency)
    crew = ProcessCrew(
        roster, contributions, post, seed, minimum=fleet.min_workers, replace=fleet.replace, delays=delays
    )
    try:
        crew.gather()
    except BaseException:
        crew.close()
        raise
    return crew, contributions


def _memories(fleet: RayFleet, job: Job, layout: Layout, shape: Shape) -> Memories:
    numbers = {worker: slow for worker, slow in fleet.slow.items() if isinstance(slow, int | float)}
    instructions = Instructions(
        mailboxes=shape, layout=layout, path=list(sys.path), directory=os.getcwd(), threads=fleet.threads, spin=0.0,
        slowness=tuple(float(numbers.get(worker, 1.0)) for worker in range(fleet.workers)),
    )  # fmt: skip
    return Memories(
        mailboxes=SharedMemory(shape.bytes),
        segments=SharedMemory(segments_needed(fleet.workers) * layout.stride),
        instructions=pack(instructions, ()),
        equipment=pack(Equipment(job.state.model, job.samples, job.loss), job.state.parameters),
    )
