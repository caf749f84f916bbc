"""Progress in one line: a bar and the time left, cut at whole parts, on a terminal, in a notebook and in a log."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.callbacks import display
from paceline.callbacks.display import (
    LogDisplay,
    NotebookDisplay,
    Status,
    TerminalDisplay,
    TimeLeft,
    bar,
    duration,
    one_line,
    open_display,
)

HALF = Status("GSGD", 0.5, 90.0, ["update 5/10", "loss 0.3000"])


class Clock:
    """A clock that is moved by hand."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    return clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_has_a_bar_and_the_time_left() -> None:
    assert one_line(HALF) == "GSGD  |██████████          |  50%  1:30 left  update 5/10  loss 0.3000"
    assert one_line(Status("GSGD", None, None, ["update 5"])) == "GSGD  update 5"


@pytest.mark.parametrize(("width", "last"), [(70, "loss 0.3000"), (69, "update 5/10"), (45, "1:30 left"), (20, "GSGD")])
def test_a_narrow_line_has_fewer_parts(width: int, last: str) -> None:
    assert len(one_line(HALF, width)) <= width
    assert one_line(HALF, width).endswith(last)


def test_a_bar_grows_by_eighths() -> None:
    assert [bar(share) for share in (0.0, 1.0, 2.0)] == [f"|{' ' * 20}|", f"|{'█' * 20}|", f"|{'█' * 20}|"]
    assert bar(1 / 160) == f"|▏{' ' * 19}|"
    assert {len(bar(number / 500)) for number in range(501)} == {22}


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:01"), (59.5, "1:00"), (3599, "59:59"), (90_061, "25:01:01")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_time_left_counts_from_where_a_resumed_run_began(clock: Clock) -> None:
    left = TimeLeft()
    assert left.estimate(0.5) is None
    clock.now += 10
    assert left.estimate(0.6) == pytest.approx(40.0)
    assert left.estimate(None) is None


def test_a_log_has_a_line_a_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = open_display()
    assert isinstance(log, LogDisplay)
    due = []
    for _ in range(130):
        clock.now += 1
        due.append(log.due())
    assert [second for second, now in enumerate(due, start=1) if now] == [60, 120]
    log.show(HALF)
    assert capsys.readouterr().err == "GSGD: 50%, 1:30 left, update 5/10, loss 0.3000\n"


def test_a_terminal_has_one_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "50")
    shown = open_display()
    assert isinstance(shown, TerminalDisplay)
    assert shown.due()
    shown.show(HALF)
    assert not shown.due()
    clock.now += 1
    assert shown.due()
    shown.close(None)
    assert "50%  1:30 left" in terminal.getvalue()
    assert "update" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased


def test_a_notebook_has_one_output_and_its_last_state(clock: Clock) -> None:
    told: list[tuple[str, Any]] = []

    def tell(kind: str) -> Any:
        return lambda data, raw: told.append((kind, data["text/plain"]))

    shown = NotebookDisplay(SimpleNamespace(display=tell("display"), update=tell("update")))
    for number in range(1, 11):
        clock.now += 0.2
        if shown.due():
            shown.show(HALF._replace(share=number / 10, left=None, parts=[]))
    shown.close(HALF._replace(share=1.0, left=None, parts=[]))
    kinds, texts = zip(*told, strict=True)
    assert kinds == ("display", "update", "update", "update", "update")
    assert [text.split()[-1] for text in texts] == ["10%", "40%", "70%", "100%", "100%"]


def test_a_shell_of_ipython_without_a_kernel_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=SimpleNamespace))
    assert isinstance(open_display(), LogDisplay)
