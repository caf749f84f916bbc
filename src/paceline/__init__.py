"""Paceline trains PyTorch models on workers of unequal speed: choose who waits for whom, and see what it costs.

Rules of your own are written with ``paceline.strategy``; durations of simulated workers are in ``paceline.delays``;
``paceline.callbacks``, ``paceline.theory``, ``paceline.testing`` and ``paceline.look``, for figures, are the other
public modules. Importing this package imports neither torch nor numpy: each name is loaded when it is first used.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what the table below says, for type checkers
    from paceline import callbacks as callbacks
    from paceline import delays as delays
    from paceline import integrations as integrations
    from paceline import look as look
    from paceline import strategy as strategy
    from paceline import testing as testing
    from paceline import theory as theory
    from paceline.callbacks.base import Callback as Callback
    from paceline.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from paceline.callbacks.files import CSVLogger as CSVLogger
    from paceline.callbacks.progress import Progress as Progress
    from paceline.callbacks.tensorboard import TensorBoard as TensorBoard
    from paceline.callbacks.trackers import MLflowLogger as MLflowLogger
    from paceline.callbacks.trackers import WandbLogger as WandbLogger
    from paceline.comparison.compare import compare as compare
    from paceline.comparison.results import Comparison as Comparison
    from paceline.core.errors import CannotWrite as CannotWrite
    from paceline.core.errors import ConfigError as ConfigError
    from paceline.core.errors import PacelineError as PacelineError
    from paceline.core.messages import Joined as Joined
    from paceline.core.messages import Leaving as Leaving
    from paceline.core.messages import Left as Left
    from paceline.data.batches import Resampled as Resampled
    from paceline.data.batches import Shuffled as Shuffled
    from paceline.data.partition import Dirichlet as Dirichlet
    from paceline.data.partition import Equal as Equal
    from paceline.data.partition import Pathological as Pathological
    from paceline.data.reassign import ReassignShards as ReassignShards
    from paceline.engine.limits import Every as Every
    from paceline.engine.limits import Stop as Stop
    from paceline.engine.load_run import load_run as load_run
    from paceline.engine.replay import replay as replay
    from paceline.engine.result import Run as Run
    from paceline.engine.train import simulate as simulate
    from paceline.engine.train import train as train
    from paceline.fleets.processes.fleet import ProcessFleet as ProcessFleet
    from paceline.fleets.processes.timeouts import SilenceTimeout as SilenceTimeout
    from paceline.fleets.ray.fleet import RayFleet as RayFleet
    from paceline.fleets.simulated.cluster import Machines as Machines
    from paceline.fleets.simulated.conditions import Availability as Availability
    from paceline.fleets.simulated.fleet import Network as Network
    from paceline.fleets.simulated.fleet import SimulatedFleet as SimulatedFleet
    from paceline.learning.curvature import curvature as curvature
    from paceline.learning.task import Task as Task
    from paceline.prediction.advice import Advice as Advice
    from paceline.prediction.advise import advise as advise
    from paceline.prediction.predict import Descent as Descent
    from paceline.prediction.predict import predict as predict
    from paceline.prediction.profile import profile as profile
    from paceline.pruning.samplers import FinePruning as FinePruning
    from paceline.pruning.samplers import RandomPruning as RandomPruning
    from paceline.pruning.samplers import SoftPruning as SoftPruning
    from paceline.pruning.samplers import WithIndices as WithIndices
    from paceline.recording.recorder import record as record
    from paceline.storage.saved_models import load as load
    from paceline.strategies.adacomm import AdaComm as AdaComm
    from paceline.strategies.adaptive_quorum import AdaptiveQuorum as AdaptiveQuorum
    from paceline.strategies.advised import Advised as Advised
    from paceline.strategies.aggregation import OuterSGD as OuterSGD
    from paceline.strategies.anytime import Anytime as Anytime
    from paceline.strategies.asynchronous import Asynchronous as Asynchronous
    from paceline.strategies.bounded_staleness import BoundedStaleness as BoundedStaleness
    from paceline.strategies.buffered import Buffered as Buffered
    from paceline.strategies.buffered import StalenessAware as StalenessAware
    from paceline.strategies.delay_adaptive import DelayAdaptive as DelayAdaptive
    from paceline.strategies.ensemble_compression import EnsembleCompression as EnsembleCompression
    from paceline.strategies.ensemble_compression import FinalEnsemble as FinalEnsemble
    from paceline.strategies.fastest_k import FastestK as FastestK
    from paceline.strategies.grouped import Grouped as Grouped
    from paceline.strategies.grouped import groups_by_label as groups_by_label
    from paceline.strategies.grouped import groups_by_speed as groups_by_speed
    from paceline.strategies.live_compensation import LiveCompensation as LiveCompensation
    from paceline.strategies.model_averaging import ModelAveraging as ModelAveraging
    from paceline.strategies.model_rules import BMUF as BMUF
    from paceline.strategies.model_rules import DecoupledDiLoCo as DecoupledDiLoCo
    from paceline.strategies.model_rules import DiLoCo as DiLoCo
    from paceline.strategies.model_rules import FedBuff as FedBuff
    from paceline.strategies.model_rules import PostLocalSGD as PostLocalSGD
    from paceline.strategies.model_rules import SlowMo as SlowMo
    from paceline.strategies.newest_of_each import NewestOfEach as NewestOfEach
    from paceline.strategies.pulling import EASGD as EASGD
    from paceline.strategies.pulling import FedAsync as FedAsync
    from paceline.strategies.quorum_grace import QuorumGrace as QuorumGrace
    from paceline.strategies.regrouped import Regrouped as Regrouped
    from paceline.strategies.rennala import Malenia as Malenia
    from paceline.strategies.rennala import Rennala as Rennala
    from paceline.strategies.replicated import Replicated as Replicated
    from paceline.strategies.rescaled import Rescaled as Rescaled
    from paceline.strategies.ringmaster import Ringmaster as Ringmaster
    from paceline.strategies.synchronous import Synchronous as Synchronous
    from paceline.strategies.unequal_batches import UnequalBatches as UnequalBatches
    from paceline.strategies.unequal_batches import sizes_by_speed as sizes_by_speed
    from paceline.trace.reading import read_trace as read_trace

__version__ = "0.2.0.dev0"

_NAMES = {
    "paceline.callbacks.base": ("Callback",),
    "paceline.callbacks.early_stopping": ("EarlyStopping",),
    "paceline.callbacks.files": ("CSVLogger",),
    "paceline.callbacks.progress": ("Progress",),
    "paceline.callbacks.tensorboard": ("TensorBoard",),
    "paceline.callbacks.trackers": ("MLflowLogger", "WandbLogger"),
    "paceline.comparison.compare": ("compare",),
    "paceline.comparison.results": ("Comparison",),
    "paceline.core.errors": ("CannotWrite", "ConfigError", "PacelineError"),
    "paceline.core.messages": ("Joined", "Leaving", "Left"),
    "paceline.data.batches": ("Resampled", "Shuffled"),
    "paceline.data.partition": ("Dirichlet", "Equal", "Pathological"),
    "paceline.data.reassign": ("ReassignShards",),
    "paceline.engine.limits": ("Every", "Stop"),
    "paceline.engine.load_run": ("load_run",),
    "paceline.engine.replay": ("replay",),
    "paceline.engine.result": ("Run",),
    "paceline.engine.train": ("simulate", "train"),
    "paceline.fleets.processes.fleet": ("ProcessFleet",),
    "paceline.fleets.processes.timeouts": ("SilenceTimeout",),
    "paceline.fleets.ray.fleet": ("RayFleet",),
    "paceline.fleets.simulated.cluster": ("Machines",),
    "paceline.fleets.simulated.conditions": ("Availability",),
    "paceline.fleets.simulated.fleet": ("Network", "SimulatedFleet"),
    "paceline.learning.curvature": ("curvature",),
    "paceline.learning.task": ("Task",),
    "paceline.prediction.advice": ("Advice",),
    "paceline.prediction.advise": ("advise",),
    "paceline.prediction.predict": ("Descent", "predict"),
    "paceline.prediction.profile": ("profile",),
    "paceline.pruning.samplers": ("FinePruning", "RandomPruning", "SoftPruning", "WithIndices"),
    "paceline.recording.recorder": ("record",),
    "paceline.storage.saved_models": ("load",),
    "paceline.strategies.adacomm": ("AdaComm",),
    "paceline.strategies.aggregation": ("OuterSGD",),
    "paceline.strategies.adaptive_quorum": ("AdaptiveQuorum",),
    "paceline.strategies.advised": ("Advised",),
    "paceline.strategies.anytime": ("Anytime",),
    "paceline.strategies.asynchronous": ("Asynchronous",),
    "paceline.strategies.bounded_staleness": ("BoundedStaleness",),
    "paceline.strategies.buffered": ("Buffered", "StalenessAware"),
    "paceline.strategies.delay_adaptive": ("DelayAdaptive",),
    "paceline.strategies.ensemble_compression": ("EnsembleCompression", "FinalEnsemble"),
    "paceline.strategies.fastest_k": ("FastestK",),
    "paceline.strategies.grouped": ("Grouped", "groups_by_label", "groups_by_speed"),
    "paceline.strategies.live_compensation": ("LiveCompensation",),
    "paceline.strategies.model_averaging": ("ModelAveraging",),
    "paceline.strategies.model_rules": ("BMUF", "DecoupledDiLoCo", "DiLoCo", "FedBuff", "PostLocalSGD", "SlowMo"),
    "paceline.strategies.pulling": ("EASGD", "FedAsync"),
    "paceline.strategies.newest_of_each": ("NewestOfEach",),
    "paceline.strategies.quorum_grace": ("QuorumGrace",),
    "paceline.strategies.regrouped": ("Regrouped",),
    "paceline.strategies.rennala": ("Malenia", "Rennala"),
    "paceline.strategies.replicated": ("Replicated",),
    "paceline.strategies.rescaled": ("Rescaled",),
    "paceline.strategies.ringmaster": ("Ringmaster",),
    "paceline.strategies.synchronous": ("Synchronous",),
    "paceline.strategies.unequal_batches": ("UnequalBatches", "sizes_by_speed"),
    "paceline.trace.reading": ("read_trace",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("callbacks", "delays", "integrations", "look", "strategy", "testing", "theory")
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - a list

# Names that moved: the old ones work for one release.
_FORMER = {
    "Deadline": "paceline.SilenceTimeout",
    "HandedOn": "paceline.ReassignShards",
    **{
        name: f"paceline.delays.{name}"
        for name in ["Constant", "Empirical", "LogNormal", "Pareto", "ShiftedExponential"]
    },
    **{
        name: f"paceline.strategy.{name}"
        for name in ["IllegalDecision", "ImpossibleEvent", "Strategy", "distilled_steps", "local_steps"]
    },
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"paceline.{name}")
    if name in _FORMER:
        warnings.warn(f"paceline.{name} is now {_FORMER[name]}", DeprecationWarning, stacklevel=2)
        module, _, now = _FORMER[name].rpartition(".")
        return getattr(import_module(module), now)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
