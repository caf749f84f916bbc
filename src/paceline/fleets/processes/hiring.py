"""From the description of a fleet to its processes, and the memory that they share with the server."""

import os
import sys

from paceline.core.errors import ConfigError
from paceline.fleets.processes.crew import ProcessCrew
from paceline.fleets.processes.fleet import ProcessFleet
from paceline.fleets.processes.mailbox import IN_ORDER, SPIN, Shape
from paceline.fleets.processes.memory import SharedMemory
from paceline.fleets.processes.nursery import NURSERY
from paceline.fleets.processes.parcel import pack
from paceline.fleets.processes.roster import Memories, Roster
from paceline.fleets.processes.worker import Equipment, Instructions
from paceline.learning.job import Job
from paceline.learning.rows import RowContributions, segments_needed
from paceline.learning.segments import Layout, Segments
from paceline.randomness import stream


def hire(fleet: ProcessFleet, job: Job, seed: int) -> tuple[ProcessCrew, RowContributions]:
    """Start the workers of a job. They get ready while the server does, and the run begins when all are."""
    state, workers = job.state, fleet.workers
    if elsewhere := {str(p.device) for p in state.parameters if p.device.type != "cpu"}:
        raise ConfigError(f"worker processes train on the CPU, and the model is on {', '.join(elsewhere)}")
    NURSERY.wake()
    layout = Layout(state.parameters, state.buffers, job.batch_size)
    shape = Shape(workers, job.batch_size)
    cores = len(os.sched_getaffinity(0))
    # where workers wait for a core, nobody must keep one busy
    spin = SPIN if IN_ORDER and workers <= cores else 0.0
    numbers = {worker: slow for worker, slow in fleet.slow.items() if isinstance(slow, int | float)}
    instructions = Instructions(
        mailboxes=shape, layout=layout, path=list(sys.path), directory=os.getcwd(),
        threads=fleet.threads or max(1, cores // workers), spin=spin,
        slowness=tuple(float(numbers.get(worker, 1.0)) for worker in range(workers)),
    )  # fmt: skip
    memories = Memories(
        mailboxes=SharedMemory(shape.bytes),
        segments=SharedMemory(segments_needed(workers) * layout.stride),
        instructions=pack(instructions, ()),
        equipment=pack(Equipment(state.model, job.samples, job.loss), state.parameters),
    )
    contributions = RowContributions(state, Segments(layout, memories.segments.tensor()), workers)
    post, theirs = os.pipe()
    delays = {
        worker: slow.durations(stream(seed, "delay", worker))
        for worker, slow in fleet.slow.items()
        if not isinstance(slow, int | float)
    }
    roster = Roster(shape, fleet.deadline, memories, theirs)
    crew = ProcessCrew(
        roster, contributions, post, seed, minimum=fleet.min_workers, replace=fleet.replace, delays=delays
    )
    try:
        crew.gather()
    except BaseException:
        crew.close()
        raise
    return crew, contributions
