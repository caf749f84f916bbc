"""A recorder notes the steps of a loop, survives what happens to its process, and refuses what cannot be."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import paceline as pl
from paceline.cli.main import main
from paceline.recording import recorder as recorder_module
from paceline.trace.recordings import read_recording
from support.recordings import write_job


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that shows what a test sets: ``clock[0]``."""
    at = [100.0]
    monkeypatch.setattr(recorder_module, "now", lambda: at[0])
    return at


def lines(file: Path) -> list[object]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_steps_are_recorded_with_their_samples(tmp_path: Path, clock: list[float]) -> None:
    with pl.record(tmp_path / "job", worker=3) as recorder:
        for samples in (32, 16, None):
            clock[0] += 1
            with recorder.step(samples):
                clock[0] += 0.5
    header, *steps, last = lines(tmp_path / "job" / "worker-3.jsonl")
    assert isinstance(header, dict)
    assert (header["worker"], header["workers"], header["opened"]) == (3, None, 100.0)
    assert steps == [[1.0, 1.5, 32, None, None], [2.5, 3.0, 16, None, None], [4.0, 4.5, None, None, None]]
    assert last == ["closed"]
    assert recorder.steps == 3


def test_waiting_is_what_was_put_into_wait(tmp_path: Path, clock: list[float]) -> None:
    with pl.record(tmp_path, worker=0) as recorder:
        with recorder.step(samples=8):
            clock[0] += 0.3
            for _ in range(2):
                with recorder.wait():
                    clock[0] += 0.1
            clock[0] += 0.05
        with recorder.wait():  # a barrier between two steps
            clock[0] += 1.0
        with recorder.step(samples=8):
            clock[0] += 0.4
    assert lines(recorder.path)[1:3] == [[0, 0.55, 8, 0.2, 0.5], [1.55, 1.95, 8, 1.0, 1.55]]
    assert read_recording(tmp_path).workers[0].updates[0].compute == pytest.approx(0.4)


def test_what_is_not_computing_is_waiting(tmp_path: Path, clock: list[float]) -> None:
    with pl.record(tmp_path, worker=0) as recorder, recorder.step():
        with recorder.compute():
            clock[0] += 0.3
        clock[0] += 0.2
        with recorder.compute():
            clock[0] += 0.1
    assert lines(recorder.path)[1] == [0, 0.6, None, 0.2, None]


def test_a_step_that_raises_is_not_recorded(tmp_path: Path) -> None:
    with pl.record(tmp_path, worker=0) as recorder:
        with pytest.raises(ZeroDivisionError), recorder.step():
            _ = 1 / 0
        with recorder.step():
            pass
    assert len(read_recording(tmp_path).workers[0].updates) == 1


def test_lines_are_written_four_times_a_second(tmp_path: Path, clock: list[float]) -> None:
    with pl.record(tmp_path, worker=0) as recorder:
        seen = []
        for _ in range(5):
            with recorder.step():
                clock[0] += 0.1
            seen.append(len(lines(recorder.path)) - 1)
    assert seen == [0, 0, 3, 3, 3]
    assert len(lines(recorder.path)) == 1 + 5 + 1


KILLED = """
import os, signal, sys
import paceline
from paceline.recording import recorder as module
module.FLUSH_SECONDS = 0.0
with paceline.record(sys.argv[1], worker=0) as recorder:
    for number in range(5):
        with recorder.step(samples=4), recorder.wait():
            pass
    os.kill(os.getpid(), signal.SIGKILL)
"""
LEFT_OPEN = """
import sys
import paceline
recorder = paceline.record(sys.argv[1], worker=0).open()
for number in range(5):
    with recorder.step(samples=4), recorder.wait():
        pass
"""


def run(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=False)


def test_what_was_recorded_survives_kill_9(tmp_path: Path) -> None:
    assert run(KILLED, tmp_path).returncode == -signal.SIGKILL
    found = read_recording(tmp_path)
    assert found.count == 4
    assert found.notes[0].startswith("Worker 0 did not close its recorder: it was killed")


def test_a_recorder_left_open_is_closed_and_named_when_its_process_ends(tmp_path: Path) -> None:
    result = run(LEFT_OPEN, tmp_path)
    assert result.returncode == 0
    assert result.stderr == (
        f"the recorder of worker 0 in {tmp_path} was left open: use it in a with statement, or call close()\n"
    )
    assert read_recording(tmp_path).notes[0] == "Worker 0 left its recorder open until its process ended."


