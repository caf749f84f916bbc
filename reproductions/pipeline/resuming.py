"""Checkpoints of runs of a campaign: the folder that it gives a run has the last one."""

import logging
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from paceline.core.errors import ConfigError
from paceline.engine.signals import Terminated
from paceline.storage.checkpoint import read_checkpoint, write_checkpoint

FILE = "checkpoint.safetensors"
T = TypeVar("T")


def keep(scratch: Path | None, state: Mapping[str, Any]) -> None:
    """Write a checkpoint of plain values, arrays and tensors, whole or not at all; nothing without a folder."""
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
        write_checkpoint(scratch / FILE, state)


def kept(scratch: Path | None) -> dict[str, Any] | None:
    """The last checkpoint. One that is damaged is not used, and that is said: the run begins anew."""
    if scratch is None or not (scratch / FILE).exists():
        return None
    try:
        return read_checkpoint(scratch / FILE)
    except ConfigError as error:
        print(f"{error}; the run begins anew", file=sys.stderr)
        return None


def resumed(scratch: Path | None, run: Callable[[], T]) -> T:
    """What ``run`` returns, which calls ``paceline.train`` with ``directory=scratch`` and ``resume``.

    If it is refused what lies in the folder, that is removed and said, and it begins anew.
    """
    with _ended_by_the_campaign():
        try:
            return run()
        except ConfigError as error:
            if scratch is None or not scratch.exists():
                raise
            print(f"{error}; the run begins anew", file=sys.stderr)
            shutil.rmtree(scratch)
            return run()


@contextmanager
def _ended_by_the_campaign() -> Iterator[None]:
    """``train`` says how it is resumed when a signal ends it; in a campaign that is for the command to say."""

    def wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith((f"{signal.SIGINT.name}:", f"{signal.SIGTERM.name}:"))

    log = logging.getLogger("paceline")
    log.addFilter(wanted)
    try:
        yield
    except SystemExit as ended:
        if ended.code == 128 + signal.SIGTERM:
            raise Terminated from None
        raise
    finally:
        log.removeFilter(wanted)
