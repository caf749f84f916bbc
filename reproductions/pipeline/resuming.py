"""Checkpoints of a run that is not made by ``paceline.train``: the folder that a campaign gives it has the last one."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError
from paceline.storage.checkpoint import read_checkpoint, write_checkpoint

FILE = "checkpoint.safetensors"


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
