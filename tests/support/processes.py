"""Processes that tests start, which end with them."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

PATIENCE = 500.0  # seconds until something that hangs is given up: a busy machine may take its time


@contextmanager
def reaped(process: "subprocess.Popen[Any]") -> Iterator[None]:
    """However the block ends, the process and all that descends from it are gone afterwards."""
    family: list[psutil.Process] = []
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(family, timeout=PATIENCE)


def wait_until_gone(pids: list[int]) -> None:
    """Those that are only waiting to be reaped are gone."""
    until = time.monotonic() + PATIENCE
    while alive := [pid for pid in pids if psutil.pid_exists(pid) and not is_zombie(pid)]:
        assert time.monotonic() < until, f"{alive} are still there"
        time.sleep(0.01)


def is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
