"""Checks and limits that ``ProcessFleet`` and ``RayFleet`` share."""

import dataclasses
import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.delays import Delay, check_delay
from paceline.fleets.base import check_labels, check_number
from paceline.fleets.processes.timeouts import SilenceTimeout

if TYPE_CHECKING:
    from paceline.learning.workload import Workload

SLOWEST = 1_000_000  # times as slow as it is
MOST_PROCESSES = 1024  # of one machine: more would keep it from everything else, long before they could compute

Slow = Mapping[int, float | Delay]


def check_workers(workers: int, min_workers: int, slow: Slow, labels: Sequence[str], deadline: object) -> None:
    """Raise ``ConfigError`` if a fleet of real workers cannot have these settings."""
    if workers < 1:
        raise ConfigError(f"a fleet of {workers} workers can do nothing: at least 1")
    check_number(workers)
    if not 1 <= min_workers <= workers:
        raise ConfigError(f"min_workers={min_workers} does not fit {workers} workers: from 1 to as many")
    if not isinstance(slow, Mapping):
        raise ConfigError(f"slow={shown(slow)} does not say who is slow: give {{3: 4.0}}, worker 3 four times as slow")
    for worker, slowness in slow.items():
        if not isinstance(worker, int):
            raise ConfigError(f"slow names worker {shown(worker)}: the fleet has workers 0 to {workers - 1}")
        if not isinstance(slowness, int | float):
            check_delay(slowness)
        if not 0 <= worker < workers:
            raise ConfigError(f"slow names worker {worker}: the fleet has workers 0 to {workers - 1}")
        if isinstance(slowness, int | float) and not 1 <= slowness <= SLOWEST:
            raise ConfigError(f"worker {worker} cannot be {slowness} times as slow: 1 to {SLOWEST:,} times")
    check_labels(labels, workers)
    if not isinstance(deadline, SilenceTimeout):
        raise ConfigError(f"deadline={shown(deadline)} is no timeout: give SilenceTimeout(at_least=5.0)")


def check_processes(processes: int, machines: int = 1) -> None:
    """Raise ``ConfigError`` before more processes are started than machines can have."""
    if processes > (most := MOST_PROCESSES * machines):
        where = "one machine" if machines == 1 else f"{machines} machines"
        raise ConfigError(
            f"{processes:,} processes on {where} are too many: at most {most:,} are started; a SimulatedFleet has as "
            "many workers as you like, and a RayFleet more machines"
        )


def check_state(state: str) -> None:
    if state not in ("server", "worker"):
        raise ConfigError(f"state={shown(state)} is unknown: 'server' or 'worker' keeps what the optimizers remember")


def with_state(state: str, workload: "Workload") -> "Workload":
    """A workload whose workers keep the state of their optimizers, or send it to the server."""
    if state == "worker" and not workload.hands_in_models:
        raise ConfigError(
            "state='worker' is about workers that train models of their own, and these hand in gradients: leave it out"
        )
    return dataclasses.replace(workload, state_with_workers=state == "worker")


def check_device_names(devices: object, processes: int, whose: str) -> None:
    """Raise ``ConfigError`` unless this is nothing, "auto", or the name of a device for each of so many processes.

    Names alone are looked at: whether such a device exists is known on the machine where the worker runs.
    """
    if devices is None or devices == "auto":
        return
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not all(isinstance(d, str) for d in devices):
        raise ConfigError(f'devices={shown(devices)} are none: give "auto", or a list such as ["cuda:0", "cuda:1"]')
    if len(devices) != processes:
        raise ConfigError(
            f"{len(devices)} device{'s'[: len(devices) != 1]} for {whose}: give one for each (a device may be named "
            'several times), or "auto"'
        )


def check_system() -> None:
    """Refuse a system whose kernel lacks what worker processes are started, watched and given memory with."""
    if sys.platform != "linux":
        raise ConfigError(f"worker processes need Linux, and this is {sys.platform}: use a SimulatedFleet")


@contextmanager
def open_files_for(workers: int, each: int, besides: int) -> Iterator[None]:
    """Make sure that this process may open ``each`` more files for each worker, and ``besides`` more for the rest.

    The soft limit is raised if necessary. Raises ``ConfigError`` with the number that is needed if the hard limit is
    too low, or if files run out inside the ``with``.
    """
    import resource

    present = len(os.listdir("/proc/self/fd"))
    needed = present + besides + each * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = (hard - present - besides) // each
    fewer = f", or have at most {most} workers" if most >= 1 else ""
    remedy = f"raise the limit (ulimit -n {needed}){fewer}"
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(f"{workers} workers need {needed} open files, and this process may have {hard}: {remedy}")
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise ConfigError(
            f"{workers} workers need more open files than there may be ({error.strerror}): {remedy}"
        ) from None


def medians_of(slow: Slow, workers: int) -> tuple[float, ...]:
    """How long a mini-batch takes each worker: in seconds if all have a ``Delay``, otherwise relative to each other."""
    slowness = [slow.get(worker, 1.0) for worker in range(workers)]
    return tuple(float(each) if isinstance(each, int | float) else each.median for each in slowness)
