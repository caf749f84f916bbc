"""A recorder for training loops that are not Paceline's: when each step began and ended, and what it waited.

    with paceline.record("runs/mine", worker=rank) as recorder:
        recorder.watch(model)  # a DistributedDataParallel model: tells waiting from computing by itself
        for batch in loader:
            with recorder.step(samples=len(batch)):
                ...  # forward, backward, all-reduce, optimizer

Each worker writes one file; ``paceline.trace.recordings`` says what is in it, and reads all of them as one trace. Lines
are handed to the operating system at the end of a step, at most four times a second, so a process that is killed loses
the last quarter of a second at most. Importing this module does not import torch.
"""

import atexit
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from paceline.core.codec import MOST_WORKERS
from paceline.core.errors import ConfigError
from paceline.core.fields import shown
from paceline.files import NO_LINK, check_parent, check_regular, why, writing
from paceline.trace.recordings import CLOSED, FORMAT, LEFT_OPEN, file_of, hold

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

FLUSH_SECONDS = 0.25  # between two writes; a write takes microseconds, or much longer on a network file system
RUN_FILES = ("config.json", "trace.jsonl")
BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux: processes with the same one share a clock

log = logging.getLogger("paceline")
now = time.perf_counter


def record(directory: Path | str, *, worker: int, workers: int | None = None) -> "Recorder":
    """A recorder for one worker of a training loop; use it in a ``with`` statement.

    directory  where every worker writes its file, ``worker-0.jsonl`` and so on; on several machines, copy the files
               into one directory before you read them
    worker     the number of this worker from 0: its rank
    workers    how many there are; by default the size of torch's process group, if there is one. A directory that
               lacks the file of one of them is refused when it is read.
    """
    return Recorder(directory, worker, workers)


