"""From the description of a fleet to its actors."""

import os
import sys

from paceline.core.errors import ConfigError
from paceline.fleets.processes.crew import ProcessCrew
from paceline.fleets.processes.mailbox import Shape
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.parcel import pack
from paceline.fleets.processes.roster import Memories, Roster
from paceline.fleets.processes.worker import Equipment, Instructions
from paceline.fleets.ray.fleet import RayFleet
from paceline.fleets.ray.switchboard import Switchboard
from paceline.learning.data import TensorSamples
from paceline.learning.job import Job
from paceline.learning.rows import RowContributions, segments_needed
from paceline.learning.segments import Layout, Segments
from paceline.randomness import stream


def hire(fleet: RayFleet, job: Job, seed: int) -> tuple[ProcessCrew, RowContributions]:
    """Have the workers of a job placed and started."""
    try:
        from paceline.fleets.ray.agency import Agency
        from paceline.fleets.ray.connection import Connection
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError("RayFleet needs Ray, which is not installed: pip install paceline[ray]") from None
    state, workers = job.state, fleet.workers
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(f"the server trains on the CPU, and the model is on {', '.join(elsewhere)}")
    layout, shape = Layout(state.parameters, state.buffers, job.batch_size), Shape(workers, job.batch_size)
    memories = _memories(fleet, job, layout, shape)
    switchboard = Switchboard()
    try:
        each = fleet.resources_per_worker
        total = {name: amount * workers for name, amount in each.items()}
        connection = Connection(fleet.address, total, switchboard.note)
        try:
            connection.place(each, workers, spread=fleet.placement == "spread", labels=_labels(fleet))
        except BaseException:
            connection.close()
            raise
    except BaseException:
        switchboard.close()
        memories.close()
        raise
    segments = Segments(layout, memories.segments.tensor())
    contributions = RowContributions(state, segments, workers)
    post, theirs = os.pipe()
    agency = Agency(
        fleet, connection, switchboard, memories, segments, theirs, shared=isinstance(job.samples, TensorSamples)
    )
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


def _labels(fleet: RayFleet) -> list[dict[str, str]]:
    """Of each worker."""
    of_each = [{name: values[worker] for name, values in fleet.labels.items()} for worker in range(fleet.workers)]
    return of_each if fleet.labels else []
