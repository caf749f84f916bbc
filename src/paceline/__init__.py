"""Paceline trains PyTorch models on workers of unequal speed: choose who waits for whom, and see what it costs.

Importing this package imports neither torch nor numpy: each name is loaded when it is first used.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.core.coordinator import Strategy
    from paceline.core.errors import CannotWrite, ConfigError, IllegalDecision, ImpossibleEvent, PacelineError
    from paceline.core.messages import Joined, Left, distilled_steps, local_steps
    from paceline.data.batches import Resampled, Shuffled
    from paceline.data.partition import Dirichlet, Equal, Pathological
    from paceline.data.reassign import ReassignShards
    from paceline.delays import Constant, Empirical, LogNormal, Pareto, ShiftedExponential
    from paceline.engine.limits import Every, Stop
    from paceline.engine.replay import replay
    from paceline.engine.result import Run
    from paceline.engine.train import simulate, train
    from paceline.fleets.processes.fleet import ProcessFleet
    from paceline.fleets.processes.timeouts import SilenceTimeout
    from paceline.fleets.ray.fleet import RayFleet
    from paceline.fleets.simulated.fleet import Network, SimulatedFleet
    from paceline.learning.task import Task
    from paceline.pruning.samplers import FinePruning, RandomPruning, SoftPruning, WithIndices
    from paceline.storage.saved_models import load
    from paceline.strategies.asynchronous import Asynchronous
    from paceline.strategies.ensemble_compression import EnsembleCompression, FinalEnsemble
    from paceline.strategies.fastest_k import FastestK
    from paceline.strategies.grouped import Grouped, groups_by_label, groups_by_speed
    from paceline.strategies.live_compensation import LiveCompensation
    from paceline.strategies.model_averaging import ModelAveraging
    from paceline.strategies.regrouped import Regrouped
    from paceline.strategies.synchronous import Synchronous
    from paceline.trace.reading import read_trace

__version__ = "0.1.0"

_HOME = {
    "paceline.core.coordinator": ("Strategy",),
    "paceline.core.errors": ("CannotWrite", "ConfigError", "IllegalDecision", "ImpossibleEvent", "PacelineError"),
    "paceline.core.messages": ("Joined", "Left", "distilled_steps", "local_steps"),
    "paceline.delays": ("Constant", "Empirical", "LogNormal", "Pareto", "ShiftedExponential"),
    "paceline.fleets.processes.timeouts": ("SilenceTimeout",),
    "paceline.fleets.processes.fleet": ("ProcessFleet",),
    "paceline.fleets.ray.fleet": ("RayFleet",),
    "paceline.fleets.simulated.fleet": ("Network", "SimulatedFleet"),
    "paceline.learning.task": ("Task",),
    "paceline.engine.replay": ("replay",),
    "paceline.pruning.samplers": ("FinePruning", "RandomPruning", "SoftPruning", "WithIndices"),
    "paceline.engine.limits": ("Every", "Stop"),
    "paceline.engine.result": ("Run",),
    "paceline.data.batches": ("Resampled", "Shuffled"),
    "paceline.data.reassign": ("ReassignShards",),
    "paceline.data.partition": ("Dirichlet", "Equal", "Pathological"),
    "paceline.strategies.asynchronous": ("Asynchronous",),
    "paceline.strategies.ensemble_compression": ("EnsembleCompression", "FinalEnsemble"),
    "paceline.strategies.fastest_k": ("FastestK",),
    "paceline.strategies.grouped": ("Grouped", "groups_by_label", "groups_by_speed"),
    "paceline.strategies.live_compensation": ("LiveCompensation",),
    "paceline.strategies.model_averaging": ("ModelAveraging",),
    "paceline.strategies.regrouped": ("Regrouped",),
    "paceline.strategies.synchronous": ("Synchronous",),
    "paceline.storage.saved_models": ("load",),
    "paceline.trace.reading": ("read_trace",),
    "paceline.engine.train": ("simulate", "train"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Asynchronous",
    "CannotWrite",
    "ConfigError",
    "Constant",
    "Dirichlet",
    "Empirical",
    "EnsembleCompression",
    "Equal",
    "Every",
    "FastestK",
    "FinalEnsemble",
    "FinePruning",
    "Grouped",
    "IllegalDecision",
    "ImpossibleEvent",
    "Joined",
    "Left",
    "LiveCompensation",
    "LogNormal",
    "ModelAveraging",
    "Network",
    "PacelineError",
    "Pareto",
    "Pathological",
    "ProcessFleet",
    "RandomPruning",
    "RayFleet",
    "ReassignShards",
    "Regrouped",
    "Resampled",
    "Run",
    "ShiftedExponential",
    "Shuffled",
    "SilenceTimeout",
    "SimulatedFleet",
    "SoftPruning",
    "Stop",
    "Strategy",
    "Synchronous",
    "Task",
    "WithIndices",
    "distilled_steps",
    "groups_by_label",
    "groups_by_speed",
    "load",
    "local_steps",
    "read_trace",
    "replay",
    "simulate",
    "train",
]  # fmt: skip


_FORMER = {"Deadline": "SilenceTimeout", "HandedOn": "ReassignShards"}  # kept for one release


def __getattr__(name: str) -> Any:
    if name in _FORMER:
        now = _FORMER[name]
        warnings.warn(f"paceline.{name} is now paceline.{now}", DeprecationWarning, stacklevel=2)
        name = now
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
