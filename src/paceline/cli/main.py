"""The command line: what a command came to, in an exit code and, where it came to grief, in one line on stderr.

Exit codes: 0 done; 1 a run diverged, lost too many workers, or its disk was full; 2 something was asked for that cannot
be (one line on stderr says what, and nothing was written); 130 interrupted, 143 terminated (one line says what is on
disk, and how to go on).
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.engine.signals import ctrl_c_in_one_line

if TYPE_CHECKING:
    import typer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of ``paceline``; its exit code."""
    return run_program("paceline", _commands, arguments)


def run_program(name: str, commands: "Callable[[], typer.Typer]", arguments: Sequence[str] | None = None) -> int:
    """Run a command of a program with these exit codes; ``commands`` imports them."""
    with ctrl_c_in_one_line():
        return _exit_code(name, commands, arguments)


def _commands() -> "typer.Typer":
    from paceline.cli.commands import app

    return app


def _exit_code(name: str, commands: "Callable[[], typer.Typer]", arguments: Sequence[str] | None) -> int:
    from paceline.cli.common import INTERRUPTED, exit_code, told

    try:
        code = commands()(args=None if arguments is None else list(arguments), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return told("interrupted; nothing was written", INTERRUPTED)
    except Exception as error:  # those that are nobody's fault but Paceline's go on, with their traceback
        if (known := exit_code(error, name)) is None:
            raise
        return known
    if code == INTERRUPTED:  # Typer met it where nothing was begun yet
        told("interrupted; nothing was written")
    return code if isinstance(code, int) else 0
