"""Which hands a strategy needs, and who works for them."""

from paceline.core.coordinator import Strategy
from paceline.core.errors import ConfigError
from paceline.fleets.fleet import Crew, Fleet, TrainersFleet
from paceline.learning.averaging import Averaging
from paceline.learning.ensembling import Ensembling
from paceline.learning.job import Job
from paceline.learning.local_training import LocalTrainer
from paceline.learning.local_work import Bench
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
    if not isinstance(fleet, TrainersFleet):
        raise ConfigError(
            f"{type(fleet).__name__} cannot run {type(strategy).__name__}: its workers hand in gradients only; "
            "use a SimulatedFleet or a ProcessFleet"
        )
    trainers = [LocalTrainer(job, recipe, worker, seed) for worker in range(1, fleet.workers)]
    aggregation: Aggregation
    if isinstance(strategy, ModelAveraging):
        trainers.insert(0, LocalTrainer(job, recipe, 0, seed))
        aggregation = Averaging(job, strategy, trainers)
    else:  # an ensemble has no model of its own: the job's is free for a worker
        trainers.insert(0, LocalTrainer(job, recipe, 0, seed, model=job.state.model))
        aggregation = Ensembling(job, strategy, trainers)
    crew, pieces = fleet.hire_trainers(Bench(job, recipe, trainers, seed, aggregation.bill))
    return crew, ModelHands(job, batches, trainers, aggregation, pieces)


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
