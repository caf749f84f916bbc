"""Runs over the cores: kept when they are done, continued after an interruption, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from reproductions.pipeline.runs import Runner, Trial
from support.processes import PATIENCE, reaped

NUMBERS = 4
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Settings:
    """Of a run that squares a number and leaves its marks in ``directory``."""

    number: int
    directory: str


def square(settings: Settings) -> dict[str, Any]:
    """Runs from the third one on wait as long as there is a file named hold. Torch is loaded if one is named torch."""
    directory, threads = Path(settings.directory), 1
    if (directory / "torch").exists():
        import torch

        threads = torch.get_num_threads()
    with (directory / f"calls-{settings.number}").open("a") as calls:
        calls.write(f"{os.getpid()}\n")
    while settings.number >= 2 and (directory / "hold").exists():
        time.sleep(0.05)
    return {"square": settings.number**2, "threads": threads, "odd": float("nan")}


def refuse(settings: Settings) -> dict[str, Any]:
    raise ConfigError(f"no data for {settings.number}")


def settings(directory: Path) -> list[Settings]:
    return [Settings(number, str(directory)) for number in range(NUMBERS)]


def calls(directory: Path) -> list[int]:
    return [len(pids(directory, number)) for number in range(NUMBERS)]


def pids(directory: Path, number: int) -> list[int]:
    file = directory / f"calls-{number}"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def until(condition: Callable[[], bool]) -> bool:
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends and not condition():
        time.sleep(0.05)
    return condition()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_the_order_of_their_settings_each_with_one_thread(tmp_path: Path, processes: int) -> None:
    (tmp_path / "torch").write_text("")
    results = Runner(processes=processes).run(square, settings(tmp_path), label="squares")
    assert list(results) == settings(tmp_path)
    assert list(results.values()) == [{"square": n**2, "threads": 1, "odd": None} for n in range(NUMBERS)]


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    work = tmp_path / "work"
    runner = Runner(work, processes=1)
    first = runner.run(square, settings(tmp_path)[:2], label="squares")
    assert first.items() <= runner.run(square, settings(tmp_path), label="squares").items()
    assert calls(tmp_path) == [1, 1, 1, 1]
    assert len(list(work.iterdir())) == NUMBERS


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:20], "cannot be read ("),
        (lambda text: "[]", "damaged: there is no result"),
        (lambda text: text.replace('"result"', '"results"'), "damaged: there is no result"),
        (lambda text: text.replace('"square": 0', '"square": 1'), "damaged: the sum is another than was written"),
        (lambda text: text.replace('"torch": "', '"torch": "9'), "damaged: the sum is another than was written"),
    ],
)
def test_a_damaged_result_is_made_again_and_that_is_said(
    change: Callable[[str], str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    runner = Runner(work, processes=1)
    whole = runner.run(square, settings(tmp_path)[:1], label="squares")
    (file,) = work.iterdir()
    text = file.read_text()
    file.write_text(change(text))
    assert file.read_text() != text
    capsys.readouterr()
    assert runner.run(square, settings(tmp_path)[:1], label="squares") == whole
    assert calls(tmp_path)[0] == 2
    (line, _) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"squares: 1 kept result ({file.name}) is not used, and made again in {work}: {why}")
    assert runner.run(square, settings(tmp_path)[:1], label="squares") == whole
    assert (calls(tmp_path)[0], capsys.readouterr().err) == (2, "")


def test_results_of_other_code_are_made_again_and_one_line_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    runner = Runner(work, processes=1)
    runner.run(square, settings(tmp_path), label="squares")
    capsys.readouterr()
    with monkeypatch.context() as changed:
        changed.setattr("reproductions.pipeline.runs.fingerprint", lambda _: "other")
        runner.run(square, settings(tmp_path)[:3], label="squares")
    (line, _) = capsys.readouterr().err.splitlines()
    assert line == f"squares: 3 kept results are not used, and made again in {work}: made with other code"
    monkeypatch.setattr("reproductions.pipeline.runs.version", lambda _: "9.9")
    runner.run(square, settings(tmp_path), label="squares")
    lines = [each.rpartition(": ")[2] for each in capsys.readouterr().err.splitlines()[:-1]]
    assert lines == ["made with other code and torch", "made with other torch"]
    assert calls(tmp_path) == [3, 3, 3, 2]
    assert len(list(work.iterdir())) == NUMBERS


def test_other_settings_and_other_functions_have_files_of_their_own(tmp_path: Path) -> None:
    one, other = Settings(1, str(tmp_path)), Settings(2, str(tmp_path))
    assert len({Trial(square, one).file, Trial(square, other).file, Trial(refuse, one).file}) == 3
    assert Trial(square, one).file == Trial(square, Settings(1, str(tmp_path)), cost=3.0).file


@pytest.mark.parametrize("processes", [1, 2])
def test_the_error_of_a_run_is_raised(tmp_path: Path, processes: int) -> None:
    refused = [Settings(number, str(tmp_path)) for number in (7, 8)]
    with pytest.raises(ConfigError, match=r"no data for [78]"):
        Runner(processes=processes).run(refuse, refused, label="refused")


def test_a_place_that_cannot_hold_results_is_refused_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot keep runs in"):
        Runner(tmp_path / "file", processes=1).run(square, settings(tmp_path), label="squares")
    assert calls(tmp_path) == [0] * NUMBERS


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_after_an_interruption_no_process_is_left_and_the_rest_is_done_later(tmp_path: Path) -> None:
    """By Ctrl-C, by a kill, and then by nothing."""
    (tmp_path / "hold").write_text("")
    for number, how in enumerate((signal.SIGINT, signal.SIGKILL), start=1):
        with begin(tmp_path) as process, reaped(process):
            assert until(partial(half_done, tmp_path, number))
            process.send_signal(how)
            assert process.wait(timeout=PATIENCE) != 0
        assert until(lambda: not any(alive(pid) for each in range(NUMBERS) for pid in pids(tmp_path, each)))
        assert half_done(tmp_path, number)
    (tmp_path / "hold").unlink()
    with begin(tmp_path) as process, reaped(process):
        assert process.wait(timeout=PATIENCE) == 0
    assert calls(tmp_path) == [1, 1, 3, 3]


def half_done(directory: Path, tries: int) -> bool:
    """Are two of four runs kept, and were the others begun so many times?"""
    return calls(directory) == [1, 1, tries, tries] and len(list((directory / "work").glob("*.json"))) == 2


def test_a_background_job_ignores_ctrl_c_with_its_processes(tmp_path: Path) -> None:
    """As nohup and shells without job control start it: Ctrl-C of the terminal is for others."""
    (tmp_path / "hold").write_text("")
    with begin(tmp_path, on_ctrl_c="SIG_IGN") as process, reaped(process):
        assert until(lambda: calls(tmp_path) == [1] * NUMBERS)
        os.killpg(process.pid, signal.SIGINT)
        (tmp_path / "hold").unlink()
        assert process.wait(timeout=PATIENCE) == 0
    assert calls(tmp_path) == [1] * NUMBERS


def begin(directory: Path, on_ctrl_c: str = "default_int_handler") -> "subprocess.Popen[bytes]":
    script = f"""
import signal, sys
from pathlib import Path
sys.path[:0] = {[str(place) for place in (TESTS / "reproductions", TESTS, TESTS.parent)]!r}
from test_runs import settings, square
from reproductions.pipeline.runs import Runner
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.{on_ctrl_c})
    directory = Path({str(directory)!r})
    Runner(directory / "work", processes=2).run(square, settings(directory), label="squares")
"""
    (directory / "script.py").write_text(script)
    command = [sys.executable, str(directory / "script.py")]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
