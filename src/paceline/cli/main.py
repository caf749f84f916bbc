"""The command line: what a command came to, in an exit code and, where it came to grief, in one line on stderr.

Exit codes: 0 done; 1 a run diverged, lost too many workers, or its disk was full; 2 something was asked for that cannot
be (one line on stderr says what, and nothing was written); 130 interrupted, 143 terminated (one line says what is on
disk, and how to go on).
"""

import sys
from collections.abc import Sequence

from paceline.engine.signals import ctrl_c_in_one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    with ctrl_c_in_one_line():
        return _exit_code(arguments)


def _exit_code(arguments: Sequence[str] | None) -> int:
    from paceline.cli.commands import app
    from paceline.cli.common import INTERRUPTED, exit_code, told

    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="paceline", standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return told("interrupted; nothing was written", INTERRUPTED)
    except Exception as error:  # those that are nobody's fault but Paceline's go on, with their traceback
        if (known := exit_code(error)) is None:
            raise
        return known
    if code == INTERRUPTED:  # Typer met it where nothing was begun yet
        told("interrupted; nothing was written")
    return code if isinstance(code, int) else 0
