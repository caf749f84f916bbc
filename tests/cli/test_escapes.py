"""Whatever a foreign run says of itself, no command passes an order on to the terminal."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

import paceline as pl
from paceline.callbacks.terminal import Column, console, print_table
from paceline.cli.main import echo, main
from support.saved_runs import save_run

# sets the title of the window; red; the same as one C1 character; what follows runs to the left; no character at all
ORDERS = "\x1b]0;PWNED\x07\x1b[31m\x9b31m\u202eltr\udcc2\udc9b"
SPELLED = r"\x1b]0;PWNED\x07\x1b[31m\x9b31m\u202eltr\udcc2\udc9b"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose rule and whose notes give orders."""
    path = tmp_path_factory.mktemp("place") / "run"
    save_run(path, pl.Asynchronous(), seconds=60)
    config = json.loads((path / "config.json").read_text())
    config["strategy"]["kind"] = f"A{ORDERS}"
    (path / "config.json").write_text(json.dumps(config))
    first, *rest = (path / "trace.jsonl").read_text().splitlines(keepends=True)
    about = json.loads(first) | {"notes": [f"N{ORDERS}"]}
    (path / "trace.jsonl").write_text("".join([json.dumps(about) + "\n", *rest]))
    return path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["replay", "RUN", "-s", "asgd"], "AN"),
        (["predict", "RUN", "-s", "asgd"], "N"),
        (["profile", "RUN"], "N"),
        (["advise", "RUN", "--no-trials", "--explain"], "N"),
    ],
    ids=lambda given: given[0],
)
def test_what_a_run_says_gives_no_orders(
    run: Path, command: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert main([str(run) if each == "RUN" else each for each in command]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert all(f"{word}{SPELLED}" in out for word in words)


def test_nor_do_lines_cells_and_titles(capsys: pytest.CaptureFixture[str]) -> None:
    echo(ORDERS)
    console().print(ORDERS, markup=False)
    assert capsys.readouterr().out == f"{SPELLED}\n" * 2
    terminal = Console(width=200)
    with terminal.capture() as captured:
        print_table(terminal, [Column("a"), Column("b")], [[ORDERS, Text(ORDERS, "red")]], title=ORDERS)
    assert captured.get().count(SPELLED) == 2
    assert captured.get().count(SPELLED.replace(r"\x07", "")) == 1  # rich itself leaves out the bell
    assert all(line.isprintable() for line in captured.get().split("\n"))


def test_lines_and_tabs_stay(capsys: pytest.CaptureFixture[str]) -> None:
    echo("größer\n\tals 3 ×")
    assert capsys.readouterr().out == "größer\n\tals 3 ×\n"
