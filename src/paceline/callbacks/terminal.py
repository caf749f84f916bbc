"""What commands print: a console as wide as the terminal, and tables that fit it.

Texts may be from a file that somebody else made: control characters in them are spelled out before anything is styled.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.files import printable

WIDTH_OF_A_LOG = 140  # where there is no terminal, and COLUMNS does not tell
GAP = 2  # spaces between two columns
Cell = str | Text
_PIECES = re.compile(r"\s+|(?<=[,/:])")  # where a line may end: after a word, or after a mark inside a strategy's name


@dataclass(frozen=True)
class Column:
    """A column of a table.

    rank   0 for a column that is always shown; where the terminal is too narrow, the highest rank is left out first
    least  the width from which on its texts are wrapped, at words or after a comma; None: they are not wrapped
    left   texts begin at the left; numbers end at the right
    style  in words of rich, such as "dim"
    """

    heading: str
    rank: int = 0
    least: int | None = None
    left: bool = False
    style: str = ""


class _PrintableConsole(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **options)


def console(stderr: bool = False) -> Console:
    """A console on stdout or stderr, as wide as the terminal, or as COLUMNS says; without either, 140 columns."""
    stream = sys.stderr if stderr else sys.stdout
    known = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return _PrintableConsole(stderr=stderr, width=None if known else WIDTH_OF_A_LOG, highlight=False, soft_wrap=False)


def print_table(
    terminal: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str = "",
    apart: bool = False,
    more: str = "",
) -> None:
    """Print a table that fits the terminal: see ``fitted``. Columns that were left out are named below it.

    title  above the table
    apart  an empty line between two rows
    more   where the columns that do not fit can be seen, besides in a wider terminal
    """
    table, left_out = fitted(columns, rows, terminal.width, apart=apart)
    if title:
        terminal.print(printable(title), style="italic", markup=False)
    terminal.print(table, crop=False)
    if left_out:
        names = ", ".join(" ".join(column.heading.split()) for column in left_out)
        terminal.print(
            f"Not shown in {terminal.width} columns: {names}. Widen the terminal{more and f', or {more}'}.",
            style="dim",
            markup=False,
        )


def fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, *, apart: bool = False
) -> tuple[Table, list[Column]]:
    """A table of at most ``width`` columns of text, and the columns that were left out for it.

    Cells may have line breaks; what is between brackets is no markup, and control characters are spelled out. A column
    with nothing but "-" is left out, and not named. No word is broken: a table whose indispensable columns do not fit
    is wider.
    """
    rows = [[_clean(cell) for cell in row] for row in rows]
    shown = [n for n in range(len(columns)) if not rows or any(str(row[n]) not in ("", "-") for row in rows)]
    widths = {place: _widths(columns[place], [row[place] for row in rows]) for place in shown}

    def total(places: Sequence[int]) -> int:
        return sum(widths[place][0] for place in places) + GAP * (len(places) - 1)

    left_out = list[int]()
    while total(shown) > width and (optional := [place for place in shown if columns[place].rank]):
        left_out.append(max(optional, key=lambda place: (columns[place].rank, place)))
        shown.remove(left_out[-1])
    given = _shared_out({place: widths[place] for place in shown}, width - total(shown))
    texts = {n: [_cell(columns[n], row[n], given[n]) for row in rows] for n in shown}
    taken = sum(_width(columns[place], texts[place]) for place in shown) + GAP * (len(shown) - 1)
    table = Table(width=taken, pad_edge=False, box=None, header_style="bold", padding=(0, GAP, 1 if apart else 0, 0))
    for column in (columns[place] for place in shown):
        table.add_column(column.heading, justify=_justify(column), style=column.style, no_wrap=True)
    for cells in zip(*texts.values(), strict=True):
        table.add_row(*cells)
    return table, [columns[place] for place in sorted(left_out)]


def wrapped(text: str, width: int) -> str:
    """A text in lines of at most ``width``, broken at words or after a comma, a slash or a colon; never elsewhere."""
    lines = list[str]()
    for paragraph in text.split("\n"):
        line = ""
        for piece in _pieces(paragraph):
            if line and cell_len(line + piece.rstrip()) > width:
                lines.append(line.rstrip())
                line = ""
            line += piece
        lines.append(line.rstrip())
    return "\n".join(lines)


def _clean(cell: Cell) -> Cell:
    if isinstance(cell, str):
        return printable(cell)
    text = cell.copy()
    text.plain = printable(text.plain)
    return text


def _cell(column: Column, cell: Cell, width: int) -> Text:
    text = Text(wrapped(cell, width) if column.least else cell) if isinstance(cell, str) else cell.copy()
    text.justify = _justify(column)
    return text


def _justify(column: Column) -> Literal["left", "right"]:
    return "left" if column.left else "right"


def _pieces(text: str) -> list[str]:
    """What a line may hold, with the space behind it."""
    ends = [match.end() for match in _PIECES.finditer(text)]
    return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True) if end > begin]


def _widths(column: Column, cells: Sequence[Cell]) -> tuple[int, int]:
    """The least width of a column, and that at which no text is wrapped."""
    whole = _width(column, cells)
    if column.least is None or whole <= column.least:
        return whole, whole
    words = [cell_len(piece.rstrip()) for cell in cells for piece in _pieces(str(cell))]
    return max([_width(column, ()), column.least, *words]), whole


def _width(column: Column, cells: Sequence[Cell]) -> int:
    return max(cell_len(line) for cell in (column.heading, *cells) for line in str(cell).split("\n"))


def _shared_out(widths: dict[int, tuple[int, int]], spare: int) -> dict[int, int]:
    """The width of each column: what is to spare goes to those whose texts are wrapped, the narrowest first."""
    given = {place: least for place, (least, _) in widths.items()}
    while spare > 0 and (short := [place for place in given if given[place] < widths[place][1]]):
        given[min(short, key=lambda place: given[place])] += 1
        spare -= 1
    return given
