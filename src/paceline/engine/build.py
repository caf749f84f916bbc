"""Which hands a strategy needs, and who works for them."""

import logging

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.data.batches import Batches
from paceline.fleets.base import Fleet, TrainersFleet, WorkerGroup
from paceline.learning.gradients.server import GradientServer, Recipe
from paceline.learning.models.averaging import Averaging
from paceline.learning.models.ensembling import Ensembling
from paceline.learning.models.local_training import LocalTrainer
from paceline.learning.models.local_work import Bench
from paceline.learning.models.server import Aggregation, ModelServer
from paceline.learning.workload import Workload
from paceline.strategies.ensemble_compression import EnsembleCompression
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.regrouped import Regrouped

log = logging.getLogger("paceline")


def launch(
    strategy: Strategy, fleet: Fleet, workload: Workload, recipe: Recipe, *, batches: Batches, seed: int
) -> tuple[WorkerGroup, GradientServer | ModelServer]:
    """The workers of a run, and what carries instructions out on the model: by gradients, or by models of their own."""
    _refuse_models_inside(strategy)
    if not isinstance(strategy, ModelAveraging | EnsembleCompression):
        crew, contributions = fleet.launch(workload, seed)
        return crew, GradientServer(workload.state, recipe, batches, contributions, fleet.workers)
    if not isinstance(fleet, TrainersFleet):
        raise ConfigError(
            f"{type(fleet).__name__} cannot run {type(strategy).__name__}: its workers hand in gradients only; "
            "use a SimulatedFleet or a ProcessFleet"
        )
    if workload.trained_loss is not None and isinstance(strategy, EnsembleCompression):
        raise ConfigError(
            f"{type(strategy).__name__} cannot train the parameters of a loss: every worker would have a loss of its "
            "own, and an ensemble has one; let the model have them, or freeze them with requires_grad_(False)"
        )
    trainers = [LocalTrainer(workload, recipe, worker, seed) for worker in range(1, fleet.workers)]
    aggregation: Aggregation
    if isinstance(strategy, ModelAveraging):
        trainers.insert(0, LocalTrainer(workload, recipe, 0, seed))
        aggregation = Averaging(workload, strategy, trainers)
    else:  # an ensemble has no model of its own: the workload's is free for a worker
        trainers.insert(0, LocalTrainer(workload, recipe, 0, seed, model=workload.state.model))
        aggregation = Ensembling(workload, strategy, trainers)
    crew, pieces = fleet.hire_trainers(Bench(workload, recipe, trainers, seed, aggregation.bill))
    return crew, ModelServer(workload, batches, trainers, aggregation, pieces)


def warn_of_settings_without_effect(strategy: Strategy, fleet: Fleet) -> None:
    """Say what was asked for and cannot do anything on this fleet."""
    inner = _innermost(strategy)
    if isinstance(inner, LiveCompensation) and inner.recall and inner.blocks == 1:
        recall = getattr(fleet, "recall", "block")  # real workers look up between two blocks
        if recall == "block":
            log.warning(
                "LiveCompensation recalls late workers in vain: with blocks=1 they finish the whole mini-batch, and "
                "the next update waits for them as with recall=False; choose blocks=4"
            )
        elif recall == "abandon":
            log.warning(
                "LiveCompensation makes up for nothing: with blocks=1 and recall='abandon' late workers hand in "
                "nothing; choose blocks=4"
            )
    if isinstance(inner, EnsembleCompression) and inner.diversity > 0 and inner.compressed == inner.every:
        log.warning(
            "EnsembleCompression has no step for diversity=%g: all %d between two ensembles distil; choose a larger "
            "every, or diversity=0",
            inner.diversity,
            inner.every,
        )


def _innermost(strategy: Strategy) -> Strategy:
    while isinstance(strategy, Grouped | Regrouped):
        strategy = strategy.inside
    return strategy


def _refuse_models_inside(strategy: Strategy) -> None:
    inner = _innermost(strategy)
    if inner is not strategy and isinstance(inner, ModelAveraging | EnsembleCompression):
        outer = type(strategy).__name__
        raise ConfigError(
            f"{type(inner).__name__} cannot be the rule inside {outer}, whose workers hand in gradients: turn it "
            f"round, as in ModelAveraging(every=16, waits={outer}(...))"
        )
