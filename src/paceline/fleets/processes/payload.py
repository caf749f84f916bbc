"""What the workers of a run are given to work with: one kind hands in gradients, the other models of their own.

WorkerPayload is packed once, by the server; every worker unpacks it and opens a desk, which turns orders into rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from paceline.data.samples import Samples
from paceline.fleets.processes.channel import Order
from paceline.learning.arena.arena import NOTHING, Brought, ParameterArena
from paceline.learning.arena.blobs import Blobs
from paceline.learning.copies import Hung
from paceline.learning.gradients.server import Recipe
from paceline.learning.gradients.work import GradientWork
from paceline.learning.loss import SampleLoss
from paceline.learning.models.local_training import LocalTrainer
from paceline.learning.models.local_work import LocalWork
from paceline.learning.models.shared import RowWork
from paceline.learning.workload import Workload, state_of

ComputeFunction = Callable[
    [Order, Callable[[int], bool]], tuple[int, Brought]
]  # units done, and what is told of the row


class WorkerPayload(Protocol):
    """``parameters`` are the model's, and lie in the first slot; what hangs on them is sent apart."""

    @property
    def hung(self) -> Sequence[Hung]: ...

    def open(self, parameters: Sequence[nn.Parameter], arena: ParameterArena, blobs: Blobs) -> ComputeFunction: ...


@dataclass(frozen=True)
class GradientPayload:
    """To compute gradients with."""

    model: nn.Module
    samples: Samples
    loss: SampleLoss
    hung: Sequence[Hung] = ()

    def open(self, parameters: Sequence[nn.Parameter], arena: ParameterArena, blobs: Blobs) -> ComputeFunction:
        work = GradientWork(self.model, parameters, self.samples, self.loss)

        def compute(order: Order, go_on: Callable[[int], bool]) -> tuple[int, Brought]:
            return work.compute(
                arena[order.source], arena[order.row], order.indices,
                units=order.units, seed=order.seed, go_on=go_on,
            )  # fmt: skip

        return compute


@dataclass(frozen=True)
class TrainingPayload:
    """To train a model with."""

    model: nn.Module
    samples: Samples
    loss: SampleLoss
    batch_size: int
    recipe: Recipe
    hung: Sequence[Hung] = ()

    def open(self, parameters: Sequence[nn.Parameter], arena: ParameterArena, blobs: Blobs) -> ComputeFunction:
        for parameter in parameters:
            parameter.data = parameter.data.clone()  # the worker's own: it is changed on the way
        workload = Workload(
            state_of(self.model, self.loss.whole), self.samples, self.loss, self.batch_size, self.samples, shards=()
        )
        # its own random numbers are never used: they come with each piece of work, and so does everything else
        work = RowWork(LocalWork(LocalTrainer(workload, self.recipe, 0, seed=0, model=self.model)), arena, blobs)

        def compute(order: Order, go_on: Callable[[int], bool]) -> tuple[int, Brought]:
            return work.compute(order.serial, order.source, order.row, order.units, go_on), NOTHING

        return compute
