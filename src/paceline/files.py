"""Files that are there whole, or not at all."""

import os
import re
from pathlib import Path

from paceline.core.errors import ConfigError


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file under another name first, and then give it its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def remove_partial(directory: Path) -> None:
    """Remove what a process that was killed while it wrote there left."""
    for path in directory.iterdir():
        if is_partial(path):
            path.unlink(missing_ok=True)


def is_partial(path: Path) -> bool:
    return re.fullmatch(r"\..+\.\d+\.partial", path.name) is not None


def check_writable(path: Path, suffix: str) -> None:
    """Refuse, before anything is computed, a place where a file cannot be written."""
    if path.suffix != suffix:
        raise ConfigError(f"{path} must end with {suffix}: that is what is written there")
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    parent = next(each for each in path.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"cannot write {path}: {parent} is no directory that can be written to")
