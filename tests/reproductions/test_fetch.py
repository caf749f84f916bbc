"""Downloads that break off, continue, and are never half there: against a server of our own."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from reproductions.cli import app
from reproductions.datasets import fetch as fetching
from reproductions.datasets.fetch import Patience, fetch, fetch_published
from reproductions.datasets.published import CIFAR10, MNIST, PublishedFile, PublishedSet

CONTENT = bytes(range(256)) * 1000
HALF = len(CONTENT) // 2
QUICK = Patience(attempts=3, timeout=60.0, pause=0.0)


def published(content: bytes, name: str = "numbers.gz") -> PublishedFile:
    return PublishedFile(name, len(content), hashlib.sha256(content).hexdigest())


NUMBERS = PublishedSet("numbers", mirrors=(), files=(published(CONTENT),))
UNPACKED = {"one.bin": b"one" * 500, "two.bin": b"two" * 700}


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"inside/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


ARCHIVE = packed({**UNPACKED, "readme.html": b"not wanted"})
PACKED = PublishedSet(
    "packed",
    mirrors=(),
    files=tuple(published(content, name) for name, content in UNPACKED.items()),
    archive=published(ARCHIVE, "packed.tar.gz"),
)


@dataclass
class Behaviour:
    """How the server answers, and what it was asked. Each answer breaks off after so many bytes; the last for ever."""

    content: bytes = CONTENT
    ranges: bool = True
    breaks: Sequence[int | None] = (None,)
    stalls: bool = False
    status: int | None = None
    announces: bool = True
    asked: list[str | None] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self) -> None:
        how, wanted = self.behaviour, self.headers["Range"]
        how.asked.append(wanted)
        if how.status is not None:
            self.send_error(how.status)
            return
        begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and how.ranges else 0
        if wanted and begin >= len(how.content):
            self.send_error(416)
            return
        self.send_response(206 if wanted and how.ranges else 200)
        if wanted and how.ranges:
            self.send_header("Content-Range", f"bytes {begin}-{len(how.content) - 1}/{len(how.content)}")
        if how.announces:
            self.send_header("Content-Length", str(len(how.content) - begin))
        self.end_headers()
        limit = how.breaks[min(len(how.asked), len(how.breaks)) - 1]
        self.wfile.write(how.content[begin:] if limit is None else how.content[begin : begin + limit])
        if how.stalls and limit is not None:
            self.wfile.flush()
            self.connection.settimeout(60)
            self.connection.recv(1)  # until the other side hangs up

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[Behaviour]:
    handler = type("OneHandler", (Handler,), {"behaviour": behaviour})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        behaviour.url = f"http://127.0.0.1:{server.server_port}/data"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield behaviour
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Callable[[Behaviour], Behaviour]]:
    opened = []

    def serve(behaviour: Behaviour) -> Behaviour:
        context = serving(behaviour)
        opened.append(context)
        return context.__enter__()

    yield serve
    for context in opened:
        context.__exit__(None, None, None)


Serve = Callable[[Behaviour], Behaviour]


def get(to: Path, *servers: Behaviour, what: PublishedSet = NUMBERS, patience: Patience = QUICK) -> Path:
    return fetch_published(what, to, mirrors=[each.url for each in servers], patience=patience)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WHOLE = {"numbers/numbers.gz": CONTENT}


def test_a_file_is_fetched_and_every_piece_is_reported(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour())
    reported: list[tuple[str, int, int]] = []
    folder = fetch_published(NUMBERS, tmp_path, mirrors=[how.url], progress=lambda *each: reported.append(each))
    assert folder == tmp_path / "numbers"
    assert files_in(tmp_path) == WHOLE
    assert reported[0] == ("numbers.gz", 0, len(CONTENT))
    assert reported[-1] == ("numbers.gz", len(CONTENT), len(CONTENT))
    assert reported == sorted(reported)


def test_a_connection_that_breaks_off_half_way_is_gone_on_with(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour(breaks=(HALF, None)))
    get(tmp_path, how)
    assert how.asked == [None, f"bytes={HALF}-"]
    assert files_in(tmp_path) == WHOLE


def test_attempts_that_bring_something_do_not_count(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour(breaks=(len(CONTENT) // 10,)))
    get(tmp_path, how)
    assert len(how.asked) == 10 > QUICK.attempts
    assert files_in(tmp_path) == WHOLE


def test_attempts_in_vain_wait_longer_each_time(tmp_path: Path, server: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("reproductions.datasets.fetch.time.sleep", pauses.append)
    with pytest.raises(ConfigError, match="HTTP 503 Service Unavailable"):
        get(tmp_path, server(Behaviour(status=503)), patience=Patience(attempts=4, pause=1.0))
    assert pauses == [1.0, 2.0, 4.0]


def test_a_silent_server_is_left(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour(breaks=(HALF, None), stalls=True))
    get(tmp_path, how, patience=Patience(attempts=100, timeout=0.3, pause=0.0))
    first, second, *again = how.asked  # more than twice if this machine was too busy to answer in time
    assert (first, {second, *again}) == (None, {f"bytes={HALF}-"})
    assert files_in(tmp_path) == WHOLE


def test_a_server_that_ignores_ranges_is_read_from_the_start(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour(ranges=False, breaks=(HALF, None)))
    get(tmp_path, how)
    assert how.asked == [None, f"bytes={HALF}-"]
    assert files_in(tmp_path) == WHOLE


def test_a_server_that_ignores_ranges_and_always_breaks_off_is_given_up(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour(ranges=False, breaks=(HALF,)))
    with pytest.raises(ConfigError, match=r"cannot fetch numbers\.gz: 127.*ended after 128,000 of 256,000 bytes"):
        get(tmp_path, how)
    assert len(how.asked) == 1 + QUICK.attempts


def test_a_fetch_that_failed_keeps_its_part_and_the_next_goes_on(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour(breaks=(HALF, 0)))
    with pytest.raises(ConfigError, match=r"\(128,000 of 256,000 bytes are kept: the same command continues"):
        get(tmp_path, how)
    assert files_in(tmp_path) == {"numbers/numbers.gz.partial": CONTENT[:HALF]}
    again = server(Behaviour())
    get(tmp_path, again)
    assert again.asked == [f"bytes={HALF}-"]
    assert files_in(tmp_path) == WHOLE


def test_an_interrupted_fetch_leaves_a_part_and_the_next_goes_on(tmp_path: Path, server: Serve) -> None:
    def interrupt(name: str, done: int, size: int) -> None:
        if done > HALF:
            raise KeyboardInterrupt

    how = server(Behaviour())
    with pytest.raises(KeyboardInterrupt):
        fetch_published(NUMBERS, tmp_path, mirrors=[how.url], progress=interrupt)
    (part,) = files_in(tmp_path).values()
    assert part == CONTENT[: len(part)] != b""
    assert not (tmp_path / "numbers/numbers.gz").exists()
    get(tmp_path, how)
    assert how.asked == [None, f"bytes={len(part)}-"]
    assert files_in(tmp_path) == WHOLE


def test_the_next_mirror_goes_on_where_the_first_stopped(tmp_path: Path, server: Serve) -> None:
    first, second = server(Behaviour(breaks=(HALF, 0))), server(Behaviour())
    get(tmp_path, first, second)
    assert second.asked == [f"bytes={HALF}-"]
    assert files_in(tmp_path) == WHOLE


@pytest.mark.parametrize("status", [404, 403])
def test_a_mirror_without_the_file_is_asked_once(tmp_path: Path, server: Serve, status: int) -> None:
    first, second = server(Behaviour(status=status)), server(Behaviour())
    get(tmp_path, first, second)
    assert len(first.asked) == 1
    assert files_in(tmp_path) == WHOLE


def test_a_mirror_that_is_busy_is_asked_again(tmp_path: Path, server: Serve) -> None:
    first, second = server(Behaviour(status=503)), server(Behaviour())
    get(tmp_path, first, second)
    assert len(first.asked) == QUICK.attempts
    assert files_in(tmp_path) == WHOLE


def test_a_mirror_that_is_not_there_is_left_for_the_next(tmp_path: Path, server: Serve) -> None:
    with serving(Behaviour()) as gone:
        pass
    get(tmp_path, gone, server(Behaviour()))
    assert files_in(tmp_path) == WHOLE


def test_wrong_content_is_never_kept(tmp_path: Path, server: Serve) -> None:
    wrong = server(Behaviour(content=CONTENT[::-1]))
    with pytest.raises(ConfigError, match="not what was published: its SHA-256 differs") as caught:
        get(tmp_path, wrong)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    get(tmp_path, wrong, server(Behaviour()))
    assert files_in(tmp_path) == WHOLE


@pytest.mark.parametrize("breaks", [(None,), (HALF, None)])
def test_wrong_content_from_the_same_mirror_ends(tmp_path: Path, server: Serve, breaks: Sequence[int | None]) -> None:
    wrong = server(Behaviour(content=CONTENT[::-1], breaks=breaks))
    with pytest.raises(ConfigError, match="SHA-256 differs"):
        get(tmp_path, wrong)
    assert len(wrong.asked) == len(breaks)


def test_a_wrong_part_from_before_is_replaced(tmp_path: Path, server: Serve) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers/numbers.gz.partial").write_bytes(b"x" * HALF)
    how = server(Behaviour())
    get(tmp_path, how)
    assert how.asked == [f"bytes={HALF}-", None]
    assert files_in(tmp_path) == WHOLE


@pytest.mark.parametrize("length", [len(CONTENT), len(CONTENT) + 5])
def test_a_part_that_is_long_enough_is_checked_without_asking(tmp_path: Path, server: Serve, length: int) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers/numbers.gz.partial").write_bytes((CONTENT + b"other")[:length])
    how = server(Behaviour())
    get(tmp_path, how)
    assert how.asked == ([] if length == len(CONTENT) else [None])
    assert files_in(tmp_path) == WHOLE


@pytest.mark.parametrize("content", [b"<html>log in first</html>", CONTENT + b"more"])
@pytest.mark.parametrize("announces", [True, False])
def test_something_of_another_size_is_refused(tmp_path: Path, server: Serve, content: bytes, announces: bool) -> None:
    how = server(Behaviour(content=content, announces=announces))
    with pytest.raises(ConfigError, match=r"its file has \d+ bytes, not the 256000|sends more than|cannot continue"):
        get(tmp_path, how)
    assert not (tmp_path / "numbers/numbers.gz").exists()


def test_a_range_that_cannot_be_is_given_up_for_the_whole(tmp_path: Path, server: Serve) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers/numbers.gz.partial").write_bytes(CONTENT[:HALF])
    short, good = server(Behaviour(content=CONTENT[: HALF - 1])), server(Behaviour())
    get(tmp_path, short, good)
    assert short.asked == [f"bytes={HALF}-", None]
    assert files_in(tmp_path) == WHOLE


@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "pipe"])
def test_a_half_fetched_file_that_leads_elsewhere_is_not_written_to(tmp_path: Path, server: Serve, kind: str) -> None:
    (tmp_path / "numbers").mkdir()
    ours, partial = tmp_path / "ours", tmp_path / "numbers/numbers.gz.partial"
    ours.write_bytes(b"keep")
    if kind == "pipe":
        os.mkfifo(partial)
    else:
        (partial.symlink_to if kind == "symbolic link" else partial.hardlink_to)(ours)
    how = server(Behaviour())
    with pytest.raises(ConfigError, match=f"numbers.gz.partial .*{kind}"):
        get(tmp_path, how)
    assert ours.read_bytes() == b"keep"
    assert how.asked == []


def test_what_is_there_and_right_is_not_fetched_again(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour())
    get(tmp_path, how)
    get(tmp_path, how)
    assert len(how.asked) == 1


def test_what_is_there_and_wrong_is_fetched_again(tmp_path: Path, server: Serve) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers/numbers.gz").write_bytes(CONTENT[:-1] + b"x")
    get(tmp_path, server(Behaviour()))
    assert files_in(tmp_path) == WHOLE


def test_an_archive_is_unpacked_and_not_kept(tmp_path: Path, server: Serve) -> None:
    how = server(Behaviour(content=ARCHIVE, breaks=(100, None)))
    get(tmp_path, how, what=PACKED)
    get(tmp_path, how, what=PACKED)
    assert len(how.asked) == 2
    assert files_in(tmp_path) == {f"packed/{name}": content for name, content in UNPACKED.items()}


def test_an_archive_of_ones_own_is_unpacked_and_left_there(tmp_path: Path, server: Serve) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed/packed.tar.gz").write_bytes(ARCHIVE)
    how = server(Behaviour(content=ARCHIVE))
    get(tmp_path, how, what=PACKED)
    assert how.asked == []
    unpacked = {f"packed/{name}": content for name, content in UNPACKED.items()}
    assert files_in(tmp_path) == {**unpacked, "packed/packed.tar.gz": ARCHIVE}


def test_an_archive_without_its_files_is_refused(tmp_path: Path, server: Serve) -> None:
    content = packed({"one.bin": UNPACKED["one.bin"], "two.bin": b"other"})
    what = PublishedSet("packed", (), PACKED.files, archive=published(content, "packed.tar.gz"))
    with pytest.raises(ConfigError, match=r"does not hold two\.bin as published"):
        get(tmp_path, server(Behaviour(content=content)), what=what)
    assert not (tmp_path / "packed/two.bin").exists()


def test_no_folders_are_left_where_nothing_came(tmp_path: Path, server: Serve) -> None:
    with pytest.raises(ConfigError, match="HTTP 404"):
        get(tmp_path / "new/folder", server(Behaviour(status=404)))
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_reported(tmp_path: Path, server: Serve) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write to .*taken/numbers: Not a directory"):
        get(tmp_path / "taken", server(Behaviour()))


@pytest.mark.skipif(sys.platform == "win32", reason="the system has no such locks")
def test_two_fetches_do_not_write_to_the_same_part(tmp_path: Path, server: Serve) -> None:
    import fcntl

    (tmp_path / "numbers").mkdir()
    other = os.open(tmp_path / "numbers", os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process fetches into"):
            get(tmp_path, server(Behaviour()))
    finally:
        os.close(other)


def test_an_unknown_name_or_address_is_reported() -> None:
    with pytest.raises(ConfigError, match="no data set 'minst': did you mean 'mnist'"):
        fetch("minst", "anywhere")
    with pytest.raises(ConfigError, match="'file:///etc' is no address to fetch from"):
        fetch("mnist", "anywhere", base_url="file:///etc")


def test_the_published_sets_are_those_of_the_readers() -> None:
    from paceline.data import images

    assert {file.name for file in MNIST.files} == {f"{name}.gz" for pair in images.MNIST_FILES for name in pair}
    assert tuple(file.name for file in CIFAR10.files) == images.CIFAR10_FILES
    assert CIFAR10.archive is not None
    assert CIFAR10.archive.name == images.CIFAR10_ARCHIVE
    assert {file.size for file in CIFAR10.files} == {images.CIFAR10_RECORDS * 3073}
    sums = [file.sha256 for each in (MNIST, CIFAR10) for file in each.files]
    assert len(set(sums)) == len(sums) == 10
    assert {len(each) for each in sums} == {64}
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in MNIST.mirrors + CIFAR10.mirrors)


@pytest.fixture
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PUBLISHED", {"mnist": PublishedSet("mnist", (), NUMBERS.files)})


def run(*arguments: str) -> None:
    app(args=list(arguments), standalone_mode=False)


@pytest.mark.usefixtures("small_mnist")
def test_the_command_tells_what_it_does(tmp_path: Path, server: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    how = server(Behaviour())
    for _ in range(2):
        run("fetch", "mnist", "--to", str(tmp_path), "--from", how.url)
    out, err = capsys.readouterr()
    place = f"in {tmp_path}/mnist: use it with --data {tmp_path}"
    assert out.splitlines() == [f"mnist is {place}", f"mnist is already {place}"]
    assert err.splitlines() == ["fetching numbers.gz (0.3 MB) ..."]


def test_the_command_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.engine.signals import Interrupted

    def interrupt(*arguments: object, **options: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "fetch", interrupt)
    with pytest.raises(Interrupted, match="interrupted; the same command continues with what is in"):
        run("fetch", "mnist", "--to", str(tmp_path))
    with pytest.raises(Interrupted, match="interrupted; nothing was written"):
        run("fetch", "mnist", "--to", str(tmp_path / "new"))


def test_the_command_without_a_name_helps(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    assert "fetch" in capsys.readouterr().out


def test_the_command_refuses_an_unknown_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no data set 'imagenet': choose from mnist, cifar10"):
        run("fetch", "imagenet", "--to", str(tmp_path))


def test_the_command_and_the_fetch_load_nothing_heavy() -> None:
    code = "import sys, reproductions.cli, reproductions.datasets.fetch; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "torch", "matplotlib", "sklearn"} & set(result.stdout.split())
