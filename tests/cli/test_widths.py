"""What the commands print fits terminals of 80, 100 and 160 columns, and no word of it is broken."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import paceline as pl
from paceline.cli.main import main
from paceline.cli.profile import show_stragglers
from paceline.delays import Constant, LogNormal
from paceline.reports.stragglers import stragglers
from support.tiny import tiny

__all__ = ["tiny"]

COMMANDS = ("", "compare", "train", "replay", "predict", "profile", "report", "strategies")
LONG = "gsgd:inside=lgc:quorum=1,blocks=4"
NOT_TABLES = ("Curves:", "Next:")  # paths and commands are printed in one line, to be copied


def compare() -> None:
    arguments = ["--seeds", "1", "--jobs", "1", "-s", "ssgd", "-s", "ma:every=2", "-s", LONG]
    assert main(["compare", "tiny.toml", *arguments]) == 0


def predict() -> None:
    assert main(["predict", "tiny.toml", "-s", "asgd", "-s", LONG, "--curvature", "2.0"]) == 0


def replay() -> None:
    assert main(["replay", "run", "-s", "ssgd", "-s", LONG]) == 0


def profile() -> None:
    fleet = pl.SimulatedFleet([Constant(1.0), LogNormal(1.0, 0.2), Constant(3.0), LogNormal(123.456, 0.2)])
    show_stragglers(stragglers(pl.simulate(pl.Asynchronous(), fleet, pl.Stop(seconds=600))))


def strategies() -> None:
    assert main(["strategies"]) == 0


@pytest.mark.parametrize("command", [compare, predict, replay, profile, strategies])
def test_tables_fit_and_widen_with_the_terminal(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]
) -> None:
    monkeypatch.setattr("paceline.theory.runtime.costs.PIECES_OF_WORK", 300)
    assert main(["train", str(tiny), "-s", "ssgd", "--lr", "0.1", "--directory", "run"]) == 0
    capsys.readouterr()
    shown = {}
    for width in (80, 100, 160, 400):
        monkeypatch.setenv("COLUMNS", str(width))
        command()
        shown[width] = capsys.readouterr().out
        lines = [line for line in shown[width].splitlines() if not line.startswith(NOT_TABLES)]
        assert max(len(line.rstrip()) for line in lines) <= width
        assert "…" not in shown[width]
    note = "Not shown in 80 100 160 columns. Widen the terminal, or see all with --json FILE.json"
    for width in (80, 100, 160):
        assert words(shown[width]) - words(shown[400]) - words(note) == set()
    assert "Not shown" not in shown[400]
    headings = [len(words("\n".join(shown[width].splitlines()[:5]))) for width in (80, 100, 160)]
    assert headings == sorted(headings)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [80, 160])
def test_help_is_not_cut(
    command: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([*filter(None, [command]), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert not re.search(r"(?<![\],.}])\.\.\.", shown)  # but for "[ARGS]..." and the like


def words(text: str) -> set[str]:
    """The words of a text, those of a strategy's name one by one, as they may stand in several lines."""
    return {word.rstrip(",:.") for word in re.split(r"\s+|(?<=[,/:])", text)}
