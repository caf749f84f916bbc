"""What the workers of a run are given to work with, and what the server holds of their work: by kind of work.

A payload is packed once, by the server. Every worker unpacks it and opens it to a function that computes orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from paceline.data.samples import Samples
from paceline.fleets.processes.channel import Order
from paceline.learning.arena.arena import EMPTY_REPORT, ParameterArena, Report
from paceline.learning.arena.blobs import Blobs
from paceline.learning.contributions import SharedContributions
from paceline.learning.copies import Hung
from paceline.learning.gradients import slots as gradient_slots
from paceline.learning.gradients.shared import SharedGradients
from paceline.learning.gradients.work import GradientWork
from paceline.learning.loss import Objective
from paceline.learning.models import shared as shared_models
from paceline.learning.models.shared import SharedModels, compute_shared
from paceline.learning.models.training import LocalTrainer
from paceline.learning.optimizers import Recipe
from paceline.learning.workload import Workload, state_of

# from an order, and whether to continue with the next block, to the units done and what is reported with the result
ComputeFunction = Callable[[Order, Callable[[int], bool]], tuple[int, Report]]


@dataclass(frozen=True)
class WorkerPayload:
    """What a worker needs to compute orders. ``hung`` are the hooks of parameters, which are sent apart."""

    model: nn.Module
    samples: Samples
    loss: Objective
    batch_size: int
    recipe: Recipe | None = None  # of workers that train models of their own
    hung: Sequence[Hung] = ()
    micro_batches: int = 1
    logged: Sequence[str] = ()  # the names of what a step logs

    def open(self, parameters: Sequence[nn.Parameter], arena: ParameterArena, blobs: Blobs) -> ComputeFunction:
        """``parameters`` are the model's, and lie in the arena's first slot."""
        if self.recipe is None:
            return self._gradients(parameters, arena)
        return self._local_training(self.recipe, parameters, arena, blobs)

    def _gradients(self, parameters: Sequence[nn.Parameter], arena: ParameterArena) -> ComputeFunction:
        work = GradientWork(
            self.model, parameters, self.samples, self.loss, micro_batches=self.micro_batches, logged=self.logged
        )

        def compute(order: Order, go_on: Callable[[int], bool]) -> tuple[int, Report]:
            return work.compute(
                arena[order.source], arena[order.slot], order.indices, units=order.units, seed=order.seed, go_on=go_on
            )

        return compute

    def _local_training(
        self, recipe: Recipe, parameters: Sequence[nn.Parameter], arena: ParameterArena, blobs: Blobs
    ) -> ComputeFunction:
        for parameter in parameters:
            parameter.data = parameter.data.clone()  # the worker's own: training changes it
        state = state_of(self.model, self.loss.whole)
        workload = Workload(
            state, self.samples, self.loss, self.batch_size, self.samples, shards=(), kind="local_steps",
            recipe=recipe, micro_batches=self.micro_batches,
        )  # fmt: skip
        # its own random numbers are never used: they come with each work, and so does everything else
        trainer = LocalTrainer(workload, 0, seed=0, model=self.model)

        def compute(order: Order, go_on: Callable[[int], bool]) -> tuple[int, Report]:
            done = compute_shared(
                trainer, arena, blobs, serial=order.serial, source=order.source, slot=order.slot, go_on=go_on
            )
            return order.units if done else 0, EMPTY_REPORT

        return compute


def payload_of(workload: Workload, model: nn.Module, loss: Objective, hung: Sequence[Hung] = ()) -> WorkerPayload:
    """What the workers of a workload are given, with a model and loss for them."""
    recipe = workload.recipe if workload.hands_in_models else None
    return WorkerPayload(
        model, workload.samples, loss, workload.batch_size, recipe, hung, workload.micro_batches, workload.logged
    )


def slots_needed(workload: Workload, workers: int) -> int:
    """How many slots the arena of a run needs."""
    needed = shared_models.slots_needed if workload.hands_in_models else gradient_slots.slots_needed
    return needed(workers, workload.levels)


def shared_contributions(workload: Workload, arena: ParameterArena, blobs: Blobs, workers: int) -> SharedContributions:
    """What holds on the server what workers hand in through shared memory."""
    if workload.hands_in_models:
        return SharedModels(workload, arena, blobs)
    blobs.close()  # gradients need none
    return SharedGradients(workload.state, arena, workers, workload.logged, workload.levels)