@pytest.mark.parametrize("command", [["profile"], ["predict"], ["replay", "-s", "asgd"], ["report", "--out", "x.html"]])
def test_a_recorder_that_is_open_is_named_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *options = command
    with pl.record("job", worker=0) as recorder:
        with recorder.step():
            pass
        assert main([name, "job", *options]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: job/worker-0.jsonl is still open")
    assert (out, err.count("\n")) == ("", 1)
    assert os.listdir() == ["job"]


def test_two_recorders_of_one_worker_are_refused(tmp_path: Path) -> None:
    with (
        pl.record(tmp_path, worker=1) as recorder,
        pytest.raises(pl.ConfigError, match=r"has a recording of worker 1 already \(worker-1.jsonl\)"),
        pl.record(tmp_path, worker=1),
    ):
        pass
    with pytest.raises(pl.ConfigError, match="has a recording of worker 1 already"):
        recorder.open()
    assert os.listdir(tmp_path) == ["worker-1.jsonl"]


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(pl.ConfigError, match="holds a run already: record into another directory"):
        pl.record(tmp_path, worker=0).open()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"worker": -1}, "worker=-1 is no count"),
        ({"worker": "0"}, "worker='0' is no count"),
        ({"worker": True}, "worker=True is no count"),
        ({"worker": 4, "workers": 4}, "worker=4 is none of 4 workers"),
        ({"worker": 0, "workers": 0}, "workers=0 is no count"),
    ],
)
def test_workers_that_cannot_be_are_refused(tmp_path: Path, arguments: dict[str, int], why: str) -> None:
    with pytest.raises(pl.ConfigError, match=why):
        pl.record(tmp_path, **arguments)
    assert os.listdir(tmp_path) == []


def test_a_directory_is_a_path() -> None:
    with pytest.raises(pl.ConfigError, match="directory=3 is no directory"):
        pl.record(3, worker=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", [-1, 1.5, "32", True])
def test_samples_that_cannot_be_are_refused(tmp_path: Path, samples: int) -> None:
    with pl.record(tmp_path, worker=2) as recorder:
        with pytest.raises(pl.ConfigError, match=f"worker 2: samples={samples!r} is no count of samples"):
            recorder.step(samples)
        with recorder.step(0):
            pass


def test_what_does_not_nest_is_refused(tmp_path: Path) -> None:
    with pl.record(tmp_path, worker=2) as recorder:
        with recorder.step():
            pass
        nested = pytest.raises(pl.ConfigError, match="worker 2: a step began inside step 1")
        with nested, recorder.step(), recorder.step():
            pass
        inside = pytest.raises(pl.ConfigError, match=r"worker 2: wait\(\) inside compute\(\)")
        with inside, recorder.step(), recorder.compute(), recorder.wait():
            pass
        with pytest.raises(pl.ConfigError, match=r"worker 2: compute\(\) outside of a step"), recorder.compute():
            pass
        with pytest.raises(pl.ConfigError, match="is open already"):
            recorder.open()


def test_a_recorder_that_is_not_open_is_refused(tmp_path: Path) -> None:
    recorder = pl.record(tmp_path, worker=0)
    assert repr(recorder) == f"<recorder of worker 0 in {tmp_path}, closed>"
    for part in (recorder.step(), recorder.wait(), recorder.compute()):
        with pytest.raises(pl.ConfigError, match=r"worker 0 in .* is not open: write with paceline.record"), part:
            pass
    recorder.close()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_ends_the_recording_and_not_the_training(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with pl.record(tmp_path, worker=0) as recorder:
        monkeypatch.setattr(os, "write", full)
        with caplog.at_level(logging.WARNING, "paceline"), recorder.step():
            clock[0] += 1.0
        monkeypatch.undo()
        with recorder.step():
            pass
    (message,) = caplog.messages
    assert message.endswith("worker-0.jsonl: the disk is full")
    with pytest.raises(pl.ConfigError, match="worker 0 recorded no step"):
        pl.read_trace(tmp_path)


def test_recording_needs_no_torch(tmp_path: Path) -> None:
    code = LEFT_OPEN + "\nrecorder.close()\nassert not {'torch', 'numpy'} & sys.modules.keys()"
    assert run(code, tmp_path).returncode == 0


def test_every_command_reads_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    write_job(tmp_path / "job", [[0.1] * 20, [0.4] * 20, [0.1] * 20])
    assert main(["profile", "job", "--json", "table.json"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^ +1 +19 +0.41 +0.41 +0.4 +0.01 +3.73 +100% +1$", printed, re.MULTILINE)
    assert "Suggested: 2 groups of similar speed: gsgd:groups=0+2/1\n" in printed
    assert "paceline train" not in printed
    assert json.loads(Path("table.json").read_text())["groups"] == [[0, 2], [1]]
    assert main(["replay", "job", "-s", "ssgd", "-s", "gsgd:groups=0+2/1"]) == 0
    printed = capsys.readouterr().out
    updates = re.findall(r"^(?:Synchronous|ssgd|gsgd)\S*, .*? (\d+) +", printed, re.M)
    recorded, again, grouped = map(int, updates)
    assert recorded == 19
    assert recorded - 1 <= again <= recorded  # the last one is made at the very end
    assert grouped > 2 * recorded
    assert main(["predict", "job", "-s", "asgd"]) == 0
    assert "as recorded" in capsys.readouterr().out
    assert main(["report", "job", "--out", "page.html", "--perfetto", "timeline.json"]) == 0
    assert "The first step of each worker, in which caches are filled, is left out." in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["replay", "job"], "job is a recording of another training loop, which Paceline cannot repeat"),
        (["profile", "job", "--fleet", "ray"], "--fleet is for measuring, and job is the directory of a run"),
        (["train", "--resume", "job"], "job"),
    ],
)
def test_what_a_recording_cannot_do_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path / "job", [[0.1] * 3, [0.4] * 3])
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"error: {why}") or why in err
    assert (out, err.count("\n")) == ("", 1)
