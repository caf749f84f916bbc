"""What several commands have in common."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.config import Config

Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy", "-s", metavar="NAME:OPTION=VALUE,...", help="Such as lgc:quorum=7,blocks=4; repeat for several."
    ),
]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of a Ray cluster; auto for this machine's.")]
CheckStep = Annotated[bool, typer.Option("--check-step/--no-check-step", help="Warn of a step beyond its limit.")]


def config_of(file: Path, chosen: Sequence[str] | None) -> "Config":
    from paceline.config import read_config
    from paceline.strategy_names import parse_strategy

    config = read_config(file)
    return config.with_strategies(tuple(map(parse_strategy, chosen))) if chosen else config


def on_fleet(config: "Config", kind: str | None, address: str | None = None) -> "Config":
    """The configuration, its fleet as the command line wants it."""
    from paceline.fleet_tables import KINDS, as_processes, as_ray
    from paceline.fleets.ray.fleet import RayFleet
    from paceline.toml_tables import nearest

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


def told(line: str, code: int = 0) -> int:
    print(" ".join(line.split()), file=sys.stderr)
    return code
