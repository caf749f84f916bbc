"""What several commands have in common."""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.core.errors import (
    CannotWrite,
    ConfigError,
    Diverged,
    IllegalDecision,
    ImpossibleEvent,
    PacelineError,
    TooFewWorkers,
    WorkerFailed,
)
from paceline.engine.signals import Interrupted
from paceline.files import WHY, why

if TYPE_CHECKING:
    from paceline.config.file import Config

CAME_TO_GRIEF, REFUSED, INTERRUPTED = 1, 2, 130
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy", "-s", metavar="NAME:OPTION=VALUE,...", help="Such as lgc:quorum=7,blocks=4; repeat for several."
    ),
]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of a Ray cluster; auto for this machine's.")]
CheckStep = Annotated[
    bool, typer.Option("--check-step/--no-check-step", help="Warn of a learning rate beyond its limit.")
]


def config_of(file: Path, chosen: Sequence[str] | None) -> "Config":
    from paceline.config.file import read_config
    from paceline.strategies.names import parse_strategy

    config = read_config(file)
    return config.with_strategies(tuple(map(parse_strategy, chosen))) if chosen else config


def on_fleet(config: "Config", kind: str | None, address: str | None = None) -> "Config":
    """The configuration, its fleet as the command line wants it."""
    from paceline.config.fleets import KINDS, as_processes, as_ray
    from paceline.core.fields import nearest
    from paceline.fleets.ray.fleet import RayFleet

    if kind == "ray" or (kind is None and isinstance(config.fleet, RayFleet)):
        return replace(config, fleet=as_ray(config.fleet, address))
    if address is not None:
        raise ConfigError(f"--address {address} is that of a Ray cluster: add --fleet ray")
    if kind is None or kind == KINDS[0]:
        return config
    if kind not in KINDS:
        raise ConfigError(f"--fleet {kind!r} is unknown: {nearest(kind, KINDS)}")
    return replace(config, fleet=as_processes(config.fleet))


def free_path(path: Path) -> Path:
    """The path, or with the first number after it that is free."""
    number, tried = 1, path
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.name}-{number}")
    return tried


def exit_code(error: Exception, program: str = "paceline") -> int | None:
    """Say in one line what went wrong, and tell the exit code; None of an error that is Paceline's own fault."""
    if isinstance(error, Interrupted):
        return told(str(error), error.exit_code)
    if isinstance(error, BrokenPipeError):  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CAME_TO_GRIEF
    if isinstance(error, CannotWrite | IllegalDecision | ImpossibleEvent | Diverged | WorkerFailed | TooFewWorkers):
        return told(f"error: {error}", CAME_TO_GRIEF)
    if isinstance(error, BrokenExecutor):
        killed = "a process that did a part of the work was killed, perhaps for want of memory"
        return told(f"error: {killed}: start fewer at once, as compare does with --jobs", CAME_TO_GRIEF)
    if isinstance(error, PacelineError):
        return told(f"error: {error}", REFUSED)
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{error.filename}: "
        return told(f"error: {place}{why(error)}", CAME_TO_GRIEF if error.errno in WHY else REFUSED)
    # Typer's errors about arguments, whether it brings its own click or uses the package
    if (message := getattr(error, "format_message", None)) is not None:
        return told(f"error: {message()} (see {program} --help)", REFUSED)
    return None


def told(line: str, code: int = 0) -> int:
    print(" ".join(line.split()), file=sys.stderr)
    return code
