"""What ``train``, ``simulate``, ``profile`` and ``replay`` are given: of the right kind, or refused in one line."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.core.coordinator import Strategy, check_fits
from paceline.core.errors import ConfigError
from paceline.core.fields import as_kind, shown
from paceline.data.sizes import BatchSizes, read_sizes
from paceline.engine.limits import Every, Stop
from paceline.fleets.base import Fleet, labels_of, medians_at
from paceline.randomness import LARGEST_SEED
from paceline.storage.run_directory import RunDirectory
from paceline.strategies.aggregation import EnsembleModels
from paceline.strategies.names import parse_strategy
from paceline.strategies.traits import DealsSizes, check_without_model, deals_sizes, with_inner
from paceline.strategies.unequal_batches import sizes_by_speed

SOME_FLEET = "SimulatedFleet(Constant(1.0), workers={0}) or ProcessFleet({0})"
EXAMPLES = {
    "task": "Task(model, loss, train=(inputs, targets))",
    "fleet": SOME_FLEET.format(4),
    "stop": "Stop(updates=1000)",
    "every": "Every(updates=100)",
    "checkpoint": "Every(updates=100)",
    "partition": "Equal(), Pathological(2) or Dirichlet(0.5)",
    "sampling": "Shuffled() or Resampled()",
    "scheduler": "a function: lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)",
    "directory": 'a path, such as "runs/first"',
}
METHODS = {"task": "evaluator", "fleet": "launch", "partition": "shards", "sampling": "open"}
TYPES = {"stop": Stop, "every": Every, "checkpoint": Every, "directory": str | os.PathLike | RunDirectory}
NUMBERS: Mapping[str, tuple[type, ...]] = {
    "batch_size": (int,),
    "micro_batches": (int,),
    "seed": (int,),
    "clip_norm": (float, type(None)),
    "compensate_delay": (float,),
    "seconds": (float,),
    "resume": (bool,),
    "tensorboard": (bool,),
    "progress": (bool, type(None)),
}
BATCH_SIZE = 32  # where none is given
OPTIONAL = ("stop", "every", "checkpoint", "scheduler", "directory")


def check_arguments(**given: Any) -> None:
    """Raise ``ConfigError`` for the first argument that is not what its name says."""
    for name, value in given.items():
        if (value is None and name in OPTIONAL) or _fits(name, value):
            continue
        raise ConfigError(f"{name}={shown(value)} is {_article(value)}: give {_instead(name, value)}")


def whole(name: str, value: Any) -> int:
    """A batch size, a number of micro-batches or a seed, as a number of Python."""
    check_arguments(**{name: value})
    number = int(value)
    if name == "seed" and not 0 <= number <= LARGEST_SEED:
        raise ConfigError(f"seed={shown(value)} is not possible: a whole number from 0 to 2**63 - 1")
    if name != "seed" and number < 1:
        raise ConfigError(f"{name}={shown(value)} is not possible: at least 1")
    return number


def batch_size_of(value: Any, workers: int) -> int | tuple[int, ...]:
    """The batch size of all workers, or a tuple with that of each where they differ: for ``BatchSizes``."""
    if value is None:
        return BATCH_SIZE
    one = getattr(value, "ndim", 1) == 0  # a tensor or an array of one number can be asked for its elements, in vain
    if one or isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return whole("batch_size", value)
    return read_sizes(value, workers)


def sizes_for(strategy: Strategy, workers: int, batch_size: int | Sequence[int]) -> BatchSizes:
    """The sizes of a run's mini-batches; raises ``ConfigError`` if the strategy cannot have them."""
    check_fits(strategy, workers, batch_size)
    _check_total(strategy, workers, batch_size)
    if isinstance(batch_size, Sequence) and isinstance(getattr(strategy, "aggregation", None), EnsembleModels):
        raise ConfigError(
            f"{type(strategy).__name__} cannot have batch_size={shown(list(batch_size))}: the models of an ensemble "
            "count alike; give one size for all workers"
        )
    return BatchSizes.of(batch_size, workers, vary=deals_sizes(strategy))


