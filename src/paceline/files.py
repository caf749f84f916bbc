"""Files that are there whole, or not at all; and files from somebody else, in which nothing is followed or waited for.

A directory may come from anybody. A link in it could make Paceline cut or overwrite a file of the user's, and a pipe
would keep it waiting for ever. So links, pipes and devices in it are refused, for reading too.
"""

import os
import re
import stat
from pathlib import Path
from typing import BinaryIO, cast

from paceline.core.errors import ConfigError


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file under another name first, and then give it its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.unlink(missing_ok=True)
        with open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
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


def is_there(path: Path) -> bool:
    """Is there anything of this name? Also a link that leads nowhere."""
    return os.path.lexists(path)


def check_regular(path: Path, *, written: bool = False) -> None:
    """Refuse what is there and is no file of its own: a link, a pipe, a device, a directory.

    A file to be ``written`` in place must have no second name (hard link): what has it would be changed too.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    _refuse_irregular(path, found, written=written)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a file, or raise ``ConfigError`` for what ``check_regular`` refuses; what is appended is not buffered.

    The check is made again of what was opened, so that nothing can be put there in between.
    """
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC
    writes = flags & (os.O_WRONLY | os.O_RDWR) != 0
    empties = flags & os.O_TRUNC
    check_regular(path, written=writes)
    handle = os.open(path, flags & ~os.O_TRUNC | careful, 0o644)
    try:
        _refuse_irregular(path, os.fstat(handle), written=writes)
        if empties:
            os.ftruncate(handle, 0)
        if flags & os.O_APPEND:
            return cast(BinaryIO, os.fdopen(handle, "ab", buffering=0))
        return os.fdopen(handle, "wb" if writes else "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, most: int = 1 << 30) -> bytes:
    """The content of a file from somebody else, if it is one, of at most so many bytes."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise ConfigError(f"{path} has {size:,} bytes, more than the {most:,} that such a file can have")
        return file.read()


def _refuse_irregular(path: Path, found: os.stat_result, *, written: bool) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(f"{path} is a symbolic link, and none is followed: put the file itself there")
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is no file, but a {_kind(found.st_mode)}")
    if written and found.st_nlink > 1:
        raise ConfigError(f"{path} has a second name (hard link), and would be changed under both: put a copy there")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
