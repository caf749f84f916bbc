"""Processes that tests start, which end with them."""

import subprocess
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