class Recorder:
    """Records the steps of one worker: see ``paceline.record``."""

    def __init__(self, directory: Path | str, worker: int, workers: int | None = None) -> None:
        if not isinstance(directory, str | Path):
            raise ConfigError(f"directory={shown(directory)} is no directory: give a path, such as 'runs/mine'")
        for name, number, least in (("worker", worker, 0), ("workers", workers, 1)):
            if number is not None and (type(number) is not int or not least <= number <= MOST_WORKERS):
                raise ConfigError(f"{name}={shown(number)} is no count: give a whole number of at least {least}")
        if worker is None or (workers is not None and worker >= workers):
            raise ConfigError(f"worker={worker} is none of {workers} workers: they have the numbers from 0")
        self.directory = Path(directory)
        self.worker = worker
        self.workers = workers
        self.steps = 0
        self._file: int | None = None
        self._opened = 0.0
        self._lines: list[str] = []
        self._flush_at = 0.0
        self._began: float | None = None  # of the step that is under way
        self._samples: int | None = None
        self._computed = 0.0
        self._told_computing = False
        self._waited = 0.0
        self._exchanged: float | None = None  # when the last waiting since the last step ended
        self._inside: str | None = None  # which of compute and wait is under way
        self._step = _Step(self)
        self._compute = _Part(self, "compute", self._add_compute)
        self._wait = _Part(self, "wait", self.add_wait)
        self._release: Callable[[], None] = _nothing
        self._unwatch: list[Callable[[], None]] = []
        self._pid = 0

    @property
    def path(self) -> Path:
        """The file of this worker."""
        return file_of(self.directory, self.worker)

    def __repr__(self) -> str:
        state = f"{self.steps} steps" if self._file is not None else "closed"
        return f"<recorder of worker {self.worker} in {self.directory}, {state}>"

    def __enter__(self) -> "Recorder":
        return self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def open(self) -> "Recorder":
        """Begin the file; a ``with`` statement does so. Refuses a directory that holds a run, or this worker."""
        if self._file is not None:
            raise ConfigError(f"the recorder of worker {self.worker} in {self.directory} is open already")
        for name in RUN_FILES:
            if (self.directory / name).exists():
                raise ConfigError(f"{self.directory} holds a run already: record into another directory")
        check_regular(self.path)
        if self.path.exists():
            raise ConfigError(
                f"{self.directory} has a recording of worker {self.worker} already ({self.path.name}): "
                "give each process its own worker, and each job a directory of its own"
            )
        check_parent(self.path)
        with writing(self.path):
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | NO_LINK, 0o644)
            except FileExistsError:
                raise ConfigError(f"another process records worker {self.worker} in {self.directory}") from None
            self._release = hold(self._file)
            self._opened, wall = now(), time.time()
            os.write(self._file, (json.dumps(self._header(wall)) + "\n").encode())
        self.steps, self._flush_at, self._pid = 0, self._opened + FLUSH_SECONDS, os.getpid()
        atexit.register(self._left_open)
        return self

    def _header(self, wall: float) -> dict[str, Any]:
        host = socket.gethostname()
        try:
            clock = BOOT.read_text().strip()
        except OSError:
            clock = host
        return {
            "paceline_recording": FORMAT,
            "worker": self.worker,
            "workers": _group_size() if self.workers is None else self.workers,
            "host": host,
            "clock": clock,
            "opened": self._opened,
            "wall": wall,
        }

    def close(self) -> None:
        """End the recording; a ``with`` statement does so. A step that is under way is not recorded."""
        self._end(CLOSED)

    def _end(self, last: str) -> None:
        for undo in self._unwatch:
            undo()
        self._unwatch.clear()
        if self._file is None:
            return
        atexit.unregister(self._left_open)
        self._lines.append(json.dumps([last]) + "\n")
        self._flush(0.0)
        if self._file is not None:  # the disk was not full
            self._close_file()
        self._began = self._inside = None

    def _close_file(self) -> None:
        assert self._file is not None
        self._release()
        os.close(self._file)
        self._file = None

    def _left_open(self) -> None:
        if self._file is not None and os.getpid() == self._pid:
            log.warning(
                "the recorder of worker %s in %s was left open: use it in a with statement, or call close()",
                self.worker,
                self.directory,
            )
            self._end(LEFT_OPEN)

    def step(self, samples: int | None = None) -> "_Step":
        """A step of training on so many samples, as a context manager: forward, backward, exchange and optimizer.

        Without an exchange in it (gradient accumulation), it is counted to the next step that has one.
        """
        if samples is not None and (type(samples) is not int or samples < 0):
            raise ConfigError(f"worker {self.worker}: samples={shown(samples)} is no count of samples")
        self._samples = samples
        return self._step

    def compute(self) -> "_Part":
        """The part of a step in which this worker computes, as a context manager; the rest of the step is waiting."""
        return self._compute

    def wait(self) -> "_Part":
        """The exchange of gradients, or any other waiting for other workers, as a context manager."""
        return self._wait

    def watch(self, model: "DistributedDataParallel") -> "Recorder":
        """Tell waiting from computing in the backward passes of a DDP model, from now on until the recorder closes."""
        from paceline.recording.ddp import watch_model

        self._unwatch.append(watch_model(model, self))
        return self

    def add_wait(self, began: float, ended: float, *, exchange: bool = True) -> None:
        """Count the time between two readings of ``time.perf_counter()`` as waiting for other workers.

        Unless it was no ``exchange`` of gradients: then the waiting is counted to the step that has the next one.
        """
        self._waited += ended - began
        if exchange:
            self._exchanged = ended

    def on_close(self, undo: Callable[[], None]) -> None:
        """Call this when the recorder closes."""
        self._unwatch.append(undo)

    def _add_compute(self, began: float, ended: float) -> None:
        self._computed += ended - began
        self._told_computing = True

    def _begin_step(self) -> None:
        if self._file is None:
            self._refuse_closed()
        if self._began is not None:
            raise ConfigError(f"worker {self.worker}: a step began inside step {self.steps}, which has not ended")
        self._computed = 0.0
        self._told_computing = False
        self._began = now()

    def _end_step(self, ended: float) -> None:
        began, exchanged = self._began, self._exchanged
        assert began is not None
        self._began = None
        opened = self._opened
        waited = "null,null"
        if exchanged is not None:
            waited = f"{self._waited:.7f},{exchanged - opened:.7f}"
            self._waited, self._exchanged = 0.0, None
        elif self._told_computing:
            waited = f"{max(0.0, ended - began - self._computed):.7f},null"
        samples = "null" if self._samples is None else self._samples
        self._lines.append(f"[{began - opened:.7f},{ended - opened:.7f},{samples},{waited}]\n")
        self.steps += 1
        if ended >= self._flush_at:
            self._flush(ended + FLUSH_SECONDS)

    def _flush(self, at: float) -> None:
        """Hand what was recorded to the operating system. Training goes on without a record if the disk is full."""
        if self._file is None:
            return
        data = "".join(self._lines).encode()
        self._lines.clear()
        self._flush_at = at
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            log.warning("worker %s is recorded no further: cannot write %s: %s", self.worker, self.path, why(error))
            self._close_file()
            self._file = os.open(os.devnull, os.O_WRONLY)
            self._release = _nothing

    def _refuse_closed(self) -> None:
        raise ConfigError(
            f"the recorder of worker {self.worker} in {self.directory} is not open: write with paceline.record(...) "
            "as recorder"
        )

    def _enter_part(self, name: str) -> None:
        if self._inside is not None:
            raise ConfigError(f"worker {self.worker}: {name}() inside {self._inside}(), which has not ended")
        if self._file is None:
            self._refuse_closed()
        if name == "compute" and self._began is None:
            raise ConfigError(f"worker {self.worker}: compute() outside of a step: put it inside recorder.step()")
        self._inside = name

    def _leave_part(self) -> None:
        self._inside = None

    def _leave_step(self) -> None:
        self._began = None


class _Step:
    """The context of one step; there is one object for all steps."""

    __slots__ = ("_recorder",)

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._recorder._begin_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._recorder._end_step(now())
        else:
            self._recorder._leave_step()  # it came to no end, and is not recorded


class _Part:
    """The context of a part of a step that is computing, or waiting."""

    __slots__ = ("_add", "_began", "_name", "_recorder")

    def __init__(self, recorder: Recorder, name: str, add: Callable[[float, float], None]) -> None:
        self._recorder, self._name, self._add, self._began = recorder, name, add, 0.0

    def __enter__(self) -> None:
        self._recorder._enter_part(self._name)
        self._began = now()

    def __exit__(self, *exception: object) -> None:
        self._add(self._began, now())
        self._recorder._leave_part()


def _nothing() -> None:
    """Nothing to release."""


def _group_size() -> int | None:
    """The number of processes in torch's process group, if there is one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_world_size())
