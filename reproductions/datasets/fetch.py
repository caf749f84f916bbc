"""Public data sets, fetched as their authors published them.

A file is downloaded as ``NAME.partial`` and gets its own name only when its size and its SHA-256 are right. What an
interrupted download left is continued, from any mirror. Standard library only.
"""

import hashlib
import os
import re
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from paceline import ConfigError, __version__
from paceline.core.fields import nearest
from paceline.files import check_regular, open_regular, write_atomically
from reproductions.datasets.published import PUBLISHED, PublishedFile, PublishedSet, is_whole

Progress = Callable[[str, int, int], None]
CHUNK = 1 << 16
PASSING = (408, 425, 429, 500, 502, 503, 504)  # answers that may be other ones a little later


@dataclass(frozen=True, slots=True)
class Patience:
    """With a mirror that breaks off: give up after so many ``attempts`` in a row that brought nothing new.

    ``timeout`` is how many seconds of silence break a connection; ``pause``, how many go by before the next attempt.
    Each further attempt in vain doubles it.
    """

    attempts: int = 3
    timeout: float = 30.0
    pause: float = 1.0


class _Broken(Exception):
    """A transfer that the next attempt may continue."""


class _Refused(Exception):
    """A mirror that does not have the file, however often it is asked."""


def fetch(name: str, to: Path | str, base_url: str | None = None, progress: Progress | None = None) -> Path:
    """Bring a data set into ``to/name`` and return that folder; what is there already, and right, is left alone.

    ``base_url`` is a folder of the web that has the files, instead of the public ones. ``progress(file, bytes,
    of_bytes)`` is called for every piece.
    """
    check_name(name)
    if base_url is not None and not (base_url.startswith(("http://", "https://")) and urlsplit(base_url).hostname):
        raise ConfigError(f"{base_url!r} is no address to fetch from: it must begin with https:// or http://")
    return fetch_published(PUBLISHED[name], Path(to), mirrors=[base_url] if base_url else None, progress=progress)


def check_name(name: str) -> None:
    """Refuse the name of a data set that is not known."""
    if name not in PUBLISHED:
        raise ConfigError(f"there is no data set {name!r}: {nearest(name, PUBLISHED)}")


def fetch_published(
    published: PublishedSet,
    to: Path,
    *,
    mirrors: Sequence[str] | None = None,
    progress: Progress | None = None,
    patience: Patience = Patience(),
) -> Path:
    """As ``fetch``, for any set of files whose sums are known."""
    folder = to / published.name
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    source = _Source(mirrors or published.mirrors, progress, patience)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder):
            missing = [file for file in published.files if not is_whole(folder / file.name, file)]
            if published.archive is None:
                for file in missing:
                    source.download(file, folder).replace(folder / file.name)
            elif missing:
                _fetch_packed(published.archive, missing, folder, source)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror or error}") from None
    finally:
        for each in made:
            with suppress(OSError):  # only what is empty is removed
                each.rmdir()
    return folder


def _fetch_packed(archive: PublishedFile, files: Sequence[PublishedFile], folder: Path, source: "_Source") -> None:
    """Unpack the archive that lies there, or one that is fetched and not kept."""
    if is_whole(folder / archive.name, archive):
        _unpack(folder / archive.name, files, folder)
    else:
        partial = source.download(archive, folder)
        _unpack(partial, files, folder)
        partial.unlink()


def _unpack(archive: Path, files: Sequence[PublishedFile], folder: Path) -> None:
    """Write the files of an archive, wherever in it they are; nothing else of it."""
    wanted = {file.name: file for file in files}
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for member in packed:
                file = wanted.get(PurePosixPath(member.name).name)
                content = packed.extractfile(member) if file and member.size == file.size else None
                if file and content and hashlib.sha256(data := content.read()).hexdigest() == file.sha256:
                    write_atomically(folder / file.name, data)
                    del wanted[file.name]
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot unpack {archive}: {error}") from None
    if wanted:
        raise ConfigError(f"{archive} does not hold {', '.join(wanted)} as published")


