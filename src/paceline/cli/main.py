"""Entry point of the command line: runs a command and turns errors into an exit code and one line on stderr.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the run diverged, lost too many workers, or could not be written (disk full) |
| 2 | invalid arguments or configuration; nothing was written |
| 130, 143 | interrupted (Ctrl-C), terminated (SIGTERM); the line says what is on disk and how to resume |
"""

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline.core.errors import (
    CannotWrite,
    Diverged,
    IllegalDecision,
    ImpossibleEvent,
    PacelineError,
    TooFewWorkers,
    WorkerFailed,
)
from paceline.engine.signals import Interrupted, Terminated, signals_in_one_line
from paceline.files import WHY, printable, why

if TYPE_CHECKING:
    import typer

FAILED, INVALID, INTERRUPTED, TERMINATED = 1, 2, 130, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program ``paceline`` and return its exit code."""
    return run_program("paceline", _load_commands, arguments)


def run_program(name: str, load: "Callable[[], typer.Typer]", arguments: Sequence[str] | None = None) -> int:
    """Run a Typer program and return one of the exit codes of this module; ``load`` imports its commands."""
    _complete_streams()
    with signals_in_one_line(), _printable_logs():
        return _run(name, load, arguments)


def exit_code(error: Exception, program: str = "paceline") -> int | None:
    """Log an error in one line on stderr and return the exit code; None if the error is a bug of the program."""
    if isinstance(error, Interrupted):
        return _fail(str(error), error.exit_code)
    if isinstance(error, BrokenPipeError):  # the reader of the output has closed it, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    if isinstance(error, CannotWrite | IllegalDecision | ImpossibleEvent | Diverged | WorkerFailed | TooFewWorkers):
        return _fail(f"error: {error}", FAILED)
    if isinstance(error, BrokenExecutor):
        return _fail("error: a process was killed, perhaps out of memory: run fewer at once (compare --jobs)", FAILED)
    if isinstance(error, PacelineError):
        return _fail(f"error: {error}", INVALID)
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{error.filename}: "
        return _fail(f"error: {place}{why(error)}", FAILED if error.errno in WHY else INVALID)
    # Typer's errors about arguments, whether Typer includes click or imports it
    if (message := getattr(error, "format_message", None)) is not None:
        return _fail(f"error: {message()} (see {program} --help)", INVALID)
    return None


def log(line: str) -> None:
    """Print one line on stderr."""
    print(printable(" ".join(line.split())), file=sys.stderr)


def echo(text: str) -> None:
    """Print lines on stdout."""
    print(printable(text), flush=True)


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@contextmanager
def _printable_logs() -> Iterator[None]:
    """The same for what is logged, unless the program that calls this one has set up logging itself."""
    if (handler := logging.lastResort) is None:
        yield
        return
    before = handler.formatter
    handler.setFormatter(_Printable())
    try:
        yield
    finally:
        handler.setFormatter(before)


def _complete_streams() -> None:
    """Put /dev/null where the shell has closed a stream (``>&-``): else the next file to be opened takes its place.

    Names of files that are no UTF-8 can be printed: what does not spell them out prints the bytes that they are.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so that of the stream
            os.set_inheritable(handle, handle < 3)
            setattr(sys, name, os.fdopen(handle, mode, encoding="utf-8", errors="replace", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")


def _load_commands() -> "typer.Typer":
    from paceline.cli.commands import app

    return app


def _run(name: str, load: "Callable[[], typer.Typer]", arguments: Sequence[str] | None) -> int:
    try:
        code = load()(args=None if arguments is None else list(arguments), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
    except Terminated:
        return _fail("terminated; nothing was written", TERMINATED)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written", INTERRUPTED)
    except Exception as error:
        if (known := exit_code(error, name)) is None:
            raise  # a bug: show the traceback
        return known
    if code == INTERRUPTED:  # Typer caught Ctrl-C before the command started
        log("interrupted; nothing was written")
    return code if isinstance(code, int) else 0


def _fail(line: str, code: int) -> int:
    log(line)
    return code
