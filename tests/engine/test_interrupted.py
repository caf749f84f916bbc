"""Signals and runs that nobody watches: one line that says what happened and how to go on, and a line a minute."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_disk import TRAIN, Failing, evaluated_by, one_line

import paceline as pl
from paceline.cli.main import main
from paceline.engine.runner import Evaluator
from support.processes import PATIENCE
from support.resumable import Case
from support.tiny import ROOT, tiny

__all__ = ["tiny"]
STOP = pl.Stop(updates=30)
INTERRUPTED_IMPORT = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    raise ImportError("half a module") from None
"""
INTERRUPTED_FORK_SERVER = """
import os, signal, time
parent = os.getppid()
os.killpg(os.getpgrp(), signal.SIGINT)
while os.getppid() == parent:
    time.sleep(0.01)
os._exit(1)
"""


def paceline(place: Path, stub: str, content: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command in a process group of its own, in which a module is another one."""
    (place / "stubs").mkdir()
    (place / "stubs" / f"{stub}.py").write_text(content)
    return subprocess.run(
        [sys.executable, "-m", "paceline.cli", *arguments],
        env={**os.environ, "PYTHONPATH": f"{place / 'stubs'}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize(
    ("stub", "arguments"),
    [
        ("typer", ["--help"]),
        ("torch", TRAIN),
        ("torch", ["profile", "tiny.toml", "--fleet", "processes"]),
        ("torch", ["compare", "tiny.toml", "--jobs", "1"]),
    ],
    ids=["start", "train", "profile", "compare"],
)
@pytest.mark.parametrize(("name", "code", "line"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")])
def test_a_signal_while_modules_are_imported_is_one_line(  # noqa: PLR0917
    tiny: Path, stub: str, arguments: list[str], name: str, code: int, line: str
) -> None:
    ended = paceline(tiny.parent, stub, INTERRUPTED_IMPORT.replace("SIGINT", name), *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", f"{line} while modules were loaded\n")


def test_ctrl_c_while_the_processes_of_a_comparison_import_torch_is_one_line(tiny: Path) -> None:
    ended = paceline(tiny.parent, "torch", INTERRUPTED_FORK_SERVER, "compare", "tiny.toml", "--jobs", "2")
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr in (  # the process that starts them may itself be at an import just then
        "interrupted after 0 of 20 runs; nothing was written\n",
        "interrupted while modules were loaded\n",
    )


@pytest.fixture
def asked_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a signal come when the model is evaluated for the third time."""
    look, signals = Evaluator.evaluate, [0]

    def looks(self: Evaluator, seconds: float) -> Any:
        if len(self.history) == 2 and (number := signals.pop()):
            os.kill(os.getpid(), number)
        return look(self, seconds)

    monkeypatch.setattr(Evaluator, "evaluate", looks)
    return signals.append


def test_sigterm_ends_a_run_with_one_line_that_says_how_to_go_on(
    tiny: Path, asked_by: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_by(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        main([*TRAIN, "--directory", "run"])
    assert ended.value.code == 143
    assert one_line(capsys) == (
        "terminated; everything so far is in run; paceline train --resume run continues from its last checkpoint\n"
    )
    assert main(["train", "--resume", "run", "--no-check-step"]) == 0


def test_sigterm_before_a_run_has_begun_is_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.engine.setup.launch", lambda *args, **options: os.kill(os.getpid(), signal.SIGTERM))
    assert main([*TRAIN, "--directory", "run"]) == 143
    assert one_line(capsys) == "terminated; nothing was written\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ctrl_c_ends_a_run_with_one_line_that_says_how_to_go_on(
    tiny: Path, asked_by: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_by(signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main([*TRAIN, "--directory", "run"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "run; paceline train --resume run continues from its last checkpoint\n" in one_line(capsys)


def test_in_python_the_log_says_what_ended_a_run(
    tmp_path: Path, asked_by: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asked_by(signal.SIGTERM)
    with caplog.at_level(logging.WARNING, "paceline"), pytest.raises(SystemExit):
        Case(every=pl.Every(updates=4)).run(tmp_path / "run", STOP)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"SIGTERM: the run ended after 8 updates; {tmp_path}/run has its weights; "
        f"train(..., directory='{tmp_path}/run', resume=True) continues from its last checkpoint"
    )


def test_sigterm_ends_a_comparison_as_ctrl_c_does(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.comparison import jobs

    run_job = jobs.run_job
    done: list[Any] = []

    def runs(*job: Any) -> Any:
        if len(done) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        done.append(job)
        return run_job(*job)

    monkeypatch.setattr(jobs, "run_job", runs)
    assert main(["compare", "tiny.toml", "--jobs", "1", "--json", "out.json"]) == 143
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == "terminated after 2 of 20 runs; the finished ones are in out.json"
    assert len(json.loads(Path("out.json").read_text())["runs"]) == 2
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_run_that_nobody_watches_writes_a_plain_line_each_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("paceline.callbacks.display.time", SimpleNamespace(monotonic=lambda: now[0]))
    look = Evaluator.count

    def counts(self: Evaluator, update: Any) -> Any:
        now[0] += 25.0  # seconds for each update
        return look(self, update)

    monkeypatch.setattr(Evaluator, "count", counts)
    evaluated_by(Failing(100), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(", time ")[0].removeprefix("Asynchronous: ") for line in lines] == [
        "25%, 3:45 left, update 3/12",
        "50%, 2:30 left, update 6/12",
        "75%, 1:15 left, update 9/12",
        "100%, 0:00 left, update 12/12",
    ]
    assert all("waiting for " in line for line in lines)
    assert "\x1b" not in "".join(lines)
