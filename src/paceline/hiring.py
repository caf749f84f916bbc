"""Which hands a strategy needs, and who works for them."""

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.fleets.fleet import Crew, Fleet
from paceline.fleets.simulated import SimulatedFleet
from paceline.learning.averaging import Averaging
from paceline.learning.ensembling import Ensembling
from paceline.learning.job import Job
from paceline.learning.local_training import LocalTrainer
from paceline.learning.model_hands import Aggregation, ModelHands
from paceline.learning.server import Recipe, Server
from paceline.sampling.batches import Batches
from paceline.strategies.ensemble_compression import EnsembleCompression
from paceline.strategies.grouped import Grouped
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.regrouped import Regrouped


def hire(
    strategy: Strategy, fleet: Fleet, job: Job, recipe: Recipe, *, batches: Batches, seed: int
) -> tuple[Crew, Server | ModelHands]:
    """The workers of a run, and what carries instructions out on the model: by gradients, or by models of their own."""
    _refuse_models_inside(strategy)
    if not isinstance(strategy, ModelAveraging | EnsembleCompression):
        crew, contributions = fleet.hire(job, seed)
        return crew, Server(job.state, recipe, batches, contributions, fleet.workers)
    if not isinstance(fleet, SimulatedFleet):
        raise ConfigError(
            f"{type(fleet).__name__} cannot run {type(strategy).__name__}: its workers hand in gradients only; "
            "use a SimulatedFleet"
        )
    trainers = [LocalTrainer(job, recipe, worker, seed) for worker in range(fleet.workers)]
    aggregation: Aggregation = (
        Averaging(job, strategy, trainers)
        if isinstance(strategy, ModelAveraging)
        else Ensembling(job, strategy, trainers)
    )
    hands = ModelHands(job, batches, trainers, aggregation)
    return fleet.hire_trainers(hands, seed), hands


def _refuse_models_inside(strategy: Strategy) -> None:
    inner = strategy
    while isinstance(inner, Grouped | Regrouped):
        inner = inner.inside
    if inner is not strategy and isinstance(inner, ModelAveraging | EnsembleCompression):
        outer = type(strategy).__name__
        raise ConfigError(
            f"{type(inner).__name__} cannot be the rule inside {outer}, whose workers hand in gradients: turn it "
            f"round, as in ModelAveraging(every=16, waits={outer}(...))"
        )
