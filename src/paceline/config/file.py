"""One TOML file is one tree of frozen dataclasses: read strictly, checked, and written back with everything filled in.

    seeds = [0, 1, 2]                  [stop]                        [[fleet.workers]]
    batch_size = 32                    seconds = 120                 count = 4
    target = 0.92                                                    delay = "log-normal"
                                       [partition]                   median = 1.0
    [task]                             name = "pathological"         sigma = 0.2
    data = "digits"                    classes_per_worker = 2
    model = "linear"                                                 [[strategy]]
                                       [tune]                        name = "lgc"
    [optimizer]                        lr = [0.1, 0.3, 1.0]          quorum = 8
    name = "SGD"

``examples/compare.toml`` shows every section.
"""

import json
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.config.fleets import AnyFleet, fleet_table, read_fleet
from paceline.config.tasks import AnyTask, read_task, task_table
from paceline.core.errors import ConfigError
from paceline.core.fields import as_table, as_written, build, name_in, named, read_value, refuse_unknown, table_of
from paceline.data.batches import Resampled, Sampling, Shuffled
from paceline.data.partition import Dirichlet, Equal, Partition, Pathological
from paceline.data.sizes import read_sizes
from paceline.engine.limits import Every, Stop, Target, target_of
from paceline.files import read_text
from paceline.pruning.rules import FineRule, RandomRule
from paceline.randomness import LARGEST_SEED
from paceline.strategies.names import StrategyChoice, read_strategy

PARTITIONS: Mapping[str, type[Any]] = {"equal": Equal, "pathological": Pathological, "dirichlet": Dirichlet}
SAMPLINGS: Mapping[str, type[Any]] = {
    "shuffled": Shuffled,
    "resampled": Resampled,
    "fine-pruning": FineRule,
    "random-pruning": RandomRule,
}