@dataclass(frozen=True, slots=True)
class _Source:
    mirrors: Sequence[str]
    progress: Progress | None
    patience: Patience

    def download(self, file: PublishedFile, folder: Path) -> Path:
        """The file, whole and checked, as it is while it has no name of its own yet."""
        partial = folder / f"{file.name}.partial"
        check_regular(partial, written=True)
        troubles: list[str] = []
        for mirror in self.mirrors:
            trouble = self._from_mirror(mirror.rstrip("/") + "/" + file.name, file, partial)
            if trouble is None:
                return partial
            troubles.append(f"{urlsplit(mirror).netloc}: {trouble}")
        kept = _length(partial)
        rest = f" ({kept:,} of {file.size:,} bytes are kept: the same command continues from there)" if kept else ""
        raise ConfigError(f"cannot fetch {file.name}: {'; '.join(troubles)}{rest}")

    def _from_mirror(self, url: str, file: PublishedFile, partial: Path) -> str | None:
        """Fetch what is missing; the trouble, if that did not succeed."""
        furthest = _length(partial)
        inherited = furthest > 0
        in_vain = 0
        while True:
            try:
                self._transfer(url, file, partial)
            except _Refused as error:
                return str(error)
            except _Broken as error:
                length = _length(partial)
                in_vain = 0 if length > furthest else in_vain + 1
                furthest = max(furthest, length)
                if in_vain >= self.patience.attempts:
                    return str(error)
                time.sleep(self.patience.pause * 2 ** max(0, in_vain - 1))
                continue
            if is_whole(partial, file):
                return None
            partial.unlink()
            if not inherited:
                return "what it sends is not what was published: its SHA-256 differs"
            inherited, furthest = False, 0  # what was there before may have been wrong: all of it from this mirror

    def _transfer(self, url: str, file: PublishedFile, partial: Path) -> None:
        """Continue the partial file to its end, or begin again if the server sends the whole file."""
        begin = _length(partial)
        if begin >= file.size:
            return
        headers = {"User-Agent": f"paceline/{__version__}", "Accept-Encoding": "identity"}
        if begin:
            headers["Range"] = f"bytes={begin}-"
        with _answer(Request(url, headers=headers), self.patience.timeout, partial) as response:
            done = _first_byte(response, file, begin, partial)
            begin_at = os.O_APPEND if done else os.O_TRUNC
            with open_regular(partial, os.O_WRONLY | os.O_CREAT | begin_at) as output:
                self._report(file, done)
                while chunk := _read(response):
                    done += len(chunk)
                    if done > file.size:
                        raise _Refused(f"it sends more than the {file.size:,} bytes that were published")
                    output.write(chunk)
                    self._report(file, done)
                output.flush()
                os.fsync(output.fileno())
        if done < file.size:
            raise _Broken(f"the connection ended after {done:,} of {file.size:,} bytes")

    def _report(self, file: PublishedFile, done: int) -> None:
        if self.progress is not None:
            self.progress(file.name, done, file.size)


def _answer(request: Request, timeout: float, partial: Path) -> HTTPResponse:
    try:
        response: HTTPResponse = urlopen(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if error.code == 416:  # there is nothing after what we have: then that is no part of this file
            partial.unlink()
            raise _Broken("it cannot continue what is there") from None
        kind = _Broken if error.code in PASSING else _Refused
        raise kind(f"HTTP {error.code} {error.reason}".strip()) from None
    except URLError as error:
        raise _Broken(_words(error.reason)) from None
    except (HTTPException, OSError) as error:
        raise _Broken(_words(error)) from None
    except ValueError as error:
        raise _Refused(f"{request.full_url!r} is no address: {error}") from None
    return response


def _first_byte(response: HTTPResponse, file: PublishedFile, begin: int, partial: Path) -> int:
    """Where in the file the answer begins; refused if it cannot be this file."""
    if response.status == 206:
        described = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if described is None or int(described[1]) != begin:
            partial.unlink()
            raise _Broken("it sent another part than the one asked for")
        begins, whole = begin, described[2]
    else:
        begins, whole = 0, response.headers.get("Content-Length", "*")
    if whole not in ("*", str(file.size)):
        raise _Refused(f"its file has {whole} bytes, not the {file.size} that were published")
    return begins


def _read(response: HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)
    except (OSError, HTTPException) as error:
        raise _Broken(_words(error)) from None


def _words(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep a second process from appending to the same partial file, where the system can."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process fetches into {folder}: wait for it to end") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)
