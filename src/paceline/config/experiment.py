"""From a configuration to a training run: data, model and optimizer by their names in torch."""

import inspect
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from paceline.config.file import Chosen, Config, write_config
from paceline.config.fleets import cluster_of
from paceline.config.named_tasks import make_named
from paceline.config.tasks import AnyTask, FactoryChoice, TaskChoice
from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.core.fields import as_written, nearest
from paceline.data.partition import deal
from paceline.engine.arguments import sizes_for
from paceline.engine.replay import Replay, replay_spec
from paceline.engine.result import Run
from paceline.engine.spec import RunSpec
from paceline.engine.train import Output, run_spec
from paceline.fleets.base import labels_of, medians_at
from paceline.learning.optimizers import MakeOptimizer, MakeScheduler, refuse_closures
from paceline.learning.task import Task
from paceline.randomness import stream
from paceline.storage.reading import SavedRun
from paceline.storage.run_directory import RunDirectory
from paceline.strategies.names import StrategyChoice

NUMBERS = (int, float, "int", "float")  # as torch annotates arguments that are numbers


def check(config: Config) -> Task:
    """Refuse, before anything is run or written, what could not be run. Returns the task of the first seed."""
    for choice in config.strategies:
        try:
            sizes_for(_strategy(config, choice), config.fleet.workers, config.batch_size)
        except ConfigError as error:
            named = str(error).startswith("strategy")
            raise ConfigError(str(error) if named else f"strategy {choice.short!r}: {error}") from None
    task = make_task(config.task, seed=config.seeds[0])
    for seed in config.seeds:
        samples = task.training_samples()
        deal(config.partition, samples, config.fleet.workers, config.batch_size, stream(seed, "partition"))
    for lr in config.tune.lr if config.tune else (None,):
        make_optimizer(config.optimizer, lr)(task.model.parameters())
    _try_step(config)
    return task


def _try_step(config: Config) -> None:
    """Make steps of nothing: some options are looked at only then."""
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.zeros_like(parameter)
    lr = config.tune.lr[0] if config.tune else None
    optimizer = make_optimizer(config.optimizer, lr)([parameter])
    scheduler = make_scheduler(config.scheduler)(optimizer) if config.scheduler is not None else None
    chosen = config.optimizer
    try:
        for _ in range(2):  # the first has no momentum yet
            optimizer.step()
        if scheduler is not None and config.scheduler is not None:
            chosen = config.scheduler
            scheduler.step()
    except Exception as error:  # torch raises whatever comes of an option of the wrong type
        raise ConfigError(
            f"{chosen.name} cannot step with {as_written(dict(chosen.options))}: {_line(error)}"
        ) from None


def run(
    config: Config,
    choice: StrategyChoice,
    *,
    seed: int,
    lr: float | None = None,
    directory: Path | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    progress: bool | None = False,
) -> Run:
    """Train once. In a directory, the configuration is kept as ``config.toml`` beside what ``train`` leaves there."""
    place = None if directory is None else place_of(config, choice, seed, lr, directory)
    log = logging.getLogger("paceline")
    level = log.level
    log.setLevel(logging.ERROR)  # what was left out is in the run, and shown at its end
    try:
        task, spec = prepared(config, choice, seed, lr)
        return run_spec(task, spec, Output(place, config.checkpoint if place else None, resume, tensorboard, progress))
    finally:
        log.setLevel(level)


def place_of(config: Config, choice: StrategyChoice, seed: int, lr: float | None, path: Path) -> RunDirectory:
    """The directory of a run, in which its configuration is kept too."""
    text = write_config(settled(config, choice, seed, lr))
    return RunDirectory(
        path, {"config.toml": text}, names_code=isinstance(config.task, FactoryChoice), address=cluster_of(config.fleet)
    )


def replay_config(saved: SavedRun, config: Config) -> Replay:
    """Make a run again from its trace, as its configuration describes it."""
    return replay_spec(saved, *prepared(config, config.strategies[0], config.seeds[0]))


