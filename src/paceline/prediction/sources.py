"""What predictions are asked about, and all of them together.

A fleet, strategies, and perhaps a model and an optimizer come from a TOML file as ``compare`` and ``train`` take it, of
which only ``[fleet]`` and ``strategy`` are needed here; or from a recorded run, whose measured durations then are the
fleet's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.file import (
    KEYS,
    Chosen,
    Config,
    folder_of,
    parse_config,
    parse_tables,
    read_chosen,
    read_config,
    read_strategies,
)
from paceline.config.fleets import AnyFleet, read_fleet
from paceline.config.tasks import AnyTask, FactoryChoice, read_task
from paceline.core.errors import ConfigError
from paceline.core.fields import as_table, refuse_unknown
from paceline.engine.arguments import batch_size_of, simulated_sizes
from paceline.files import check_regular, read_text
from paceline.fleets.base import labels_of, medians_at
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.prediction.predict import Descent, Goal, Prediction, conclude, descent_of, prediction_of
from paceline.prediction.what_if import Survey, recorded_fleet, recorded_sizes, size_doubts
from paceline.storage.run_directory import check_files
from paceline.strategies.names import StrategyChoice, parse_strategy
from paceline.theory.runtime.costs import runtime
from paceline.trace.reading import read_trace

if TYPE_CHECKING:
    from paceline.learning.curvature import Curvature

RECORDED = "as recorded"
NEEDED_TO_TRAIN = ("task", "fleet", "strategy", "optimizer", "stop")


@dataclass(frozen=True)
class Source:
    """What is known before a run: a fleet, strategies, and perhaps a model and an optimizer; ``name`` for messages."""

    name: str
    fleet: SimulatedFleet
    choices: tuple[StrategyChoice, ...]
    task: AnyTask | None = None
    optimizer: Chosen | None = None
    seed: int = 0
    recorded: Survey | None = None
    batch_size: int | Sequence[int] | None = None  # of all workers, or of each
    untrusted: str | None = None  # the factory of a task that is not made, because its code is not trusted

    @property
    def medians(self) -> tuple[float, ...]:
        """What a mini-batch of its size typically takes each worker."""
        return medians_at(self.fleet, self.batch_size) or ()


def read_source(path: Path, strategies: Sequence[str] | None = None, *, trust: bool = False) -> Source:
    """Read a TOML file, the directory of a run, or its trace; ``strategies`` replace those that it names.

    The model of a run whose configuration names code is left out, unless ``trust`` is given.
    """
    chosen = tuple(map(parse_strategy, strategies or ()))
    if path.is_dir() or path.suffix == ".jsonl":
        run = _of_trace(path, chosen)
        if isinstance(run.task, FactoryChoice) and not trust:
            return replace(run, task=None, untrusted=run.task.factory)
        return run
    found = _of_file(path)
    if not (choices := chosen or found.choices):
        raise ConfigError(f"{path.name} names no strategy: give one with --strategy, such as --strategy asgd")
    return replace(found, choices=choices)


def _of_file(path: Path) -> Source:
    text = read_text(path)
    table = parse_tables(text, path.name)
    if all(key in table for key in NEEDED_TO_TRAIN):
        return _of_config(parse_config(text, path.name, folder_of(path)), path.name)
    try:
        return _of_parts(table, path)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None


def _of_config(config: Config, source: str) -> Source:
    return Source(
        source, _simulated(config.fleet), config.strategies, config.task, config.optimizer, config.seeds[0],
        batch_size=config.batch_size,
    )  # fmt: skip


def _of_parts(table: dict[str, Any], path: Path) -> Source:
    refuse_unknown(table, KEYS, "top level")
    if "fleet" not in table:
        raise ConfigError("the section [fleet] is missing: describe the workers in [[fleet.workers]]")
    fleet = _simulated(read_fleet(as_table(table["fleet"], "fleet")))
    return Source(
        path.name,
        fleet,
        read_strategies(table["strategy"]) if "strategy" in table else (),
        read_task(table["task"], folder_of(path)) if "task" in table else None,
        read_chosen(table["optimizer"], "optimizer") if "optimizer" in table else None,
        batch_size=batch_size_of(table["batch_size"], fleet.workers) if "batch_size" in table else None,
    )


def _of_trace(path: Path, chosen: tuple[StrategyChoice, ...]) -> Source:
    if path.is_dir():
        check_files(path)
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
        found = Source(str(path), fleet, (), batch_size=recorded_sizes(survey))
    return replace(found, choices=chosen or found.choices, recorded=survey)


def _simulated(fleet: AnyFleet) -> SimulatedFleet:
    if not isinstance(fleet, SimulatedFleet):
        raise ConfigError(
            "how long real workers take is not known before they ran: describe the workers in [[fleet.workers]], or "
            "give the directory of a run"
        )
    return fleet


@dataclass(frozen=True)
class ModelFacts:
    """What was found out about a model: its curvature at the initial weights, and the size of a message."""

    curvature: "Curvature"
    message_bytes: int


@dataclass(frozen=True)
class Predictions:
    """Predictions by strategy, and what they rest on. ``curvature``: as given, or as found in the ``model``."""

    source: Source
    descent: Descent
    goal: Goal
    curvature: float | None
    model: ModelFacts | None
    by_strategy: Mapping[str, Prediction]

    def notes(self) -> list[str]:
        """What else has to be known to read the numbers."""
        notes, optimizer, fleet = [], self.source.optimizer, self.source.fleet
        if optimizer is not None and descent_of(optimizer.name, optimizer.options) is None:
            notes.append(f"{optimizer.name} scales its updates by itself: limits and learning rates are those of SGD.")
        if self.source.untrusted is not None:
            notes.append(
                f"The model is not looked at: {self.source.untrusted} is code that the run's config.toml names; add "
                "--trust if you would run a program by whoever made the directory."
            )
        if self.model is None and _size_matters(fleet):
            notes.append("Without a model messages have no size: of the network only the latency counts.")
        for label, prediction in self.by_strategy.items():
            if (full := prediction.runtime.saturation) is not None:
                notes.append(
                    f"{label}: {full.busiest} saturates at {full.workers.value:,.0f} such workers "
                    f"({full.updates_per_second.value:.3g} updates a second; {full.workers.source})."
                )
        if fleet.changes:
            notes.append("Workers that leave or join are left out: all are taken to be there.")
        if self.source.recorded is not None:
            notes += self.source.recorded.doubts()
            strategies = [choice.strategy(self.source.medians) for choice in self.source.choices]
            notes += size_doubts(self.source.recorded, strategies, self.source.batch_size)
        return notes

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        model = None if self.model is None else {**asdict(self.model.curvature), **asdict(self.model)}
        return {
            "source": self.source.name,
            "workers": self.source.fleet.workers,
            "descent": asdict(self.descent),
            "wishes": asdict(self.goal),
            "curvature": self.curvature,
            "looked_at": model,
            "notes": self.notes(),
            "rows": [{"strategy": label, **each.table()} for label, each in self.by_strategy.items()],
        }


def predict_all(
    source: Source,
    goal: Goal = Goal(),
    *,
    momentum: float | None = None,
    curvature: float | None = None,
    look_at_model: bool = True,
    progress: Callable[["Curvature"], None] | None = None,
) -> Predictions:
    """Predict every strategy of a source. Refuses what does not fit before anything is computed.

    momentum   of plain SGD, instead of the optimizer's
    curvature  if it is known; else it is looked for in the model, if there is one, unless ``look_at_model`` is false
    """
    optimizer = source.optimizer
    own = None if optimizer is None else descent_of(optimizer.name, optimizer.options)
    descent = (own or Descent()) if momentum is None else Descent(momentum)
    if curvature is not None and not 0 < curvature < math.inf:
        raise ConfigError(f"a curvature of {curvature:g} bounds no learning rate: give a finite number above 0")
    strategies = {choice.short: choice.strategy(source.medians, labels_of(source.fleet)) for choice in source.choices}
    for label, strategy in strategies.items():
        try:
            simulated_sizes(strategy, source.fleet.workers, source.batch_size)
        except ConfigError as error:
            raise ConfigError(
                str(error) if str(error).startswith("strategy") else f"strategy {label!r}: {error}"
            ) from None
    wanted = curvature is None or _size_matters(source.fleet)
    model = inspect_model(source, progress) if look_at_model and wanted else None
    if curvature is None and model is not None and model.curvature.value > 0:
        curvature = model.curvature.value
    message_bytes = 0 if model is None or source.recorded is not None else model.message_bytes
    predictions = {}
    if source.recorded is not None:
        predictions[RECORDED] = prediction_of(source.recorded.measures, descent, curvature, goal)
    for label, strategy in strategies.items():
        timing = runtime(
            strategy, source.fleet, batch_size=source.batch_size, message_bytes=message_bytes, seed=source.seed
        )
        predictions[label] = conclude(timing, descent, curvature, goal)
    return Predictions(source, descent, goal, curvature, model, predictions)


def _size_matters(fleet: SimulatedFleet) -> bool:
    """Does the time of messages depend on the size of the model?"""
    return fleet.network.bandwidth < math.inf or (fleet.machines is not None and not fleet.machines.message_bytes)


def inspect_model(source: Source, progress: Callable[["Curvature"], None] | None = None) -> ModelFacts | None:
    """Make the model as a run would, and find its curvature. None without a model."""
    if source.task is None:
        return None
    from paceline.config.experiment import make_task
    from paceline.learning.curvature import curvature
    from paceline.learning.model_state import message_bytes

    task = make_task(source.task, source.seed)
    return ModelFacts(curvature(task, progress=progress), message_bytes(task.model))
