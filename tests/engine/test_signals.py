"""A signal that is sent twice at once is one wish; one that comes seconds later ends a run at once."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_disk import TRAIN, one_line

import paceline as pl
from paceline.cli.main import main
from paceline.engine import signals
from paceline.engine.runner import Evaluator
from paceline.engine.signals import Interrupts
from support.tiny import tiny

__all__ = ["tiny"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_signals_within_two_seconds_are_one(clock: list[float], first: int, second: int) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupts(termination=True) as interrupts:
            os.kill(os.getpid(), first)
            for _ in range(5):
                clock[0] += 0.3
                os.kill(os.getpid(), second)
            assert interrupts.requested == first
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_ctrl_c_that_comes_later_ends_it_at_once(clock: list[float]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupts(termination=True) as interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupts.requested == signal.SIGTERM
            clock[0] += 2.1
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_two_sigterms_in_a_row_leave_a_checkpoint(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look = Evaluator.evaluate

    def looks(self: Evaluator, seconds: float) -> Any:
        if len(self.history) == 2:
            for _ in range(2):  # as `timeout` signals its child, and then the group
                os.kill(os.getpid(), signal.SIGTERM)
        return look(self, seconds)

    monkeypatch.setattr(Evaluator, "evaluate", looks)
    with pytest.raises(SystemExit) as ended:
        main([*TRAIN, "--directory", "run"])
    assert ended.value.code == 143
    assert one_line(capsys) == (
        "terminated; everything so far is in run; paceline train --resume run continues from its last checkpoint\n"
    )
    assert pl.load_run("run").ended == "interrupted"
