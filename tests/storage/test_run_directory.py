"""A directory is written by one run at a time; the others are refused in one line, and change nothing."""

import builtins
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import paceline as pl
from paceline.cli.main import main
from paceline.files import DirectoryLock
from support.forks import forked
from support.processes import reaped
from support.resumable import CASES
from support.tiny import COMPENSATED

CASE = CASES["compensation"]
TESTS = Path(__file__).parents[1]
STOP = pl.Stop(updates=4)


class Inside(pl.Callback):
    """Does something after the first update of a run, and keeps what is raised."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act: Callable[[], object] | None = act
        self.error: BaseException | None = None

    def on_update(self, info: Any) -> None:
        act, self.act = self.act, None
        if act is not None:
            try:
                act()
            except pl.ConfigError as error:
                self.error = error


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_within_a_run_of_the_same_directory_is_refused(resume: bool, tmp_path: Path) -> None:
    CASE.run(tmp_path / "alone", STOP, resume=resume)
    inner = Inside(lambda: CASE.run(tmp_path / "run", STOP, resume=resume))
    CASE.run(tmp_path / "run", STOP, resume=resume, callbacks=[inner])
    assert str(inner.error) == (
        f"{tmp_path / 'run'} is being written by this process already: wait for that run to end"
    )
    assert contents(tmp_path / "run") == contents(tmp_path / "alone")


def test_one_run_after_the_other_is_not(tmp_path: Path) -> None:
    for updates in (2, 3, 4):
        CASE.run(tmp_path / "run", pl.Stop(updates=updates), resume=True)
    with pytest.raises(pl.ConfigError, match="holds a run already"):
        CASE.run(tmp_path / "run", STOP)
    with pytest.raises(pl.ConfigError, match="the run was begun with"):
        CASE.run(tmp_path / "run", STOP, resume=True, seed=4)
    assert CASE.run(tmp_path / "run", pl.Stop(updates=5), resume=True).history[-1].updates == 5


def test_nor_runs_in_other_directories(tmp_path: Path) -> None:
    inner = Inside(lambda: CASE.run(tmp_path / "other", STOP))
    CASE.run(tmp_path / "run", STOP, callbacks=[inner])
    assert inner.error is None
    assert contents(tmp_path / "run") == contents(tmp_path / "other")


def test_a_directory_that_is_about_to_get_its_first_file_is_taken(tmp_path: Path) -> None:
    """Before it is looked at: two that begin at once would both find it empty."""
    lock = DirectoryLock(tmp_path)
    try:
        with pytest.raises(pl.ConfigError, match="is being written by"):
            CASE.run(tmp_path, STOP)
        assert contents(tmp_path) == {}
    finally:
        lock.release()
    CASE.run(tmp_path, STOP)


def test_the_command_line_names_the_process_that_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, run = tmp_path / "file.toml", tmp_path / "run"
    file.write_text(COMPENSATED)
    assert main(["train", str(file), "--directory", str(run), "--no-check-lr"]) == 0
    before = contents(run)
    capsys.readouterr()
    code = "import sys; from pathlib import Path; from paceline.files import DirectoryLock; "
    code += f"lock = DirectoryLock(Path({str(run)!r})); print('locked', flush=True); sys.stdin.read()"
    writer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with reaped(writer):
        assert writer.stdout is not None
        assert writer.stdout.readline() == "locked\n"
        assert main(["train", "--resume", str(run)]) == 2
        said = capsys.readouterr().err
        assert said == f"error: {run} is being written by process {writer.pid}: wait for it, or end it\n"
        assert contents(run) == before
        writer.kill()
        writer.wait()
        assert main(["train", "--resume", str(run), "--no-check-lr"]) == 0


def test_a_run_on_processes_can_be_resumed_as_soon_as_its_process_was_killed(tmp_path: Path) -> None:
    """Its workers and the fork server may still be there, and hold nothing."""
    code = "from pathlib import Path; from support.resumable import endless_processes; endless_processes(Path({!r}))"
    server = subprocess.Popen([sys.executable, "-c", code.format(str(tmp_path / "run"))], cwd=TESTS)
    with reaped(server):
        while not (tmp_path / "run" / "checkpoint.safetensors").exists():
            assert server.poll() is None, "it ended by itself"
            time.sleep(0.01)
        with pytest.raises(pl.ConfigError, match=f"is being written by process {server.pid}: "):
            DirectoryLock(tmp_path / "run")
        server.kill()
        assert server.wait() == -signal.SIGKILL
        DirectoryLock(tmp_path / "run").release()


def outlived(directory: Path) -> None:
    """A process locks a directory, makes a fork of itself, and is killed; the fork lives on."""
    started, start = os.pipe()
    ended, end = os.pipe()
    if (writer := os.fork()) == 0:
        lock = DirectoryLock(directory)
        if os.fork() == 0:
            os.close(end)
            os.write(start, b"x")
            os.read(ended, 1)  # until nobody can write there
            os._exit(0)
        os.close(start)
        signal.pause()
        lock.release()
    os.close(start)
    assert os.read(started, 1) == b"x"
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    DirectoryLock(directory).release()
    os.close(end)
    assert os.read(started, 1) == b""  # the fork is gone


def released(directory: Path) -> None:
    """A fork that was made while a directory was locked, and by no means that Python knows of, does not keep it."""
    lock = DirectoryLock(directory)
    copy = os.dup(next(each for each in map(int, os.listdir("/proc/self/fd")) if is_open_at(each, directory)))
    lock.release()
    DirectoryLock(directory).release()
    os.close(copy)


def is_open_at(file: int, directory: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{file}") == str(directory)
    except OSError:  # the one that listed them
        return False


@pytest.mark.parametrize("act", [outlived, released])
def test_no_fork_keeps_a_directory_locked(act: Callable[[Path], None], tmp_path: Path) -> None:
    said = forked(partial(act, tmp_path))[0]
    assert (said.code, said.err) == (0, "")


def test_a_system_without_such_locks_does_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def lacking(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "fcntl":
            raise ImportError(name)
        return whole(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    one, other = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    one.release()
    other.release()
