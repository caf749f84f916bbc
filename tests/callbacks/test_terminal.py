"""Tables fit the terminal: columns are left out, texts are wrapped, no word is broken."""

import re

import pytest
from rich.console import Console
from rich.text import Text

from paceline.callbacks.terminal import Cell, Column, console, fitted, print_table, wrapped

COLUMNS = [
    Column("strategy", least=12, left=True),
    Column("time"),
    Column("updates\nper second", rank=2),
    Column("lost", rank=1),
    Column("nothing"),
]
ROWS: list[list[Cell]] = [
    ["lgc:quorum=8,blocks=4", "1.5", "12", "3 %", "-"],
    ["ssgd", Text("none", "red"), "1", "0 %", "-"],
]


def printed(width: int) -> list[str]:
    terminal = Console(width=width)
    with terminal.capture() as captured:
        print_table(terminal, COLUMNS, ROWS, title="A title")
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_wide_terminal_has_every_column_and_no_wrapped_text() -> None:
    assert printed(80) == [
        "A title",
        "                                updates",
        "strategy               time  per second  lost",
        "lgc:quorum=8,blocks=4   1.5          12   3 %",
        "ssgd                   none           1   0 %",
    ]


def test_texts_are_wrapped_before_columns_are_left_out() -> None:
    _, heading, first, second, *_ = printed(38)[1:]
    assert heading == "strategy       time  per second  lost"
    assert (first, second) == ("lgc:quorum=8,   1.5          12   3 %", "blocks=4")


def test_the_highest_rank_is_left_out_first_and_named() -> None:
    lines = printed(30)
    assert lines[1:4] == ["strategy       time  lost", "lgc:quorum=8,   1.5   3 %", "blocks=4"]
    assert " ".join(lines[5:]) == "Not shown in 30 columns: updates per second. Widen the terminal."


def test_what_is_indispensable_stays_whatever_the_width() -> None:
    table, left_out = fitted(COLUMNS, ROWS, 5)
    assert [column.header for column in table.columns] == ["strategy", "time"]
    assert [column.heading for column in left_out] == ["updates\nper second", "lost"]


def test_brackets_are_no_markup() -> None:
    terminal = Console(width=80)
    with terminal.capture() as captured:
        print_table(terminal, [Column("name", left=True)], [["a[red]b[/]"]])
    assert "a[red]b[/]" in captured.get()


@pytest.mark.parametrize("width", [1, 5, 9, 14, 40])
def test_no_word_is_broken(width: int) -> None:
    text = "gsgd:inside=lgc:quorum=3,blocks=4 waits inside groups / not between them"
    lines = wrapped(text, width).split("\n")
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    for line in lines:
        assert len(line) <= width or not re.search(r"\s|[,/:](?!$)", line)


@pytest.mark.parametrize(("columns", "width"), [("100", 100), ("", 140), ("wide", 140)])
def test_without_a_terminal_the_width_is_that_of_columns(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert console().width == width
