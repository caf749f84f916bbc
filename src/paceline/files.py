"""Atomic writes, locks on what is being written, and safe access to files that were made by others.

A run directory may come from anyone. A symbolic link in it could make the library truncate or overwrite another file of
the user, and reading a pipe could block forever. So links, pipes and devices are refused, for reading too. A file with
holes may say that it has a terabyte and take no space: one that is nearly nothing but holes is refused as well.
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

# 0 where the system lacks it; Windows would translate line ends.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)

# No file of a run is of zeros nearly everywhere; where disks are compressed, its weights still take some of them.
# Below a page, file systems do not tell yet what a file that was just written takes.
HOLEY, OF_HOLES, PAGE = 1 << 26, 100, 4096


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file completely under a temporary name, then rename it."""
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
            with suppress(OSError):  # do not hide an earlier error
                partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Inside this block, an ``OSError`` becomes ``CannotWrite`` with the name of the file."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path | str, error: OSError) -> CannotWrite:
    """The error for a file that could not be written."""
    return CannotWrite(f"cannot write {path}: {why(error)}")


def why(error: OSError) -> str:
    """The reason of an error of the operating system, in words."""
    return WHY.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__


def read_bytes(path: Path) -> bytes:
    """The content of a file that the user named, perhaps a link. Pipes and devices are refused: reading could block."""
    with open_named(path) as file:
        try:
            return file.read()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {why(error)}") from None


def open_named(path: Path) -> BinaryIO:
    """Open a file that the user named, perhaps a link, to read it. Pipes and devices are refused."""
    try:
        file = open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115 - who asked for it closes it
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {why(error)}") from None
    if not stat.S_ISREG(mode := os.fstat(file.fileno()).st_mode):
        file.close()
        raise ConfigError(f"cannot read {path}: it is a {_kind(mode)}, not a file")
    return file


def printable(text: str) -> str:
    """A text whose control characters are spelled out: what a foreign file says must not give orders to a terminal.

    So are marks that change the direction of what follows, or cannot be seen. Ends of lines and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def read_text(path: Path) -> str:
    """The text of a UTF-8 file that the user named; see ``read_bytes``."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#x}") from None


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | NO_WAIT)


def remove_partial(directory: Path) -> None:
    """Remove temporary files that a killed process left in a directory."""
    for path in directory.iterdir():
        if is_partial(path):
            path.unlink(missing_ok=True)


def is_partial(path: Path) -> bool:
    """Is this a temporary file of ``write_atomically``?"""
    return re.fullmatch(r"\..+\.\d+\.partial", path.name) is not None


def check_writable(path: Path, suffix: str) -> None:
    """Raise ``ConfigError`` if a file cannot be written there, or if its name does not end with ``suffix``."""
    if path.suffix != suffix:
        raise ConfigError(f"{path} must end with {suffix}")
    check_place(path)


def check_place(path: Path) -> None:
    """Raise ``ConfigError`` if a file cannot be written there."""
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    check_parent(path)


def check_parent(path: Path) -> None:
    """Raise ``ConfigError`` if nothing can be created there."""
    from tempfile import TemporaryFile

    parents = path.absolute().parents
    if broken := next((each for each in parents if each.is_symlink() and not each.exists()), None):
        raise ConfigError(f"cannot write {path}: {broken} is a symbolic link to nothing: remove it, or make its target")
    parent = next(each for each in parents if each.exists())
    try:
        with TemporaryFile(dir=parent):  # permissions are not enough: the file system may be read-only
            pass
    except OSError as error:
        reason = f"{parent} is not a writable directory ({why(error)})"
        raise ConfigError(f"cannot write {path}: {reason}") from None


def is_there(path: Path) -> bool:
    """Does the path exist? A broken link counts."""
    return os.path.lexists(path)


def check_regular(path: Path, *, written: bool = False) -> None:
    """Raise ``ConfigError`` if the path is a link, a pipe, a device or a directory. A missing file is fine.

    A file to be ``written`` in place must not have a second hard link, under which it would change too.
    """
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {why(error)}") from None
    _refuse_irregular(path, found, written=written)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Open a file, or raise ``ConfigError`` as ``check_regular`` does. Appending is not buffered.

    The open file is checked again, in case it was replaced after the first check.
    """
    careful = NO_LINK | NO_WAIT
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
    """The content of a regular file of at most ``most`` bytes."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise ConfigError(f"{path} has {size:,} bytes, more than the limit of {most:,}")
        return file.read()


# Locks of the system (``flock``): they end with their process, and leave no file. Where there are none (Windows, some
# network file systems), everybody gets one.


def lock(file: int) -> bool:
    """Lock an open file or directory until ``unlock``, or its process ends. False if somebody else has locked it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (OSError, ImportError):
        return True
    return True


def unlock(file: int) -> None:
    with suppress(OSError, ImportError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


def is_locked(file: int) -> bool:
    """Has somebody else locked an open file?"""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that those who ask do not meet each other
    except BlockingIOError:
        return True
    except (OSError, ImportError):
        return False
    unlock(file)
    return False


class DirectoryLock:
    """A directory that one run writes into. Raises ``ConfigError`` if another one does."""

    def __init__(self, path: Path) -> None:
        self._file = -1
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        except OSError:  # Windows opens none; and one that cannot be read is refused where that matters
            return
        if not lock(handle):
            writer = _who_locked(handle)
            os.close(handle)
            if writer == os.getpid():
                raise ConfigError(f"{path} is being written by this process already: wait for that run to end")
            named = "another process" if writer is None else f"process {writer}"
            raise ConfigError(f"{path} is being written by {named}: wait for it, or end it")
        self._file = handle
        _locks.add(self)

    def release(self) -> None:
        if self._file >= 0:
            unlock(self._file)  # closing is not enough where a fork of this process has it open
        self.forget()

    def forget(self) -> None:
        """Close it, but leave it locked if it is open elsewhere."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        _locks.discard(self)


_locks: set[DirectoryLock] = set()  # of this process


def _forget_locks() -> None:
    """In a fork: it may outlive the process that writes, and would keep its directories locked."""
    for each in [*_locks]:
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def _who_locked(file: int) -> int | None:
    """The process that has locked an open file, where the system tells."""
    found = os.fstat(file)
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[-3] == place and int(words[-4]) > 0:
                return int(words[-4])
    return None


def _refuse_irregular(path: Path, found: os.stat_result, *, written: bool) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(f"{path} is a symbolic link, which is not followed: put the file itself there")
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is a {_kind(found.st_mode)}, not a file")
    if written and found.st_nlink > 1:
        raise ConfigError(f"{path} has a second hard link, under which it would change too: put a copy there")
    taken = 512 * getattr(found, "st_blocks", 0)  # Windows does not tell
    if found.st_size > HOLEY and PAGE <= taken < found.st_size // OF_HOLES:
        raise ConfigError(
            f"{path} says that it has {found.st_size:,} bytes, and takes {taken:,} on the disk: it is nearly nothing "
            "but holes, and no run wrote it"
        )


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")
