"""What can happen to a worker process: done by user code inside it, at an exact moment, once in a run."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.fleets.processes.channel import Channel

Fault = Callable[[], None]


class Struck(nn.Module):
    """A model that strikes its own worker at one of its passes.

    Of all workers that reach their pass number ``at`` (from 0), as many are struck as there is room for in ``marks``.
    """

    def __init__(self, model: nn.Module, fault: Fault, marks: Path, *, at: int = 3, times: int = 1) -> None:
        super().__init__()
        self.model = model
        self.fault = fault
        self.marks, self.at, self.times = marks, at, times
        self.passes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += 1
        if self.training and self.passes > self.at and self._is_my_turn():
            self.fault()
        outputs: Tensor = self.model(inputs)
        return outputs

    def _is_my_turn(self) -> bool:
        for number in range(self.times):
            try:
                (self.marks / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


class SpoiltOnce(nn.Module):
    """A model whose outputs are not finite at one training pass of one worker."""

    def __init__(self, model: nn.Module, mark: Path, *, at: int) -> None:
        super().__init__()
        self.model = model
        self.mark, self.at = mark, at
        self.passes = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += self.training
        outputs: Tensor = self.model(inputs)
        if self.training and self.passes == self.at and self._is_first():
            return outputs * float("nan")
        return outputs

    def _is_first(self) -> bool:
        try:
            self.mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def die() -> None:
    """Before anything of the pass is computed."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_handing_in() -> None:
    """When a part of the gradient is in the row."""

    def half(row: list[Tensor], gradients: list[Tensor]) -> None:
        row[0].copy_(gradients[0] * float("nan"))
        die()

    torch._foreach_copy_ = half  # type: ignore[assignment]


def die_before_telling() -> None:
    """When the row is complete, and nobody knows."""
    os.write = lambda descriptor, data: die()  # type: ignore[assignment, return-value]


def die_after_handing_in() -> None:
    """Right after it was told that the row is complete."""
    write = os.write

    def last(descriptor: int, data: bytes) -> int:
        write(descriptor, data)
        die()
        return 0

    os.write = last  # type: ignore[assignment]


def stop() -> None:
    """For ever."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_for_a_while() -> None:
    subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {os.getpid()}"])
    stop()


def hang() -> None:
    time.sleep(10_000)


def fail() -> None:
    raise ZeroDivisionError("on purpose")


def leave() -> None:
    raise SystemExit(3)


# What can happen to a worker on another machine.


def die_before_the_answer() -> None:
    """When everything is computed, and nobody knows."""
    Channel.report = lambda *_: die()  # type: ignore[method-assign]


def die_around_the_answer() -> None:
    """About when the answer is on its way: whether it comes is not known."""
    report = Channel.report

    def last(*arguments: Any) -> None:
        threading.Timer(0.001, die).start()
        report(*arguments)

    Channel.report = last  # type: ignore[method-assign, assignment]


def kill_the_fork_server() -> None:
    """And with it all workers."""
    os.kill(os.getppid(), signal.SIGKILL)
    hang()


def start_helpers(pids: Path) -> None:
    """What user code may start: a fork, a helper, and one that has left the worker's session."""
    started = [subprocess.Popen(["sleep", "10000"], start_new_session=apart).pid for apart in (False, True)]
    if (fork := os.fork()) == 0:
        while True:
            signal.pause()
    pids.write_text(" ".join(map(str, [*started, fork])))
