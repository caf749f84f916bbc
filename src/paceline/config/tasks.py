"""The ``[task]`` section of a TOML file: a data set and a model by their names, or a function of the user's own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from paceline.core.errors import ConfigError
from paceline.core.fields import as_table, as_written, build, table_of

MOST_WEIGHTS = 10**8  # of one layer that is described in a file
TEST_SHARE = 0.2
PUBLISHED = ("mnist", "cifar10")  # read from a directory, split as they were published


@dataclass(frozen=True)
class TaskChoice:
    """A data set and a model by their names.

    hidden      the widths of an MLP's hidden layers
    test_share  the share of the digits that is kept to test the model; other data sets have a test set of their own
    directory   where the files of MNIST or CIFAR-10 are
    """

    data: Literal["digits", "mnist", "cifar10"]
    model: Literal["linear", "mlp", "lenet"]
    hidden: tuple[int, ...] = ()
    test_share: float | None = None
    directory: str | None = None

    def __post_init__(self) -> None:
        self._check_model()
        if self.data in PUBLISHED:
            if self.directory is None:
                raise ConfigError(f'{self.data} is read from its files: give their place, as in directory = "data"')
            if self.test_share is not None:
                raise ConfigError(f"{self.data} has a test set of its own: leave test_share={self.test_share} out")
            return
        if self.directory is not None:
            raise ConfigError(f"{self.data} come with scikit-learn: leave directory={self.directory!r} out")
        share = TEST_SHARE if self.test_share is None else self.test_share
        if not 0 < share < 1:
            raise ConfigError(f"test_share={share} leaves nothing to train or to test on: between 0 and 1")
        object.__setattr__(self, "test_share", share)

    def _check_model(self) -> None:
        if self.model == "mlp" and not self.hidden:
            raise ConfigError("an mlp needs the widths of its hidden layers: give hidden = [32]")
        if self.model != "mlp" and self.hidden:
            kind = "a linear model has no hidden layers" if self.model == "linear" else "a lenet has its own layers"
            raise ConfigError(f'{kind}: leave hidden={list(self.hidden)} out, or model = "mlp"')
        if self.model == "lenet" and self.data == "digits":
            raise ConfigError('a lenet does not fit pictures of 8 by 8 pixels: choose model = "linear" or "mlp"')
        if not all(width > 0 for width in self.hidden):
            raise ConfigError(f"hidden layers of widths {list(self.hidden)} are not possible: at least 1 each")
        if any(one * other > MOST_WEIGHTS for one, other in pairwise((*self.hidden, 1))):
            raise ConfigError(
                f"hidden layers of widths {as_written(list(self.hidden))} have over "
                f"{MOST_WEIGHTS:,} weights: choose fewer"
            )

    @property
    def label(self) -> str:
        return f"{self.data}, {self.model} model"


@dataclass(frozen=True)
class FactoryChoice:
    """A function that returns a ``Task``, as ``"module:function"``, and its keyword arguments.

    Modules in ``folder`` can be imported: it is that of the TOML file, and kept with a run. Nothing is imported before
    the task is made.
    """

    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""

    def __post_init__(self) -> None:
        module, colon, function = self.factory.partition(":")
        names = [*module.split("."), function]
        if not colon or not all(name.isidentifier() for name in names):
            raise ConfigError(
                f"factory = {as_written(self.factory)} names no function: write module:function, as in "
                '"task:make" or "my_package.task:make"'
            )

    @property
    def module(self) -> str:
        return self.factory.partition(":")[0]

    @property
    def function(self) -> str:
        return self.factory.partition(":")[2]

    @property
    def label(self) -> str:
        return self.factory


AnyTask = TaskChoice | FactoryChoice


def read_task(value: Any, folder: Path | None) -> AnyTask:
    """The section of a file that lies in ``folder``; None if it lies nowhere."""
    table = dict(as_table(value, "task"))
    if "factory" in table:
        return _read_factory(table, folder)
    if isinstance(directory := table.get("directory"), str) and folder is not None:
        table["directory"] = str(folder.joinpath(Path(directory).expanduser()))
    return build(TaskChoice, table, "task")


def _read_factory(table: dict[str, Any], folder: Path | None) -> FactoryChoice:
    for key in ("data", "model", "hidden", "test_share", "directory"):
        if key in table:
            raise ConfigError(f"task: the factory makes data and model: leave {key} out, or put it in [task.arguments]")
    arguments = as_table(table.pop("arguments", {}), "task.arguments")
    _check_arguments(arguments, "task.arguments")
    if folder is not None:
        table["folder"] = str(folder.joinpath(table["folder"])) if isinstance(table.get("folder"), str) else str(folder)
    read: FactoryChoice = build(_Factory, table, "task")
    return FactoryChoice(read.factory, arguments, read.folder)


@dataclass(frozen=True)
class _Factory(FactoryChoice):
    """Without the arguments, which are any."""

    arguments: Mapping[str, Any] = field(default_factory=dict, init=False)


def _check_arguments(value: Any, where: str) -> None:
    """Refuse what could not be kept with a run: dates, and numbers that are not finite."""
    if isinstance(value, dict):
        for key, each in value.items():
            _check_arguments(each, f"{where}.{key}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _check_arguments(each, f"{where}[{number}]")
    elif not isinstance(value, bool | int | float | str):
        raise ConfigError(f"{where}: {as_written(value)} is no number, text, list or table: write it as a text")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {value} is not finite: leave it out, or write it as a text")


def task_table(choice: AnyTask) -> dict[str, Any]:
    """The section as TOML has it."""
    if isinstance(choice, TaskChoice):
        return table_of(choice)
    folder = {"folder": choice.folder} if choice.folder else {}
    arguments = {"arguments": dict(choice.arguments)} if choice.arguments else {}
    return {"factory": choice.factory, **folder, **arguments}
