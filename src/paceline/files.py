"""Files that are there whole, or not at all; and files from somebody else, in which nothing is followed or waited for.

A directory may come from anybody. A link in it could make Paceline cut or overwrite a file of the user's, and a pipe
would keep it waiting for ever. So links, pipes and devices in it are refused, for reading too.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from paceline.core.errors import CannotWrite, ConfigError

WHY = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of this disk is used up",
    errno.EFBIG: "the file would be larger than is allowed here",
    errno.EROFS: "the file system is read-only",
}

NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # where the system has it


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file under another name first, and then give it its own."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.unlink(missing_ok=True)
            with open_regular(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            with suppress(OSError):  # the first error is the one to report
                partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Raise errors of the disk as ``CannotWrite``, with the file that was to be written."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path | str, error: OSError) -> CannotWrite:
    return CannotWrite(f"cannot write {path}: {why(error)}")


def why(error: OSError) -> str:
    """What the operating system says, in words."""
    return WHY.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__


def read_bytes(path: Path) -> bytes:
    """The content of a file of the user's own, which may be a link; that of a pipe or a device might never end."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(mode := os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"cannot read {path}: it is no file, but a {_kind(mode)}")
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {why(error)}") from None


def read_text(path: Path) -> str:
    """The same, of a text."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8: byte {error.start} is {error.object[error.start]:#x}") from None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


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
    check_place(path)


def check_place(path: Path) -> None:
    """The same, of a file with any name."""
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    check_parent(path)


def check_parent(path: Path) -> None:
    """Refuse a place in which nothing can be made."""
    from tempfile import TemporaryFile

    parent = next(each for each in path.absolute().parents if each.exists())
    try:
        with TemporaryFile(dir=parent):  # what a user may do is not all that counts: a disk can be read-only
            pass
    except OSError as error:
        reason = f"{parent} is no directory that can be written to ({why(error)})"
        raise ConfigError(f"cannot write {path}: {reason}") from None


def is_there(path: Path) -> bool:
    """Is there anything of this name? Also a link that leads nowhere."""
    return os.path.lexists(path)


def check_regular(path: Path, *, written: bool = False) -> None:
    """Refuse what is there and is no file of its own: a link, a pipe, a device, a directory.

    A file to be ``written`` in place must have no second name (hard link): what has it would be changed too.
    """
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {why(error)}") from None
    _refuse_irregular(path, found, written=written)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a file, or raise ``ConfigError`` for what ``check_regular`` refuses; what is appended is not buffered.

    The check is made again of what was opened, so that nothing can be put there in between.
    """
    careful = NO_LINK | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC
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