def _check_total(strategy: Strategy, workers: int, batch_size: int | Sequence[int] | None) -> None:
    """Raise ``ConfigError`` if a rule that deals sizes is inside another one, or its total is not that of the sizes."""
    if not deals_sizes(strategy):
        for inner in with_inner(strategy):
            if deals_sizes(inner):
                name = type(inner).__name__
                raise ConfigError(
                    f"{name} deals sizes among all workers, and {type(strategy).__name__} is around it: give "
                    f"{name}({'Synchronous(), ' * hasattr(inner, 'inside')}total=...)"
                )
        return
    if batch_size is None:
        return
    given = list(batch_size) if isinstance(batch_size, Sequence) else batch_size
    together = sum(given) if isinstance(given, list) else given * workers
    if together != strategy.total:
        sizes = list(sizes_by_speed([1.0] * workers, strategy.total, strategy.blocks))
        fitting = sizes[0] if len({*sizes}) == 1 else sizes
        raise ConfigError(
            f"a total of {strategy.total} samples does not fit batch_size={given} on {workers} "
            f"workers, which are {together}: give batch_size={fitting}, or total={together}"
        )


def first_sizes(strategy: DealsSizes, workers: int) -> tuple[int, ...]:
    """What a rule that deals sizes begins with, where no batch size is given: its total, dealt out evenly."""
    return sizes_by_speed([1.0] * workers, strategy.total, strategy.blocks)


def simulated_sizes(strategy: Strategy, workers: int, batch_size: int | Sequence[int] | None) -> BatchSizes | None:
    """The same where there is no model: without a batch size, that of a rule that deals sizes."""
    check_without_model(strategy)
    if batch_size is not None:
        return sizes_for(strategy, workers, batch_size_of(batch_size, workers))
    check_fits(strategy, workers, None)
    _check_total(strategy, workers, None)
    if not deals_sizes(strategy):
        return None
    return BatchSizes(first_sizes(strategy, workers), vary=True)


def strategy_for(strategy: Strategy | str, fleet: Fleet, batch_size: int | Sequence[int] | None = None) -> Strategy:
    """The strategy; or what its name on the command line stands for, on this fleet, as in ``"lgc:quorum=5,blocks=4"``.

    Groups that the text does not name are formed by the speeds, or the labels, of the fleet's workers.
    """
    check_arguments(fleet=fleet)
    if isinstance(strategy, str):
        speeds = medians_at(fleet, batch_size)
        choice = parse_strategy(strategy)
        if speeds is None and choice.named.kind.__name__ == "Grouped" and "groups" not in choice.options:
            raise ConfigError(f"{type(fleet).__name__} does not know how fast its workers are: name the groups")
        return choice.strategy(speeds or (1.0,) * fleet.workers, labels_of(fleet))
    if isinstance(strategy, type) or not callable(getattr(strategy, "decide", None)):
        instead = f"{strategy.__name__}(...)" if isinstance(strategy, type) else 'Synchronous() or "ssgd"'
        raise ConfigError(f"strategy={shown(strategy)} is {_article(strategy)}: give a strategy, such as {instead}")
    return strategy


def _fits(name: str, value: Any) -> bool:
    if name in NUMBERS:
        try:
            as_kind(value, NUMBERS[name])
        except TypeError:
            return False
        return True
    if name in METHODS:
        # a path has a method ``open`` too
        return not isinstance(value, type | os.PathLike) and callable(getattr(value, METHODS[name], None))
    if name in TYPES:
        return isinstance(value, TYPES[name])
    return callable(value)


def _instead(name: str, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in NUMBERS:
        try:
            as_kind(value, NUMBERS[name])
        except TypeError as error:
            return str(error)
    if name == "fleet" and isinstance(value, int) and number:
        return SOME_FLEET.format(value)
    if name in ("stop", "every", "checkpoint") and number:
        return f"{'Stop' if name == 'stop' else 'Every'}(updates={value})"
    return EXAMPLES[name]


def _article(value: Any) -> str:
    if isinstance(value, type):
        return "a class"
    words = {bool: "a truth value", int: "a number", float: "a number", str: "a text", type(None): "nothing"}
    return words.get(type(value), f"of the type {type(value).__name__}")
