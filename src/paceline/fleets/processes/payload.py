"""What the workers of a run are given to work with, and what the server holds of their work: by kind of work.

A payload is packed once, by the server. Every worker unpacks it and opens it to a function that computes orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from paceline.data.samples import Samples
from paceline.fleets.processes.channel import Order
from paceline.learning.arena.arena import EMPTY_REPORT, ParameterArena, Report, StagedSlot
from paceline.learning.arena.blobs import Blobs
from paceline.learning.contributions import SharedContributions
from paceline.learning.copies import Hung
from paceline.learning.devices import CPU, Transfers
from paceline.learning.gradients import held as held_gradients
from paceline.learning.gradients.placement import Placement, Staged
from paceline.learning.gradients.ranks import InTurn, Ranks, RankSums, Sharded, parallelized
from paceline.learning.gradients.shared import SharedGradients
from paceline.learning.gradients.work import GradientWork
from paceline.learning.loss import Objective, Parallel
from paceline.learning.models import shared as shared_models
from paceline.learning.models.shared import SharedModels, compute_shared
from paceline.learning.models.training import LocalTrainer
from paceline.learning.optimizers import Recipe
from paceline.learning.workload import Workload, state_of

# from an order, and whether to continue with the next block, to the units done and what is reported with the result
ComputeFunction = Callable[[Order, Callable[[int], bool]], tuple[int, Report]]


class RankGroup(Ranks, Protocol):
    """The ranks of a worker, each a process."""

    def mesh(self, device: torch.device, /) -> Any: ...

    def check_agreement(self, parameters: Sequence[nn.Parameter], /) -> None: ...


@dataclass(frozen=True)
class Place:
    """Where a process of a worker computes.

    staged  where the parameters of the model lie; nothing if they lie in the arena
    ranks   nothing for a worker of one process
    """

    device: torch.device = CPU
    staged: StagedSlot | None = None
    ranks: RankGroup | InTurn | None = None


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
    parallel: Parallel | None = None  # sets the model up on the ranks of a worker

    def open(
        self, parameters: Sequence[nn.Parameter], arena: ParameterArena, blobs: Blobs, place: Place = Place()
    ) -> ComputeFunction:
        """``parameters`` are the model's, and lie where ``place`` says: by default in the arena's first slot."""
        if place.device.type != "cpu":
            self.model.to(place.device)
            self.loss.move(place.device)
        if self.recipe is None:
            return self._gradients(parameters, arena, place)
        return self._local_training(self.recipe, parameters, arena, blobs, place)

    def _gradients(self, parameters: Sequence[nn.Parameter], arena: ParameterArena, place: Place) -> ComputeFunction:
        model, device, ranks = self.model, place.device, place.ranks
        placement: Placement | None = None
        sums: RankSums | None = None
        if place.staged is not None:
            buffers = state_of(model, self.loss.whole).buffers
            placement = Staged(place.staged, Transfers.of(device), buffers)
            sums = None if ranks is None else RankSums(arena.layout, device, ranks)
        elif ranks is not None and self.parallel is not None and not isinstance(ranks, InTurn):
            model, parameters = parallelized(self.parallel, model, ranks.mesh(device), arena.layout, device)
            buffers = state_of(model, self.loss.whole).buffers
            placement = Sharded(parameters, Transfers.of(device), buffers, speaks=ranks.speaks)
        if ranks is not None and not isinstance(ranks, InTurn):
            ranks.check_agreement(parameters)
        work = GradientWork(
            model, parameters, self.samples, self.loss, micro_batches=self.micro_batches, logged=self.logged,
            placement=placement, ranks=ranks, sums=sums,
        )  # fmt: skip

        def compute(order: Order, go_on: Callable[[int], bool]) -> tuple[int, Report]:
            return work.compute(
                arena[order.source], arena[order.slot], order.indices, units=order.units, seed=order.seed,
                go_on=go_on, version=order.version,
            )  # fmt: skip

        return _in_turn(ranks, compute) if isinstance(ranks, InTurn) else compute

    def _local_training(
        self, recipe: Recipe, parameters: Sequence[nn.Parameter], arena: ParameterArena, blobs: Blobs, place: Place
    ) -> ComputeFunction:
        if place.staged is None:
            for parameter in parameters:
                parameter.data = parameter.data.clone()  # the worker's own: training changes it
        state = state_of(self.model, self.loss.whole)
        workload = Workload(
            state, self.samples, self.loss, self.batch_size, self.samples, shards=(), kind="local_steps",
            recipe=recipe, micro_batches=self.micro_batches,
        )  # fmt: skip
        # its own random numbers are never used: torch's come with each work, and the others follow from their seed
        trainer = LocalTrainer(workload, 0, seed=0, model=self.model)

        def compute(order: Order, go_on: Callable[[int], bool]) -> tuple[int, Report]:
            done = compute_shared(
                trainer, arena, blobs, serial=order.serial, source=order.source, slot=order.slot, go_on=go_on
            )
            return order.units if done else 0, EMPTY_REPORT

        return compute


def _in_turn(ranks: InTurn, compute: ComputeFunction) -> ComputeFunction:
    """The work of all ranks, one after the other; what is handed in is the last one's."""

    def computed(order: Order, go_on: Callable[[int], bool]) -> tuple[int, Report]:
        for rank in range(ranks.size):
            ranks.begin(rank)
            done, report = compute(order, go_on)
        return done, report

    return computed


def payload_of(workload: Workload, model: nn.Module, loss: Objective, hung: Sequence[Hung] = ()) -> WorkerPayload:
    """What the workers of a workload are given, with a model and loss for them."""
    recipe = workload.recipe if workload.hands_in_models else None
    return WorkerPayload(
        model, workload.samples, loss, workload.batch_size, recipe, hung, workload.micro_batches, workload.logged,
        workload.parallel,
    )  # fmt: skip


def slots_needed(workload: Workload, workers: int) -> int:
    """How many slots the arena of a run needs."""
    needed = shared_models.slots_needed if workload.hands_in_models else held_gradients.slots_needed
    return needed(workers, workload.levels)


def shared_contributions(workload: Workload, arena: ParameterArena, blobs: Blobs, workers: int) -> SharedContributions:
    """What holds on the server what workers hand in through shared memory."""
    if workload.hands_in_models:
        return SharedModels(workload, arena, blobs)
    blobs.close()  # gradients need none
    return SharedGradients(workload.state, arena, workers, workload.logged, workload.levels)