def prepared(config: Config, choice: StrategyChoice, seed: int, lr: float | None = None) -> tuple[Task, RunSpec]:
    """The task of one run, and everything else that its result depends on."""
    task = make_task(config.task, seed)
    spec = RunSpec.of(
        task,
        strategy=_strategy(config, choice),
        fleet=config.fleet,
        optimizer=make_optimizer(config.optimizer, lr),
        scheduler=make_scheduler(config.scheduler) if config.scheduler else None,
        stop=config.stop,
        batch_size=config.batch_size,
        partition=config.partition,
        sampling=config.sampling,
        clip_norm=config.clip_norm,
        micro_batches=config.micro_batches,
        compensate_delay=config.compensate_delay,
        every=config.every,
        seed=seed,
    )
    return task, spec


def _strategy(config: Config, choice: StrategyChoice) -> Strategy:
    """The strategy that was chosen, fitted to the fleet."""
    return choice.strategy(medians_at(config.fleet, config.batch_size) or (), labels_of(config.fleet))


def settled(config: Config, choice: StrategyChoice, seed: int, lr: float | None) -> Config:
    """The configuration of this one run."""
    optimizer = (
        config.optimizer if lr is None else Chosen(config.optimizer.name, {**config.optimizer.options, "lr": lr})
    )
    return replace(config, strategies=(choice,), seeds=(seed,), optimizer=optimizer, tune=None)


def make_task(choice: AnyTask, seed: int) -> Task:
    """The data and a new model, its weights drawn by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(choice, TaskChoice):
            return make_named(choice)
        from paceline.config.factories import make_from_factory

        return make_from_factory(choice, seed)


def make_optimizer(chosen: Chosen, lr: float | None = None) -> MakeOptimizer:
    """Any optimizer of ``torch.optim`` that steps along a gradient, its keyword arguments checked; ``lr`` overrides."""
    options = dict(chosen.options) if lr is None else {**chosen.options, "lr": lr}
    kind = _class(torch.optim, chosen.name, Optimizer, "optimizer")
    refuse_closures(kind)
    _check_options(kind, options, "optimizer")

    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        try:
            optimizer: Optimizer = kind(parameters, **options)
        except Exception as error:  # torch raises whatever comes of an option of the wrong type
            raise ConfigError(f"optimizer: {kind.__name__} refuses {options}: {_line(error)}") from None
        return optimizer

    return make


def make_scheduler(chosen: Chosen) -> MakeScheduler:
    """Any scheduler of ``torch.optim.lr_scheduler``, its keyword arguments checked."""
    kind = _class(lr_scheduler, chosen.name, LRScheduler, "scheduler")
    _check_options(kind, chosen.options, "scheduler")
    _check_numbers(kind, chosen.options, "scheduler")

    def make(optimizer: Optimizer) -> LRScheduler:
        try:
            scheduler: LRScheduler = kind(optimizer, **chosen.options)
        except Exception as error:  # the same
            raise ConfigError(f"scheduler: {kind.__name__} refuses {dict(chosen.options)}: {_line(error)}") from None
        return scheduler

    return make


def _class(module: Any, name: str, base: type, what: str) -> Any:
    known = sorted(
        each for each, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base and not each.startswith("_")
    )  # fmt: skip
    if name not in known:
        raise ConfigError(f"{what}: torch has no {name!r}: {nearest(name, known)}")
    return getattr(module, name)


def _check_options(kind: Any, options: Any, what: str) -> None:
    known = list(inspect.signature(kind).parameters)[1:]
    for option in options:
        if option not in known:
            raise ConfigError(f"{what}: {kind.__name__} has no option {option!r}: {nearest(option, known)}")


def _check_numbers(kind: Any, options: Mapping[str, Any], what: str) -> None:
    """Refuse what is no finite number where torch wants one: some options count only hundreds of steps later."""
    for name, parameter in inspect.signature(kind).parameters.items():
        usual, given = parameter.default, options.get(name)
        if given is None or parameter.annotation not in NUMBERS:
            continue
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
            example = usual if isinstance(usual, int | float) else 1
            raise ConfigError(
                f"{what}: {kind.__name__} cannot have {name}={as_written(given)}: give a finite number, such as "
                f"{name} = {example}"
            )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
