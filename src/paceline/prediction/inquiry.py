"""What a prediction is asked about: a fleet, strategies, and perhaps a model and an optimizer.

They come from a TOML file as ``compare`` and ``train`` take it, of which only ``[fleet]`` and ``strategy`` are needed
here; or from a recorded run, whose measured durations then are the fleet's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.config.file import (
    KEYS,
    Chosen,
    Config,
    TaskChoice,
    _chosen,
    _strategies,
    parse_config,
    parse_tables,
    read_config,
)
from paceline.config.fleets import AnyFleet, read_fleet
from paceline.config.toml import as_table, build, refuse_unknown
from paceline.core.errors import ConfigError
from paceline.files import check_regular, read_text
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.prediction.what_if import Survey, recorded_fleet
from paceline.strategies.names import StrategyChoice, parse_strategy
from paceline.trace.reading import read_trace

NEEDED_TO_TRAIN = ("task", "fleet", "strategy", "optimizer", "stop")


@dataclass(frozen=True)
class Inquiry:
    """What is known before a run."""

    source: str
    fleet: SimulatedFleet
    choices: tuple[StrategyChoice, ...]
    task: TaskChoice | None = None
    optimizer: Chosen | None = None
    seed: int = 0
    recorded: Survey | None = None


def read_inquiry(path: Path, strategies: Sequence[str] | None = None) -> Inquiry:
    """From a TOML file, the directory of a run, or its trace; ``strategies`` replace those that it names."""
    chosen = tuple(map(parse_strategy, strategies or ()))
    if path.is_dir() or path.suffix == ".jsonl":
        return _of_trace(path, chosen)
    found = _of_file(path)
    if not (choices := chosen or found.choices):
        raise ConfigError(f"{path.name} names no strategy: give one with --strategy, such as --strategy asgd")
    return replace(found, choices=choices)


def _of_file(path: Path) -> Inquiry:
    text = read_text(path)
    table = parse_tables(text, path.name)
    if all(key in table for key in NEEDED_TO_TRAIN):
        return _of_config(parse_config(text, path.name), path.name)
    try:
        return _of_parts(table, path.name)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None


def _of_config(config: Config, source: str) -> Inquiry:
    return Inquiry(
        source, _foreseeable(config.fleet), config.strategies, config.task, config.optimizer, config.seeds[0]
    )


def _of_parts(table: dict[str, Any], source: str) -> Inquiry:
    refuse_unknown(table, KEYS, "top level")
    if "fleet" not in table:
        raise ConfigError("the section [fleet] is missing: describe the workers in [[fleet.workers]]")
    return Inquiry(
        source,
        _foreseeable(read_fleet(as_table(table["fleet"], "fleet"))),
        _strategies(table["strategy"]) if "strategy" in table else (),
        build(TaskChoice, as_table(table["task"], "task"), "task") if "task" in table else None,
        _chosen(table["optimizer"], "optimizer") if "optimizer" in table else None,
    )


def _of_trace(path: Path, chosen: tuple[StrategyChoice, ...]) -> Inquiry:
    trace = read_trace(path)
    directory = path if path.is_dir() else path.parent
    check_regular(directory / "config.toml")
    survey = Survey(trace)
    fleet = recorded_fleet(survey, in_order=False)
    if (file := directory / "config.toml").is_file():
        config = read_config(file)
        if isinstance(config.fleet, SimulatedFleet):
            fleet = replace(fleet, recall=config.fleet.recall, ties=config.fleet.ties)
        found = _of_config(replace(config, fleet=fleet), str(path))
    else:
        found = Inquiry(str(path), fleet, ())
    return replace(found, choices=chosen or found.choices, recorded=survey)


def _foreseeable(fleet: AnyFleet) -> SimulatedFleet:
    if not isinstance(fleet, SimulatedFleet):
        raise ConfigError(
            "how long real workers take is not known before they ran: describe the workers in [[fleet.workers]], or "
            "give the directory of a run"
        )
    return fleet