@dataclass(frozen=True)
class Chosen:
    """Something of torch by its name, and its keyword arguments."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}


@dataclass(frozen=True)
class Tune:
    """The learning rates that are tried for each strategy."""

    lr: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.lr or not all(0 < lr < float("inf") for lr in self.lr):
            raise ConfigError(
                f"lr={list(self.lr)} has no learning rates to try: give positive numbers, such as [0.1, 0.3, 1.0]"
            )
        object.__setattr__(self, "lr", tuple(sorted(set(self.lr))))


@dataclass(frozen=True)
class Config:
    """Everything that a run, or a comparison of runs, depends on."""

    task: AnyTask
    fleet: AnyFleet
    strategies: tuple[StrategyChoice, ...]
    optimizer: Chosen
    stop: Stop
    partition: Partition = field(default_factory=Equal)
    sampling: Sampling = field(default_factory=Shuffled)
    scheduler: Chosen | None = None
    tune: Tune | None = None
    every: Every | None = None
    checkpoint: Every | None = None
    batch_size: int | tuple[int, ...] = 32
    micro_batches: int = 1
    clip_norm: float | None = None
    compensate_delay: float = 0.0
    seeds: tuple[int, ...] = (0,)
    target: float | None = None
    metric: str | None = None
    below: float | None = None
    above: float | None = None

    def __post_init__(self) -> None:
        fits = all(0 <= seed <= LARGEST_SEED for seed in self.seeds)
        if not self.seeds or not fits or len(set(self.seeds)) < len(self.seeds):
            seeds = as_written(list(self.seeds))
            raise ConfigError(f"seeds={seeds}: give different whole numbers from 0 to 2**63 - 1, such as [0, 1, 2]")
        if isinstance(self.batch_size, tuple):
            object.__setattr__(self, "batch_size", read_sizes(self.batch_size, self.fleet.workers))
        elif self.batch_size < 1:
            raise ConfigError(f"batch_size={self.batch_size} is not possible: at least 1 sample")
        if self.micro_batches < 1:
            raise ConfigError(f"micro_batches={self.micro_batches} is not possible: at least 1")
        _ = self.goal
        self._check_rate()
        if self.tune is None and self.optimizer.name != "LBFGS" and "lr" not in self.optimizer.options:
            raise ConfigError(
                "no learning rate is given: set lr in [optimizer], or lr = [...] in [tune] to try several"
            )

    def _check_rate(self) -> None:
        """Torch takes a learning rate that is no number, infinite or 0, and lets training come to nothing."""
        for name, value in self.optimizer.options.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"optimizer: {name}={value} is not finite: give a number, such as {name} = 0.1")
        lr = self.optimizer.options.get("lr", 1.0)
        if isinstance(lr, bool) or not isinstance(lr, int | float) or not lr > 0:
            raise ConfigError(
                f"optimizer: lr={as_written(lr)} is no learning rate: give a positive number, such as lr = 0.1"
            )

    @property
    def goal(self) -> Target | None:
        """What is to be reached, whose time is compared."""
        return target_of(self.target, self.metric, self.below, self.above, self.stop)

    def with_strategies(self, choices: tuple[StrategyChoice, ...]) -> "Config":
        return replace(self, strategies=choices)


PLAIN: Mapping[str, Any] = {
    "seeds": tuple[int, ...], "batch_size": int, "micro_batches": int, "target": float, "metric": str,
    "below": float, "above": float, "clip_norm": float, "compensate_delay": float,
}  # fmt: skip
MOST_BITS = 996  # of a whole number in a file: below 1e300
KEYS = (
    *PLAIN, "task", "fleet", "strategy", "optimizer", "scheduler", "tune",
    "partition", "sampling", "stop", "every", "checkpoint",
)  # fmt: skip


def read_config(path: Path | str) -> Config:
    """Read and check a TOML file."""
    path = Path(path)
    return parse_config(read_text(path), path.name, folder_of(path))


def folder_of(path: Path) -> Path:
    """The folder of a file, as a whole path without "..": modules are known by it."""
    return Path(os.path.abspath(path)).parent


def parse_config(text: str, where: str = "config", folder: Path | None = None) -> Config:
    """Check the text of a TOML file; ``where`` names it in messages. Paths in it are relative to its ``folder``."""
    table = parse_tables(text, where)
    try:
        return _config(table, folder)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def write_config(config: Config) -> str:
    """The configuration as TOML, everything filled in."""
    return to_toml(config_table(config))


def config_table(config: Config) -> dict[str, Any]:
    """The configuration as the tables of a TOML file."""
    plain = {name: getattr(config, name) for name in PLAIN if name != "micro_batches"}
    plain |= {"micro_batches": config.micro_batches} if config.micro_batches > 1 else {}
    chosen = {"optimizer": config.optimizer, "scheduler": config.scheduler}
    return {
        **{
            name: list(value) if isinstance(value, tuple) else value
            for name, value in plain.items()
            if value is not None
        },
        "task": task_table(config.task),
        "fleet": fleet_table(config.fleet),
        "strategy": [choice.table() for choice in config.strategies],
        **{name: each.table() for name, each in chosen.items() if each is not None},
        **({"tune": table_of(config.tune)} if config.tune else {}),
        "partition": {"name": name_in(PARTITIONS, config.partition), **table_of(config.partition)},
        "sampling": {"name": name_in(SAMPLINGS, config.sampling), **table_of(config.sampling)},
        "stop": table_of(config.stop),
        **{key: table_of(each) for key in ("every", "checkpoint") if (each := getattr(config, key)) is not None},
    }


def _config(table: dict[str, Any], folder: Path | None) -> Config:
    refuse_unknown(table, KEYS, "top level")
    for key in ("task", "fleet", "strategy", "optimizer", "stop"):
        if key not in table:
            raise ConfigError(f"the section [{key}] is missing")
    sections: dict[str, Any] = {
        "task": read_task(table["task"], folder),
        "fleet": read_fleet(as_table(table["fleet"], "fleet")),
        "strategies": read_strategies(table["strategy"]),
        "optimizer": read_chosen(table["optimizer"], "optimizer"),
        "stop": build(Stop, as_table(table["stop"], "stop"), "stop"),
    }
    if "scheduler" in table:
        sections["scheduler"] = read_chosen(table["scheduler"], "scheduler")
    for key, kind in (("tune", Tune), ("every", Every), ("checkpoint", Every)):
        if key in table:
            sections[key] = build(kind, as_table(table[key], key), key)
    for key, kinds in (("partition", PARTITIONS), ("sampling", SAMPLINGS)):
        if key in table:
            sections[key] = named(kinds, as_table(table[key], key), "name", key)
    sizes = tuple[int, ...] if isinstance(table.get("batch_size"), list) else int
    plain = {**PLAIN, "batch_size": sizes}
    return Config(**sections, **{key: read_value(kind, table[key], key) for key, kind in plain.items() if key in table})


def read_strategies(value: Any) -> tuple[StrategyChoice, ...]:
    """One strategy, or a list of them, as a TOML file has them."""
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise ConfigError('strategy: the list is empty: name at least one, such as strategy = ["ssgd"]')
    return tuple(read_strategy(each, f"strategy[{number}]") for number, each in enumerate(listed))


def read_chosen(value: Any, where: str) -> Chosen:
    """A class of torch with its options, as a TOML file has them."""
    table = dict(as_table(value, where))
    if not isinstance(name := table.pop("name", None), str):
        raise ConfigError(f"{where}: name must be the name of a class of torch, not {as_written(name)}")
    return Chosen(name, table)


# TOML as tables, lists, texts and numbers, and back.


def parse_tables(text: str, where: str) -> dict[str, Any]:
    """The tables of a text; ``where`` names it in messages."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{where} is not read: its tables or lists are nested too deeply") from None
    except ValueError:  # of Python, which converts no number of more than 4,300 digits
        raise ConfigError(f"{where} is not read: one of its numbers has thousands of digits") from None
    _check_numbers(table, where)
    return table


def _check_numbers(table: dict[str, Any], where: str) -> None:
    """Refuse whole numbers that are no float: they could not be calculated with, nor even be named in a message."""
    left: list[tuple[str, Any]] = [*table.items()]
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{name}.{key}", each) for key, each in value.items()]
        elif isinstance(value, list):
            left += [(f"{name}[{number}]", each) for number, each in enumerate(value)]
        elif isinstance(value, int) and abs(value).bit_length() > MOST_BITS:
            raise ConfigError(
                f"{where}: {name[:60]}: a number of about {math.ceil(value.bit_length() * math.log10(2)):,} digits is "
                "not possible: give one below 1e300"
            )


def to_toml(table: Mapping[str, Any]) -> str:
    """A tree of tables, lists, texts and numbers as TOML. Lists of tables become ``[[name]]`` sections."""
    return "\n".join(_section(table, ())).strip() + "\n"


def _section(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines, later = [], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            later += ["", f"[{_dotted((*path, key))}]", *_section(value, (*path, key))]
        elif isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
            for each in value:
                later += ["", f"[[{_dotted((*path, key))}]]", *_section(each, (*path, key))]
        else:
            lines.append(f"{_dotted((key,))} = {_scalar(value)}")
    return lines + later


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(
        key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else json.dumps(key) for key in path
    )


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise TypeError(f"no TOML for {value!r}")
