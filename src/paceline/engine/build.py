"""Who works for a strategy, and what carries its instructions out on the model.

What workers do is decided by the work that the strategy assigns, not by which strategy it is. A strategy is a pure
function of its ledger, so it can be asked before the launch: everybody has joined, what is assigned?
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from paceline.core.coordinator import Coordinator, Strategy
from paceline.core.errors import ConfigError
from paceline.core.messages import Groups, Joined, Start
from paceline.data.batches import Batches
from paceline.fleets.base import Fleet, WorkerGroup
from paceline.fleets.replayed import Replayed
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.learning.gradients.server import GradientServer
from paceline.learning.learner import Learner
from paceline.learning.model_state import message_bytes
from paceline.learning.models.averaging import Averaging
from paceline.learning.models.compression import Ensembling
from paceline.learning.models.contributions import ModelContributions
from paceline.learning.models.server import Aggregation, ModelServer
from paceline.learning.models.training import LocalTrainer
from paceline.learning.optimizers import Recipe
from paceline.learning.step import StepLoss
from paceline.learning.workload import Workload
from paceline.strategies.aggregation import AverageModels, aggregation_of
from paceline.strategies.ensemble_compression import EnsembleCompression
from paceline.strategies.grouped import Grouped
from paceline.strategies.live_compensation import LiveCompensation
from paceline.strategies.regrouped import Regrouped
from paceline.strategies.traits import held_of, reports_of, unsettled_of
from paceline.strategies.unequal_batches import UnequalBatches

KINDS = ("gradient", "local_steps", "distilled_steps")
log = logging.getLogger("paceline")


def launch(
    strategy: Strategy, fleet: Fleet, workload: Workload, recipe: Recipe, *, batches: Batches, seed: int,
    compensate_delay: float = 0.0,
) -> tuple[WorkerGroup, Learner]:  # fmt: skip
    """The workers of a run, and what carries instructions out on the model: by gradients, or by models of their own."""
    kind, groups = first_work(strategy, fleet.workers)
    workload = replace(workload, kind=kind, recipe=recipe, levels=unsettled_of(strategy, fleet.workers))
    _check_memory(strategy, fleet, workload)
    if not workload.hands_in_models:
        workers, contributions = fleet.launch(workload, seed)
        with closed_on_error(workers):
            server = GradientServer(workload.state, recipe, batches, contributions, fleet.workers)
            server.logged_names = workload.logged
            server.ask_for(reports_of(strategy), _name(strategy))
            if compensate_delay:
                server.compensate(compensate_delay)
        return workers, server
    workload, aggregation = _with_trainers(strategy, workload, fleet.workers, groups, seed)
    workers, contributions = fleet.launch(workload, seed)
    with closed_on_error(workers):
        if not isinstance(contributions, ModelContributions):
            raise ConfigError(
                f"{_name(fleet)} cannot run {_name(strategy)}: its workers hand in gradients, and the strategy assigns "
                f"{kind}; use a SimulatedFleet, a ProcessFleet or a RayFleet"
            )
        models = ModelServer(workload, batches, aggregation, contributions)
        models.logged_names = workload.logged
        models.ask_for(reports_of(strategy), _name(strategy))
    return workers, models


@contextmanager
def closed_on_error(workers: WorkerGroup) -> Iterator[None]:
    """Leave nothing running of workers for which there is no server."""
    try:
        yield
    except BaseException:
        workers.close()
        raise


def _check_memory(strategy: Strategy, fleet: Fleet, workload: Workload) -> None:
    """Refuse a rule that may hold more contributions of real workers than the server's memory has room for."""
    own = fleet.fleet if isinstance(fleet, Replayed) else fleet
    if isinstance(own, SimulatedFleet):
        return  # computes a contribution when an update needs it
    held, each = held_of(strategy, fleet.workers), message_bytes(workload.state.model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if held * each > memory:
        raise ConfigError(
            f"{_name(strategy)} may hold {held:,} contributions of {each / 1e9:.3g} GB at once, "
            f"{held * each / 1e9:,.0f} GB in all, and this machine has {memory / 1e9:,.0f} GB: choose it so that at "
            f"most {memory // each:,} are held"
        )


def first_work(strategy: Strategy, workers: int) -> tuple[str, Groups]:
    """The kind of work that a strategy assigns when everybody has joined, and the groups that it splits them into."""
    coordinator = Coordinator(strategy)
    instructions = coordinator.receive(*(Joined(0.0, worker) for worker in range(workers)))
    kinds = dict.fromkeys(each.ticket.work.kind for each in instructions if isinstance(each, Start))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"{_name(strategy)} assigns {unknown[0]}, which no worker can do: one of {', '.join(KINDS)}")
    if len(kinds) > 1:
        raise ConfigError(
            f"{_name(strategy)} assigns {' and '.join(kinds)} at once: a run has one kind of work; let all workers "
            "begin with the same"
        )
    return next(iter(kinds), "gradient"), coordinator.ledger.groups


def _with_trainers(
    strategy: Strategy, workload: Workload, workers: int, groups: Groups, seed: int
) -> tuple[Workload, Aggregation]:
    """A workload for workers that hand in models: with a trainer each, and what combines their models."""
    settings = aggregation_of(strategy, workload.kind)
    if groups and settings.needs_rounds:
        raise ConfigError(
            f"{_name(strategy)} lets groups hand in {workload.kind} in rounds of their own, and all models of an "
            f"update have to be of one round: {settings.needs_rounds}; let the rule wait by Synchronous or FastestK"
        )
    averages = isinstance(settings, AverageModels)
    if not averages and isinstance(workload.loss, StepLoss):
        raise ConfigError(
            f"{_name(strategy)} cannot train a task with step=: an ensemble is made of its models' outputs, and a step "
            "tells only losses; give the task a loss=, or choose ModelAveraging"
        )
    if workload.trained_loss is not None and not averages:
        raise ConfigError(
            f"{_name(strategy)} cannot train the parameters of a loss: every worker would have a loss of its "
            "own, and an ensemble has one; let the model have them, or freeze them with requires_grad_(False)"
        )
    if workload.micro_batches > 1 and not averages:
        raise ConfigError(
            f"{_name(strategy)} distils an ensemble with whole mini-batches, not with micro_batches="
            f"{workload.micro_batches}: use micro_batches=1 and a smaller batch_size"
        )
    others = [LocalTrainer(workload, worker, seed) for worker in range(1, workers)]
    # an ensemble has no model of its own: the workload's is free for a worker
    first = LocalTrainer(workload, 0, seed, model=None if averages else workload.state.model)
    workload = replace(workload, trainers=[first, *others])
    aggregation = (
        Averaging(workload, settings) if isinstance(settings, AverageModels) else Ensembling(workload, settings)
    )
    return replace(workload, aggregation=aggregation), aggregation


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
    while isinstance(strategy, Grouped | Regrouped | UnequalBatches):
        strategy = strategy.inside
    return strategy


def _name(value: object) -> str:
    return type(value).__name__
