"""Options and helpers that several commands share."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.config.file import Config

DEMO = Path(__file__).with_name("demo.toml")

STRATEGY_FORMAT = "NAME:OPTION=VALUE,..."
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        "-s",
        metavar=STRATEGY_FORMAT,
        help="Strategy to use instead of those in FILE, such as lgc:quorum=7,blocks=4; repeat for several. "
        "paceline strategies lists the names.",
    ),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE.json", help="Write all results to this JSON file.")
]
Seed = Annotated[int | None, typer.Option(min=0, metavar="N", help="Random seed, instead of the first one in FILE.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of the Ray cluster; auto finds the one on this machine."),
]
CheckLr = Annotated[
    bool,
    typer.Option(
        "--check-lr/--no-check-lr",
        help="After training, warn if a smaller learning rate would probably be better.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run the code that the directory's config.toml names, [task] factory: "
        "only if you would run a program by whoever made the directory.",
    ),
]
# The former spelling of --check-lr
CheckStep = Annotated[bool, typer.Option("--check-step/--no-check-step", hidden=True)]


def exit_codes(failed: str | None = None) -> str:
    """The paragraph about exit codes at the end of a command's help; ``failed`` says when the command exits with 1."""
    one = "" if failed is None else f"1 if {failed}; "
    return f"Exit codes: 0 on success; {one}2 if an argument or file is invalid; 130 on Ctrl-C; 143 on SIGTERM."


def config_of(file: Path, chosen: Sequence[str] | None = None, *, of_the_run: bool = False) -> "Config":
    """The configuration in a TOML file, with the strategies of the command line if there are any.

    ``of_the_run``: the file is in the directory of a run, and not named by the user, who may not have written it.
    """
    from paceline.config.file import read_config
    from paceline.config.fleets import of_the_user
    from paceline.strategies.names import parse_strategy

    config = read_config(file)
    config = config if of_the_run else replace(config, fleet=of_the_user(config.fleet))
    return config.with_strategies(tuple(map(parse_strategy, chosen))) if chosen else config


def check_trust(config: "Config", directory: Path, trust: bool) -> None:
    """Refuse to run code that is named by a directory, and not by the user."""
    from paceline.config.tasks import FactoryChoice

    if isinstance(config.task, FactoryChoice) and not trust:
        raise ConfigError(
            f"{directory / 'config.toml'} names code, {config.task.factory} in {config.task.folder}, which is not run: "
            "add --trust if you would run a program by whoever made the directory"
        )


def on_fleet(config: "Config", kind: str | None, address: str | None = None) -> "Config":
    """The configuration with the kind of fleet (``--fleet``) and Ray cluster (``--address``) of the command line."""
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


def unused_path(path: Path) -> Path:
    """``path`` if nothing is there, or else ``path-2``, ``path-3``, ...: the first that does not exist."""
    number, tried = 1, path
    while tried.exists():
        number += 1
        tried = path.with_name(f"{path.name}-{number}")
    return tried
